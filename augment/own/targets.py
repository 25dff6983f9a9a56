"""Targets of a user's own pictures: those that a Dataset knows beforehand, and what all of them mean."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset

from augment.dataset import Task
from augment.errors import UserError
from augment.own.named import describe
from augment.targets.classes import Targets, understand_labels
from augment.targets.labels import Label, Labeled, Labels, pack
from augment.targets.rows import Rows, understand_rows

ALLOWED = "a class (number or name), a list of labels, a number to predict, or an array (K,) of numbers"

# Attributes that hold the targets of all items, as torchvision's data sets have them.
_ATTRIBUTES = ("targets", "labels")

# A target as it is told: a class or number, some labels, or a row.
Told = Label | list[Label] | NDArray[Any]


@dataclass(frozen=True)
class OwnTargets:
    """The targets of a split.

    Attributes:
        key: of the setting that names the sequence.
        values: of the items, as they are.
        name: says what people call a picture, given its place.
        names: of the classes, as the Dataset has them.
    """

    key: str
    values: Sequence[object] | NDArray[Any]
    name: Callable[[int], str]
    names: tuple[str, ...] | None = None


def known_targets(sequence: Any) -> Sequence[Any] | NDArray[Any] | None:
    """Return the targets of all items if a Dataset has them beforehand, so that no item needs to be read."""
    if isinstance(sequence, Subset):
        whole = known_targets(sequence.dataset)
        return None if whole is None else [whole[index] for index in sequence.indices]
    if isinstance(sequence, ConcatDataset):
        parts = [known_targets(part) for part in sequence.datasets]
        known = [part for part in parts if part is not None]
        return list(chain.from_iterable(known)) if len(known) == len(parts) else None
    if isinstance(sequence, list | tuple) or getattr(sequence, "target_transform", None) is not None:
        return None
    for name in _ATTRIBUTES:
        found = getattr(sequence, name, None)
        if isinstance(found, torch.Tensor):
            found = found.detach().cpu().numpy()
        if isinstance(found, list | tuple | np.ndarray) and len(found) == len(sequence):
            return found
    return None


def class_names(sequence: Any) -> tuple[str, ...] | None:
    """Return the names of classes that a Dataset has in `classes`, synonyms of one joined; None if it has none."""
    if isinstance(sequence, Subset):
        return class_names(sequence.dataset)
    if isinstance(sequence, ConcatDataset):
        found = {class_names(part) for part in sequence.datasets}
        return found.pop() if len(found) == 1 else None
    names = getattr(sequence, "classes", None)
    if not isinstance(names, list | tuple) or not names:
        return None
    joined = [
        ", ".join(name) if isinstance(name, list | tuple) and all(map(_is_name, name)) else name for name in names
    ]
    return tuple(joined) if all(map(_is_name, joined)) and len(set(joined)) == len(joined) else None


def same_target(one: object, other: object) -> bool:
    """Whether two targets say the same, numbers but for the rounding of float32."""
    first, second = _told(one), _told(other)
    if first is None or second is None:
        return False
    ours, theirs = np.asarray(first), np.asarray(second)
    if ours.dtype.kind in "biuf" and theirs.dtype.kind in "biuf" and ours.shape == theirs.shape:
        return bool(np.allclose(ours, theirs, rtol=1e-6, atol=0))
    return np.array_equal(ours, theirs)


def understand_own(
    train: OwnTargets,
    val: OwnTargets,
    *,
    task: Task | None,
    classes: tuple[str, ...] | None,
    offset: int,
    targets: Sequence[str],
) -> Targets:
    """Turn the targets of both splits into classes, labels or numbers; see `understand_rows`, `understand_labels`.

    Raises:
        UserError: one is none, or they do not fit together; the message says which one and why.
    """
    numbers = task == "regress" or bool(targets)
    splits = (train, val)
    columns = [_columns(split, numbers=numbers) for split in splits]
    if all(isinstance(column, np.ndarray) for column in columns):
        rows = (Rows(s.key, np.asarray(c), s.name, s.names) for s, c in zip(splits, columns, strict=True))
        return understand_rows(*rows, task=task, classes=classes, offset=offset, targets=targets)
    if numbers:
        split, told = next((s, c) for s, c in zip(splits, columns, strict=True) if isinstance(c, list))
        place = next((i for i, labels in enumerate(told) if any(isinstance(v, str) for v in labels)), 0)
        raise UserError(
            f"{split.key}: {split.name(place)} has the target {told[place]}. Allowed: as many numbers each."
        )
    labeled = [_labeled(split, column) for split, column in zip(splits, columns, strict=True)]
    return understand_labels(*labeled, classes=classes, offset=offset, task=task)


def _columns(split: OwnTargets, *, numbers: bool) -> NDArray[Any] | list[list[Label]]:
    """Return the targets as an array, (N,) or (N, K), or the labels of each."""
    if isinstance(split.values, np.ndarray) and split.values.dtype.kind in "biuf":
        return split.values
    told: list[Told] = []
    for place, value in enumerate(split.values):
        found = _told(value)
        if found is None:
            raise UserError(f"{split.key}: the target of {split.name(place)} is {describe(value)}. Allowed: {ALLOWED}.")
        told.append(found)
    kinds = set(map(type, told))
    if kinds <= {int, float}:
        return np.array(told)
    if np.ndarray in kinds:
        return _stacked(split, told)
    labels = [value if isinstance(value, list) else [value] for value in told if not isinstance(value, np.ndarray)]
    fractions = any(isinstance(label, float) for some in labels for label in some)
    texts = any(isinstance(label, str) for some in labels for label in some)
    if (numbers or fractions) and not texts and len(set(map(len, labels))) == 1 and labels[0]:
        return np.array(labels)
    return labels


def _stacked(split: OwnTargets, told: Sequence[Told]) -> NDArray[Any]:
    first = np.shape(told[0])
    for place, value in enumerate(told):
        if np.shape(value) != first or not isinstance(value, np.ndarray):
            raise UserError(
                f"{split.key}: the target of {split.name(place)} is of another kind, {_shown(value)}, than that of "
                f"{split.name(0)}, {_shown(told[0])}. Allowed: arrays (K,) of one length."
            )
    return np.stack([value for value in told if isinstance(value, np.ndarray)])


def _labeled(split: OwnTargets, column: NDArray[Any] | list[list[Label]]) -> Labeled:
    if isinstance(column, np.ndarray):
        if column.ndim != 1 or column.dtype.kind == "f":
            raise UserError(
                f"{split.key}: targets are numbers, and those of the other split labels. Allowed: one kind."
            )
        return Labeled(
            split.key, Labels(column.astype(np.int64), np.ones(len(column), np.int64)), split.name, split.names
        )
    try:
        return Labeled(split.key, pack(column, split.name), split.name, split.names)
    except UserError as error:
        raise UserError(f"{split.key}: {error}") from None


def _told(value: object) -> Told | None:
    """Return a target in Python's own types; None if it is none."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, np.ndarray):
        return value if value.ndim == 1 and value.dtype.kind in "biuf" and len(value) else None
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        labels = [_told(label) for label in value]
        if all(isinstance(label, int | float | str) for label in labels):
            return [label for label in labels if isinstance(label, int | float | str)]
    return None


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name)


def _shown(value: object) -> str:
    return f"an array {value.shape}" if isinstance(value, np.ndarray) else repr(value)
