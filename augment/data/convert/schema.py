"""Targets in the form that formats write: per image, the indices of its classes or labels, or its numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from augment.data.dataset import Target
from augment.data.targets.given import Label
from augment.data.targets.kind import known_kinds

# The target of one image: the rising indices of its class or labels; or its numbers.
Values = Sequence[Label]


@dataclass(frozen=True)
class Schema:
    """The kind of targets of a data set.

    Attributes:
        task: the task of the data set.
        names: names of the classes, labels or numbers.
    """

    task: str
    names: tuple[str, ...]

    def names_of(self, values: Values) -> list[str]:
        """Return the names of an image's classes or labels.

        Raises:
            LookupError: there is no such class or label.
            ValueError: they are not indices.
        """
        indices = list(map(int, values))
        if indices != list(values):
            raise ValueError(f"{list(values)} are no classes")
        return [self.names[index] for index in indices]

    def exact(self, values: Values) -> bytes:
        """Return bytes that are equal only for equal targets; numbers are compared as float32, as in training.

        Raises:
            LookupError: there is no such class or label.
            ValueError: they do not fit the task.
        """
        if self.task == "regress":
            return np.array(list(map(float, values)), "<f4").tobytes()
        return "\n".join(self.names_of(values)).encode()  # no name contains a line end

    def values(self, targets: Sequence[Target]) -> list[Values]:
        """Return the targets of a split."""
        # Images with the same labels share a target, and there can be thousands of labels.
        kind, known = known_kinds()[self.task], dict[int, Values]()
        for target in targets:
            if id(target) not in known:
                known[id(target)] = kind.values(target)
        return [known[id(target)] for target in targets]
