"""Targets as formats write them: the classes or labels that a picture has, or its numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from augment.dataset import Split, Target, Task
from augment.errors import UserError
from augment.stored import name_of

_LARGEST = float(np.finfo(np.float32).max)


class Told(NamedTuple):
    """A target.

    Attributes:
        places: of the class among all classes, or of the labels, in rising order.
        numbers: what is to be predicted, if that is asked.
    """

    places: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True)
class Meaning:
    """What the targets of a data set are.

    Attributes:
        task: what is asked of a picture.
        names: of the classes, labels or numbers.
    """

    task: Task
    names: tuple[str, ...]

    def having(self, told: Told) -> list[str]:
        """Return the names of a picture's classes or labels."""
        return [self.names[place] for place in told.places]

    def exact(self, told: Told) -> bytes:
        """Return what two targets share only if they are the same: of numbers as float32, in which they are trained on.

        Raises:
            LookupError: there is no such class or label.
        """
        if self.task == "regress":
            return np.array(told.numbers, "<f4").tobytes()
        return "\n".join(self.having(told)).encode()  # in which no line ends


def tell(targets: Sequence[Target], task: Task) -> list[Told]:
    """Return the targets of a split."""
    if task != "regress":
        # Pictures with the same labels share a target, and there can be thousands of labels.
        shared = {id(target): target for target in targets}
        known = {key: _told(target) for key, target in shared.items()}
        return [known[id(target)] for target in targets]
    return [Told(numbers=target) for target in targets if not isinstance(target, int)]


def check_numbers(split: Split) -> None:
    """Raise a `UserError` if a number is not finite or too large for float32."""
    for picture, target in zip(split.files, split.targets, strict=True):
        if not isinstance(target, int) and not all(abs(number) <= _LARGEST for number in target):
            raise UserError(
                f"data: {name_of(picture)} has the target {list(target)}. Allowed: finite numbers that float32 holds."
            )


def _told(target: Target) -> Told:
    if isinstance(target, int):
        return Told((target,))
    return Told(tuple(place for place, has in enumerate(target) if has))


def told_of(values: Sequence[int | float | str], task: Task) -> Told:
    """Return the target that a reader has found.

    Raises:
        ValueError: it is none of the task.
    """
    if task == "regress":
        return Told(numbers=tuple(map(float, values)))
    places = tuple(map(int, values))
    if list(places) != list(values):
        raise ValueError(f"{list(values)} are no classes")
    return Told(places)


def cut(values: Sequence[int | float | str], counts: Iterable[int]) -> list[Sequence[int | float | str]]:
    """Return the values of each picture, of those of all."""
    found = []
    start = 0
    for count in counts:
        found.append(values[start : start + count])
        start += count
    return found
