"""Interpret the labels of a data set: which kind of targets they are.

Every source calls `make_dataset`. Where labels are ambiguous, it asks instead of guessing.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import NO_VAL, Dataset, Split
from augment.data.targets.classes import CLASSES
from augment.data.targets.given import LabeledSplit, all_rows
from augment.data.targets.kind import Kind, TargetOptions
from augment.data.targets.labels import LABELS
from augment.data.targets.numbers import NUMBERS
from augment.support.errors import UserError
from augment.support.text import amount, list_some, plural

logger = logging.getLogger(__name__)


def make_dataset(
    splits: Sequence[LabeledSplit], options: TargetOptions | None = None, *, typed: bool = True
) -> Dataset:
    """Turn labels into targets.

    Without a kind in the options, images that come with floats, as many each, have numbers to predict; rows of 0 and 1
    are labels; images with any number of labels have labels; all others have a class each.

    Args:
        splits: train with its labels, and val if there is one.
        options: the settings about targets.
        typed: whether the source distinguishes floats from whole numbers. If not, numbers to predict must be asked for.

    Raises:
        UserError: the splits do not fit together, or a label does not fit the kind; the message names it and says why.
    """
    options = options or TargetOptions()
    for split in splits:
        if not len(split.labels.counts):
            raise UserError(f"{split.key}: holds no images.")
    notice, hint = "", ""
    if _are_rows(splits, options, typed=typed):
        splits = [replace(split, labels=replace(split.labels, rows=True)) for split in splits]
        rows = all_rows(splits)
        kind = options.kind or _kind_of_rows(splits[0].key, rows, options)
        told = options.kind or options.names or options.classes
        if kind == NUMBERS and not told and rows[0].shape[1] == 1:
            notice = describe_whole_numbers("the labels are floats", np.concatenate(rows).ravel())
    else:
        kind = options.kind or _kind_of_lists(splits)
        if not (options.kind or options.classes or any(split.labels.words for split in splits)):
            hint = " Numbers to predict need data.task=regress."  # which labels that are no classes may be meant as
    try:
        names, targets = kind.read(splits, options)
    except UserError as error:
        raise UserError(f"{error}{hint}") from None
    if strange := next((name for name in names if "\0" in name), None):
        raise UserError(f"data: the name {strange!r} has a NUL character in it. Allowed: text.")
    train, *val = (Split(tuple(split.images), of, kind) for split, of in zip(splits, targets, strict=True))
    return Dataset(names, train, val[0] if val else NO_VAL).noting(notice)


def describe_whole_numbers(why: str, values: NDArray[Any]) -> str:
    """Describe numbers to predict that no setting asks for, and that may be classes, as most have no fraction."""
    fractions = int(np.count_nonzero(values != np.floor(values)))
    if fractions >= len(values) / 2:
        return ""
    have = plural(fractions, "has", "have")
    return (
        f"{why}, so all are numbers to predict, but only {fractions} of {len(values)} {have} a fraction; "
        "data.task=classify if they are classes, data.task=regress if not"
    )


def _are_rows(splits: Sequence[LabeledSplit], options: TargetOptions, *, typed: bool) -> bool:
    """Whether each image has a row of numbers, rather than a list of labels."""
    labels = [split.labels for split in splits]
    if all(some.rows for some in labels):
        return True
    if any(some.rows and some.counts[0] > 1 for some in labels):
        raise UserError("data: one of train and val has rows of numbers, the other labels. Allowed: the same in both.")
    numbers = typed and any(some.values.dtype.kind == "f" for some in labels)
    numbers = numbers and all(len(np.unique(some.counts)) == 1 and len(some.values) for some in labels)
    return numbers or bool(options.names) or options.kind == NUMBERS


def _kind_of_lists(splits: Sequence[LabeledSplit]) -> Kind:
    several = sum(int(np.count_nonzero(split.labels.counts > 1)) for split in splits)
    if several:
        have = amount(several, "image has", "images have")
        logger.info("%s several labels: any number of labels is learned, not one class", have)
    return LABELS if several else CLASSES


def _kind_of_rows(key: str, rows: Sequence[NDArray[Any]], options: TargetOptions) -> Kind:
    width = rows[0].shape[1]
    floats = any(values.dtype.kind == "f" for values in rows)
    flags = all(bool(np.isin(values, (0, 1)).all()) for values in rows)
    hot = flags and all(bool((values.sum(axis=1) == 1).all()) for values in rows)
    if width == 1 and not options.names:
        return NUMBERS if floats and not options.classes else CLASSES
    if not flags and (floats or options.names):
        return NUMBERS
    if flags and not (hot or options.names or (floats and not options.classes)):
        return LABELS
    what = ("0 and 1, a single 1 each" if hot else "0 and 1") if flags else "whole numbers"
    named = list_some(options.names) or f"the {width} numbers of each image"
    raise UserError(
        f"{key}: {named} {plural(len(options.names) or width, 'is', 'are')} {what}, which may mean a class, labels or "
        "numbers to predict. Allowed: data.task=classify, multilabel or regress."
    )
