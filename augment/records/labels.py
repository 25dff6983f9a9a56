"""From the labels that records have, numbers or names, to classes and targets."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.dataset import Dataset, Split, Stored
from augment.errors import UserError

logger = logging.getLogger(__name__)

_MAX_CLASSES = 1_000_000  # a number beyond is no class but an id, and would make a list of as many


@dataclass(frozen=True)
class Labeled:
    """The records of a split.

    Attributes:
        files: the pictures.
        labels: (N,) their labels, one each: whole numbers or names.
        names: names of the classes that the records come with.
    """

    files: tuple[Stored, ...]
    labels: NDArray[Any]
    names: tuple[str, ...] | None = None


def single_labels(files: Sequence[Stored], labels: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Return the labels if each picture has exactly one.

    Raises:
        UserError: one has none or several, or a label is no whole number.
    """
    if not len(files):
        raise UserError("holds no pictures.")
    odd = np.flatnonzero(counts != 1)
    if len(odd):
        what = f"{counts[odd[0]]} labels" if counts[odd[0]] else "no label"
        raise UserError(f"{files[odd[0]].name} has {what}, as have {len(odd) - 1:,} more; allowed is one a picture.")
    if labels.dtype.kind == "f":
        place = int(np.argmax(labels != np.floor(labels))) if (labels != np.floor(labels)).any() else None
        if place is not None:
            raise UserError(f"{files[place].name} has the label {labels[place]:g}; allowed are whole numbers.")
        return labels.astype(np.int64)
    return labels


def make_dataset(train: Labeled, val: Labeled, *, classes: tuple[str, ...] | None = None, offset: int = 0) -> Dataset:
    """Give the classes numbers and names.

    Args:
        train: the pictures to learn from.
        val: those to be scored on.
        classes: names of the classes, by number; by default those that the records come with, else the labels
            themselves: sorted, if they are text.
        offset: number of the first class, subtracted from labels that are numbers.

    Raises:
        UserError: a label of no class, or no class of val is in train.
    """
    names = classes or train.names
    if train.labels.dtype.kind != val.labels.dtype.kind:
        raise UserError("data: the labels of one of train and val are text, those of the other numbers.")
    if train.labels.dtype.kind == "U":
        names = names or tuple(np.unique(train.labels).tolist())
        train_targets, val_targets = (
            _by_name(split, names, which) for split, which in ((train, "train"), (val, "val"))
        )
    else:
        highest = int(train.labels.max()) - offset
        if highest >= _MAX_CLASSES:
            raise UserError(f"data: {_first(train, train.labels - offset == highest)} is no number of a class.")
        names = names or tuple(str(number + offset) for number in range(highest + 1))
        source = "names" if classes or train.names else "train"
        train_targets = _by_number(train, len(names), offset, "train", source)
        val_targets = _by_number(val, len(names), offset, "val", source)
    _note_missing(names, train_targets, val_targets, offset)
    return Dataset(
        names, Split(train.files, tuple(train_targets.tolist())), Split(val.files, tuple(val_targets.tolist()))
    )


def _by_name(split: Labeled, names: Sequence[str], which: str) -> NDArray[np.int64]:
    numbers = {name: number for number, name in enumerate(names)}
    found, places = np.unique(split.labels, return_inverse=True)
    for name in found.tolist():
        if name not in numbers:
            near = get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]}?" if near else ""
            first = _first(split, split.labels == name)
            raise UserError(f"data.{which}: {first} is none of the {len(names):,} classes.{hint}")
    return np.array([numbers[name] for name in found.tolist()], np.int64)[places]


def _by_number(split: Labeled, count: int, offset: int, which: str, source: str) -> NDArray[np.int64]:
    targets: NDArray[np.int64] = split.labels - offset
    for wrong in (targets < 0, targets >= count):
        if wrong.any():
            known = "classes have names" if source == "names" else "classes are in train"
            raise UserError(
                f"data.{which}: {_first(split, wrong)} is out of range: {count:,} {known}, "
                f"so allowed are {offset} to {count - 1 + offset}"
                + (f" (data.label_offset={offset})." if offset else ".")
                + (
                    " Do labels begin at 1? Then set data.label_offset=1."
                    if _begins_at_one(split, count, offset)
                    else ""
                )
            )
    return targets


def _begins_at_one(split: Labeled, count: int, offset: int) -> bool:
    return offset == 0 and int(split.labels.min()) == 1 and int(split.labels.max()) == count


def _first(split: Labeled, where: NDArray[np.bool_]) -> str:
    """Name the first picture of some, with its label."""
    place = int(np.argmax(where))
    return f"{split.files[place].name} with the label {split.labels[place]}"


def _note_missing(names: Sequence[str], train: NDArray[np.int64], val: NDArray[np.int64], offset: int) -> None:
    """Say in the log which classes have no pictures.

    Raises:
        UserError: no class has some in both splits.
    """
    if not len(np.intersect1d(train, val)):
        raise UserError(f"data: no class of val is in train; train has {_some(names, train)}, val {_some(names, val)}.")
    for which, targets in (("train", train), ("val", val)):
        absent = np.setdiff1d(np.arange(len(names)), targets)
        if len(absent):
            hint = ""
            if which == "train" and offset == 0 and absent.tolist() == [0]:
                hint = " Do labels begin at 1? Then set data.label_offset=1."
            logger.warning(
                "%d of %d classes have no picture in %s: %s.%s",
                len(absent), len(names), which, _some(names, absent), hint,
            )  # fmt: skip


def _some(names: Sequence[str], targets: NDArray[np.int64]) -> str:
    found = [names[target] for target in np.unique(targets).tolist()]
    return ", ".join(found[:5]) + (f" and {len(found) - 5:,} more" if len(found) > 5 else "")
