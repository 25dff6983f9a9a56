"""From targets in arrays, one or a row for each picture, to classes, labels or numbers."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.dataset import Target, Task
from augment.errors import UserError
from augment.targets.classes import Targets, understand_labels
from augment.targets.labels import Labeled, Labels
from augment.targets.lists import number_names

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rows:
    """The targets of a split.

    Attributes:
        key: of the setting that the pictures come from, for messages.
        values: (N,) or (N, K): classes, K flags that are 1 where a picture has a label and 0 where not, or numbers.
        name: says what people call a picture, given its place in the split.
        names: names of the classes or labels that come with the pictures.
    """

    key: str
    values: NDArray[Any]
    name: Callable[[int], str]
    names: tuple[str, ...] | None = None

    def error(self, wrong: NDArray[np.bool_], what: str) -> UserError:
        """Return an error about the first picture with one of some values, (N, K)."""
        place = int(np.argmax(wrong.any(axis=1)))
        return UserError(f"{self.key}: {self.name(place)} has the target {self.values[place].tolist()}{what}")

    @property
    def columns(self) -> NDArray[Any]:
        """The values as (N, K)."""
        return self.values.reshape(len(self.values), -1)


def understand_rows(
    train: Rows,
    val: Rows,
    *,
    task: Task | None = None,
    classes: tuple[str, ...] | None = None,
    offset: int = 0,
    targets: Sequence[str] = (),
) -> Targets:
    """Turn arrays into targets.

    Args:
        train: the targets to learn.
        val: those to be scored by.
        task: what they are; None: numbers, if they are floats or have names in `targets` and are not all 0 and 1; else
            labels, where each picture has a row; else a class each.
        classes: names of classes or labels, by number.
        offset: number of the first class.
        targets: names of the columns of numbers, or of labels.

    Raises:
        UserError: the two do not fit together, or one does not fit what they are; the message says which one and why.
    """
    splits = [_squeezed(split) for split in (train, val)]
    for split in splits:
        if not len(split.values):
            raise UserError(f"{split.key}: holds no pictures.")
        if split.values.ndim > 2 or split.values.dtype.kind not in "biuf" or not split.values.size:
            shown = f"{split.values.shape} {split.values.dtype}"
            raise UserError(f"{split.key}: the targets are {shown}. Allowed: (N,) or (N, K) numbers.")
    first, second = splits
    if first.values.shape[1:] != second.values.shape[1:]:
        raise UserError(
            f"{second.key}: {second.columns.shape[1]} numbers a picture, but {first.columns.shape[1]} in train."
        )
    task = task or _task(splits, named=bool(classes), targets=bool(targets))
    if targets and task == "classify":
        raise UserError("data.targets: names numbers, but data.task=classify. Allowed: data.classes=FILE.")
    if task == "regress":
        names = _names(first, targets, None) or number_names(first.columns.shape[1])
        return Targets(task, names, _numbers(first), _numbers(second))
    if first.values.ndim == 1:
        labeled = [_single(split) for split in splits]
        return understand_labels(*labeled, classes=classes, offset=offset, task=task)
    for split in splits:
        wrong = (split.values != 0) & (split.values != 1)
        if wrong.any():
            raise split.error(wrong, f". Allowed with data.task={task}: 0 and 1.")
    if task == "classify":
        for split in splits:
            odd = split.values.sum(axis=1, keepdims=True) != 1
            if odd.any():
                raise split.error(odd, ". Allowed with data.task=classify: one 1, and 0 otherwise.")
    names = _names(first, targets, classes) or tuple(str(n + offset) for n in range(first.values.shape[1]))
    labeled = [_flagged(split) for split in splits]
    return understand_labels(*labeled, classes=names, task=task)


def understand_found(
    train: Labeled,
    val: Labeled,
    *,
    task: Task | None = None,
    classes: tuple[str, ...] | None = None,
    offset: int = 0,
    targets: Sequence[str] = (),
    typed: bool = True,
) -> Targets:
    """Turn what pictures in larger files come with into targets.

    Args:
        train: classes, labels or numbers to learn.
        val: those to be scored by.
        task: what they are; None: told from them, as `understand_rows` does for floats and where `targets` has names,
            and `understand_labels` for all others.
        classes: names of classes or labels, by number.
        offset: number of the first class.
        targets: names of the numbers, or of labels that are 0 or 1 each.
        typed: whether the files tell floats from whole numbers; where not, a fraction may be a mistake, and numbers
            have to be asked for.

    Raises:
        UserError: the two do not fit together, or one does not fit what they are; the message says which one and why.
    """
    splits = (train, val)
    floats = any(split.labels.values.dtype.kind == "f" for split in splits)
    alike = all(len(np.unique(split.labels.counts)) == 1 and len(split.labels.values) for split in splits)
    if typed and floats and alike and not (task or targets or classes):
        _warn_of_whole(splits)
    if targets or task == "regress" or (typed and floats and alike):
        rows = (_rows(split) for split in splits)
        return understand_rows(*rows, task=task, classes=classes, offset=offset, targets=targets)
    try:
        return understand_labels(train, val, classes=classes, offset=offset, task=task)
    except UserError as error:
        maybe = floats and task is None and not classes
        raise UserError(f"{error}{' Numbers to predict need data.task=regress.' if maybe else ''}") from None


def _warn_of_whole(splits: Sequence[Labeled]) -> None:
    """Say in the log that floats are taken for numbers to predict, if they look as classes do."""
    values = np.concatenate([split.labels.values for split in splits])
    fractions = int(np.count_nonzero(values != np.floor(values)))
    if fractions < len(values) / 2:
        logger.warning(
            "the labels are floats, so all are numbers to predict, but only %d of %d have a fraction; "
            "data.task=classify if they are classes, data.task=regress if not", fractions, len(values),
        )  # fmt: skip


def _rows(split: Labeled) -> Rows:
    """Return labels as rows of numbers, (N, K)."""
    labels = split.labels
    odd = (labels.counts == 0) | (labels.counts != labels.counts[:1])
    if odd.any():
        place = int(np.argmax(odd))
        count, first = int(labels.counts[place]), f", but {labels.counts[0]} for {split.name(0)}" if place else ""
        raise UserError(
            f"{split.key}: {split.name(place)} has {count or 'no'} number{'s' * (count > 1)}{first}. "
            "Allowed: as many each."
        )
    values = labels.values
    if labels.words:
        try:
            values = np.array([float(word) for word in labels.words])[labels.values]
        except ValueError:
            what = f"{split.said(0)}, which is a name"
            raise UserError(f"{split.key}: {what}. Allowed with data.task=regress: numbers.") from None
    return Rows(split.key, values.reshape(len(labels.counts), -1) if len(labels.counts) else values, split.name)


def _squeezed(split: Rows) -> Rows:
    """Take (N, 1) for (N,)."""
    if split.values.ndim == 2 and split.values.shape[1] == 1:
        return Rows(split.key, split.values[:, 0], split.name, split.names)
    return split


def _task(splits: Sequence[Rows], *, named: bool, targets: bool) -> Task:
    flags = all(bool(np.isin(split.values, (0, 1)).all()) for split in splits)
    if targets and flags:
        raise UserError(
            "data.targets: all of them are 0 and 1, which may mean labels or numbers. "
            "Allowed: data.multilabel=true or data.task=regress."
        )
    if targets:
        return "regress"
    floats = any(split.values.dtype.kind == "f" for split in splits)
    if splits[0].values.ndim == 1:
        return "regress" if floats and not named else "classify"
    if not flags:
        if floats:
            return "regress"
        raise UserError(
            f"{splits[0].key}: {splits[0].values.shape[1]} whole numbers a picture. "
            "Allowed: 0 and 1 for labels; data.task=regress to predict them as numbers."
        )
    if all(bool((split.values.sum(axis=1) == 1).all()) for split in splits):
        raise UserError(
            f"{splits[0].key}: each picture has one 1 among {splits[0].values.shape[1]} numbers, which may mean a "
            "class or labels. Allowed: data.task=classify, multilabel or regress."
        )
    if floats and not named:
        raise UserError(
            f"{splits[0].key}: the targets are 0 and 1 as fractions, which may mean labels or numbers. "
            "Allowed: data.multilabel=true or data.task=regress."
        )
    return "multilabel"


def _names(split: Rows, targets: Sequence[str], classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the names of the columns that were given, if any were."""
    count = split.columns.shape[1]
    key, given = ("data.targets", tuple(targets)) if targets else ("data.classes", classes or ())
    if given and len(given) != count:
        raise UserError(f"{key}: {len(given)} names. Allowed: {count}, one for each number of a picture.")
    if given:
        return given
    return split.names if split.names and len(split.names) == count and split.values.ndim == 2 else None


def _numbers(split: Rows) -> tuple[Target, ...]:
    values = split.columns.astype(np.float64)
    wrong = ~np.isfinite(values) | (np.abs(values) > np.finfo(np.float32).max)
    if wrong.any():
        raise split.error(wrong, ". Allowed: finite numbers.")
    return tuple(map(tuple, values.tolist()))


def _single(split: Rows) -> Labeled:
    values = split.values if split.values.dtype.kind == "f" else split.values.astype(np.int64)
    return Labeled(split.key, Labels(values, np.ones(len(values), np.int64)), split.name, split.names)


def _flagged(split: Rows) -> Labeled:
    has = split.values == 1
    return Labeled(split.key, Labels(np.nonzero(has)[1].astype(np.int64), has.sum(axis=1).astype(np.int64)), split.name)
