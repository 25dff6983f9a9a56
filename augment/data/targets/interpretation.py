"""Interpret the labels of a data set, or the words of image lists: which kind of targets they are.

Every source calls `make_dataset`. Where labels are ambiguous, it asks instead of guessing.
"""

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import NO_VAL, Dataset, ImageRef, Split
from augment.data.formats.filelist import Lines
from augment.data.targets.classes import CLASSES
from augment.data.targets.kind import Kind
from augment.data.targets.labels import LABELS
from augment.data.targets.names import Label, LabeledSplit, Labels, TargetOptions, all_rows, pack
from augment.data.targets.numbers import NUMBERS
from augment.support.errors import UserError
from augment.support.text import amount, list_some, plural


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
        logging.getLogger(__name__).info("%s several labels: any number of labels is learned, not one class", have)
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


def make_list_dataset(lists: Sequence[Lines], images: Sequence[Sequence[ImageRef]], options: TargetOptions) -> Dataset:
    """Turn the list of train, and that of val if there is one, into a dataset of their images.

    Words are numbers to predict if they have columns of their own, or if some are numbers with a fraction; then all
    have to be numbers.

    Raises:
        UserError: a line does not fit; the message says which one and why.
    """
    train, kind, notice = lists[0], options.kind, ""
    words = [word for lines in lists for line in lines.lines for word in line.words]
    # A number that is not whole; its fraction may come after a comma, which `_numbers` refuses.
    points = (w for w in words if not _is_whole(w) and _read_number(w.replace(",", ".", 1)) is not None)
    point = "" if kind or train.columns or options.classes else next(points, "")
    numbers = bool(train.columns) or kind == NUMBERS or bool(point)
    asked = numbers or kind or options.classes or not train.guessed or len(train.lines) < 8
    if not asked and len({line.words for line in train.lines}) > 0.9 * len(train.lines):
        raise UserError(
            f"{train.key}: {train.file} has no column 'label', and '{train.column}' differs in nearly every line. "
            "Allowed: data.label=NAME for the class, or data.targets=[NAME] for a number."
        )
    # Words are names of classes, unless all are whole numbers and some are not names.
    classes = set(options.classes or ())
    named = classes if set(words) <= classes or not all(map(_is_whole, words)) else ()
    splits = []
    twice: list[str] = []
    for lines, files in zip(lists, images, strict=True):
        first = {line.path: line.words for line in reversed(lines.lines)}
        twice += [lines.describe(n) for n, line in enumerate(lines.lines) if first[line.path] != line.words]
        labels = _numbers(lines, kind, point) if numbers else _labels(lines, named)
        splits.append(LabeledSplit(lines.key, files, labels, lines.describe))
    single = numbers and train.column not in ("", "label") and all(len(line.words) == 1 for line in train.lines)
    names = (train.column,) if single else train.columns
    if point:
        kind = NUMBERS
        notice = describe_whole_numbers(f"{point} is written with a point", np.array(words, np.float64))
    again = f"data: {amount(len(twice), 'line')} with an image of an earlier line and another target, such as "
    again = f"{again}{twice[0]}; several labels of an image go into one line" if twice else ""
    return make_dataset(splits, replace(options, kind=kind, names=names), typed=False).noting(notice, again)


def _labels(lines: Lines, named: Collection[str]) -> Labels:
    """Return the words of a list as labels: whole numbers that are no names as numbers."""
    labels: dict[str, Label] = {word: word for line in lines.lines for word in line.words}
    # Longer ones are refused as too large, too; Python would convert none of more than 4,300 digits.
    labels |= {word: int(word[:40]) for word in labels if _is_whole(word) and word not in named}
    try:
        return pack([[labels[word] for word in line.words] for line in lines.lines], lines.describe)
    except UserError as error:
        raise UserError(f"{lines.key}: {error}") from None


def _numbers(lines: Lines, kind: Kind | None, point: str) -> Labels:
    values = []
    for line in lines.lines:
        for slot, word in enumerate(line.words):
            number = _read_number(word)
            if number is None:
                which = f" in column {lines.columns[slot]}" if lines.columns else ""
                allowed = f" with data.task={(kind or NUMBERS).task}: numbers"
                if point:
                    allowed = f": numbers with a point, as {point}; or data.task=classify if these are names"
                raise lines.error(line, f"'{word}'{which} is not a number. Allowed{allowed}.")
            values.append(number)
    counts = np.array([len(line.words) for line in lines.lines], np.int64)
    return Labels(np.array(values, np.float64), counts, rows=True)


def _read_number(word: str) -> float | None:
    """Return the finite number that a word spells, None if it spells none."""
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _is_whole(word: str) -> bool:
    """Whether a word is a whole number, without a point."""
    return word.removeprefix("-").isdecimal()
