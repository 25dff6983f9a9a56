"""Interpret the labels of a data set: classes, any number of labels per image, or numbers to predict.

Every source calls `make_dataset`. Where labels are ambiguous, it asks instead of guessing.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import NO_VAL, Dataset, Split, Target, Task
from augment.data.targets.classes import find_classes
from augment.data.targets.labels import LabeledSplit, Labels
from augment.support.errors import UserError
from augment.support.text import amount, list_some, plural

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TargetOptions:
    """The settings of the configuration about targets.

    Attributes:
        task: the name of the task; None: inferred from the labels.
        classes: names of classes or labels, by number; None: those that the images come with, else the labels.
        offset: number of the first class, where labels are numbers.
        names: names of the columns of numbers, or of 0 and 1 for labels.
    """

    task: Task | None = None
    classes: tuple[str, ...] | None = None
    offset: int = 0
    names: tuple[str, ...] = ()


def make_dataset(
    splits: Sequence[LabeledSplit], options: TargetOptions = TargetOptions(), *, typed: bool = True
) -> Dataset:
    """Turn labels into targets.

    Without a task in the options, images that come with floats, as many each, have numbers to predict; rows of 0 and 1
    are labels; images with any number of labels have labels; all others have a class each.

    Args:
        splits: train with its labels, and val if there is one.
        options: the settings about targets.
        typed: whether the source distinguishes floats from whole numbers. If not, a fraction may be a mistake, and
            numbers to predict must be asked for.

    Raises:
        UserError: the splits do not fit together, or a label does not fit the task; the message names it and says why.
    """
    for split in splits:
        if not len(split.labels.counts):
            raise UserError(f"{split.key}: holds no images.")
    return _from_rows(splits, options) if _are_rows(splits, options, typed=typed) else _from_labels(splits, options)


def _are_rows(splits: Sequence[LabeledSplit], options: TargetOptions, *, typed: bool) -> bool:
    """Whether each image has a row of numbers, rather than a list of labels."""
    labels = [split.labels for split in splits]
    if all(some.rows for some in labels):
        return True
    if any(some.rows and some.counts[0] > 1 for some in labels):
        raise UserError("data: one of train and val has rows of numbers, the other labels. Allowed: the same in both.")
    numbers = typed and any(some.values.dtype.kind == "f" for some in labels)
    numbers = numbers and all(len(np.unique(some.counts)) == 1 and len(some.values) for some in labels)
    return numbers or bool(options.names) or options.task == "regress"


def _from_labels(splits: Sequence[LabeledSplit], options: TargetOptions) -> Dataset:
    task = options.task
    if not task:
        several = sum(int(np.count_nonzero(split.labels.counts > 1)) for split in splits)
        task = "multilabel" if several else "classify"
        if several:
            have = amount(several, "image has", "images have")
            logger.info("%s several labels: any number of labels is learned, not one class", have)
    try:
        names, targets = find_classes(splits, task, options.classes, options.offset)
    except UserError as error:
        # Numbers that are no classes may be meant to be predicted.
        numbers = not options.task and not options.classes and not any(split.labels.words for split in splits)
        raise UserError(f"{error}{' Numbers to predict need data.task=regress.' if numbers else ''}") from None
    return _assemble(task, names, splits, targets)


def _from_rows(splits: Sequence[LabeledSplit], options: TargetOptions) -> Dataset:
    rows = [_rows_of(split) for split in splits]
    width = rows[0].shape[1]
    if rows[-1].shape[1] != width:
        raise UserError(f"{splits[-1].key}: {rows[-1].shape[1]} numbers per image, but {width} in train.")
    task = options.task or _infer_task(splits[0].key, rows, options)
    told = options.task or options.names or options.classes
    if task == "regress" and not told and (width == 1 or not splits[0].labels.rows):
        _warn_of_whole_numbers(np.concatenate(rows).ravel())
    if options.names and task == "classify":
        raise UserError("data.targets: names numbers, but data.task=classify. Allowed: data.classes=FILE.")
    if task == "regress":
        unnamed = ("target",) if width == 1 else tuple(f"target_{number}" for number in range(1, width + 1))
        names = _column_names(splits[0], width, options.names) or unnamed
        return _assemble(task, names, splits, [_numbers(*pair) for pair in zip(splits, rows, strict=True)])
    if width == 1 and not options.names:
        single = [replace(s, labels=Labels(r[:, 0], s.labels.counts)) for s, r in zip(splits, rows, strict=True)]
        return _from_labels(single, replace(options, task=task))
    for split, values in zip(splits, rows, strict=True):
        wrong = (values != 0) & (values != 1)
        if wrong.any():
            which = f" for {', '.join(options.names)}" if options.names else ""
            raise split.row_error(wrong, f". Allowed with data.task={task}{which}: 0 and 1.")
        odd = values.sum(axis=1, keepdims=True) != 1
        if task == "classify" and odd.any():
            raise split.row_error(odd, ". Allowed with data.task=classify: one 1, and 0 otherwise.")
    given = _column_names(splits[0], width, options.names, options.classes)
    classes = given or tuple(str(number + options.offset) for number in range(width))
    flagged = [
        replace(split, labels=Labels(np.nonzero(values == 1)[1], (values == 1).sum(axis=1)), names=None)
        for split, values in zip(splits, rows, strict=True)
    ]
    return _from_labels(flagged, TargetOptions(task, classes))


def _assemble(
    task: Task, names: tuple[str, ...], splits: Sequence[LabeledSplit], targets: Sequence[tuple[Target, ...]]
) -> Dataset:
    if strange := next((name for name in names if "\0" in name), None):
        raise UserError(f"data: the name {strange!r} has a NUL character in it. Allowed: text.")
    train, *val = (Split(tuple(split.images), of) for split, of in zip(splits, targets, strict=True))
    return Dataset(names, train, val[0] if val else NO_VAL, task)


def _rows_of(split: LabeledSplit) -> NDArray[Any]:
    """Return labels as rows of numbers, (N, K)."""
    labels = split.labels
    odd = (labels.counts == 0) | (labels.counts != labels.counts[0])
    if odd.any():
        index = int(np.argmax(odd))
        count, first = int(labels.counts[index]), f", but {labels.counts[0]} for {split.name(0)}" if index else ""
        raise UserError(
            f"{split.key}: {split.name(index)} has {amount(count, 'number') if count else 'no number'}{first}. "
            "Allowed: as many each."
        )
    values = labels.values
    if labels.words:
        try:
            values = np.array([float(word) for word in labels.words])[values]
        except ValueError:
            what = f"{split.describe(0)}, which is a name"
            raise UserError(f"{split.key}: {what}. Allowed with data.task=regress: numbers.") from None
    return values.reshape(len(labels.counts), -1)


def _infer_task(key: str, rows: Sequence[NDArray[Any]], options: TargetOptions) -> Task:
    width = rows[0].shape[1]
    floats = any(values.dtype.kind == "f" for values in rows)
    flags = all(bool(np.isin(values, (0, 1)).all()) for values in rows)
    if options.names and flags:
        raise UserError(
            f"data.targets: {list_some(options.names)} {plural(width, 'is', 'are')} 0 and 1, which may mean labels or "
            "numbers. Allowed: data.multilabel=true or data.task=regress."
        )
    if options.names:
        return "regress"
    if width == 1:
        return "regress" if floats and not options.classes else "classify"
    if not flags and floats:
        return "regress"
    if not flags:
        raise UserError(
            f"{key}: {width} whole numbers per image. "
            "Allowed: 0 and 1 for labels; data.task=regress to predict them as numbers."
        )
    if all(bool((values.sum(axis=1) == 1).all()) for values in rows):
        raise UserError(
            f"{key}: each image has one 1 among {width} numbers, which may mean a class or labels. "
            "Allowed: data.task=classify, multilabel or regress."
        )
    if floats and not options.classes:
        raise UserError(
            f"{key}: the targets are 0 and 1 as fractions, which may mean labels or numbers. "
            "Allowed: data.multilabel=true or data.task=regress."
        )
    return "multilabel"


def _warn_of_whole_numbers(values: NDArray[Any]) -> None:
    """Warn if numbers to predict, which no setting asks for, may be classes that are stored as floats."""
    fractions = int(np.count_nonzero(values != np.floor(values)))
    if fractions < len(values) / 2:
        logger.warning(
            "the labels are floats, so all are numbers to predict, but only %d of %d %s a fraction; "
            "data.task=classify if they are classes, data.task=regress if not",
            fractions, len(values), plural(fractions, "has", "have"),
        )  # fmt: skip


def _column_names(
    split: LabeledSplit, width: int, names: tuple[str, ...], classes: tuple[str, ...] | None = None
) -> tuple[str, ...] | None:
    """Return the names of the columns that were given, if any were."""
    key, given = ("data.targets", names) if names else ("data.classes", classes or ())
    if given and len(given) != width:
        raise UserError(f"{key}: {amount(len(given), 'name')}. Allowed: {width}, one for each number of an image.")
    if given:
        return given
    return split.names if split.names and len(split.names) == width > 1 else None


def _numbers(split: LabeledSplit, rows: NDArray[Any]) -> tuple[Target, ...]:
    values = rows.astype(np.float64)
    wrong = ~np.isfinite(values) | (np.abs(values) > np.finfo(np.float32).max)
    if wrong.any():
        raise split.row_error(wrong, ". Allowed: finite numbers.")
    return tuple(map(tuple, values.tolist()))
