"""Interpret the labels of a data set, or the words of image lists: which kind of targets they are.

Every source calls `make_dataset`. Where labels are ambiguous, it asks instead of guessing.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import NO_VAL, Dataset, ImageRef, Split
from augment.data.formats.filelist import Line, Lines
from augment.data.formats.text_files import whole_number
from augment.data.targets.class_names import Label, LabeledSplit, TargetOptions, all_rows, pack
from augment.data.targets.classification import CLASSES
from augment.data.targets.kind import Kind, known_kinds
from augment.data.targets.multilabel import LABELS
from augment.data.targets.regression import NUMBERS
from augment.support.errors import UserError
from augment.support.formatting import amount, list_some, plural


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
    asked = known_kinds().get(options.task)
    for split in splits:
        if not len(split.labels.counts):
            raise UserError(f"{split.key}: holds no images.")
    notice = ""
    if _are_rows(splits, options, typed=typed):
        splits = [replace(split, labels=replace(split.labels, rows=True)) for split in splits]
        rows = all_rows(splits)
        kind = asked or _kind_of_rows(splits[0].key, rows, options)
        told = asked or options.names or options.classes
        if kind == NUMBERS and not told and rows[0].shape[1] == 1:
            notice = describe_whole_numbers(np.concatenate(rows).ravel())
    else:
        several = any((split.labels.counts > 1).any() for split in splits)
        kind = asked or (LABELS if several else CLASSES)
    names, targets = kind.read(splits, options)
    if strange := next((name for name in names if "\0" in name), None):
        raise UserError(f"data: the name {strange!r} has a NUL character in it. Allowed: text.")
    if kind == NUMBERS:
        notice = notice or _describe_rounding(np.array([row for some in targets for row in some]))
    train, *val = (Split(tuple(split.images), of, kind) for split, of in zip(splits, targets, strict=True))
    return Dataset(names, train, val[0] if val else NO_VAL).noting(notice)


def describe_whole_numbers(values: NDArray[Any]) -> str:
    """Describe numbers to predict that no setting asks for, and that may be classes, as most have no fraction."""
    fractions = int(np.count_nonzero(values != np.floor(values)))
    if fractions >= len(values) / 2:
        return ""
    few = f"only {fractions} of {len(values)} {plural(fractions, 'has', 'have')} a fraction"
    return f"the labels are floats, so all are numbers to predict, but {few}; data.task=classify or regress decides it"


def _describe_rounding(values: NDArray[np.float64]) -> str:
    """Describe numbers to predict that float32 rounds by a thousandth of their spread or more, if there are any."""
    error, spread = np.abs(values - values.astype(np.float32)).max(axis=0), values.std(axis=0)
    wrong = (error > 1e-3 * spread) & (spread > 0)
    if not wrong.any():
        return ""
    column = int(np.argmax(wrong))
    what = f"data: float32 rounds numbers to predict, such as {values[0, column]:.17g}, by up to {error[column]:.3g}"
    return f"{what}, and their standard deviation is {spread[column]:.3g}. Subtract an offset from them"


def _are_rows(splits: Sequence[LabeledSplit], options: TargetOptions, *, typed: bool) -> bool:
    """Whether each image has a row of numbers, rather than a list of labels."""
    labels = [split.labels for split in splits]
    if all(some.rows for some in labels):
        return True
    if any(some.rows and some.counts[0] > 1 for some in labels):
        raise UserError("data: one of train and val has rows of numbers, the other labels. Allowed: the same in both.")
    numbers = typed and any(some.values.dtype.kind == "f" for some in labels)
    numbers = numbers and all(len(np.unique(some.counts)) == 1 and len(some.values) for some in labels)
    return numbers or bool(options.names) or options.task == NUMBERS.task


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
    what = f"{list_some(options.names) or f'the {width} numbers of each image'} may mean a class, labels or numbers"
    raise UserError(f"{key}: {what} to predict. Allowed: data.task=classify, multilabel or regress.")


# A number with a comma for a point.
_COMMA = re.compile(r"-?\d*,\d+")


def make_list_dataset(lists: Sequence[Lines], images: Sequence[Sequence[ImageRef]], options: TargetOptions) -> Dataset:
    """Turn the list of train, and that of val if there is one, into a dataset of their images.

    Words are numbers if they spell one, except for names of classes.

    Raises:
        UserError: a line does not fit; the message says which one and why.
    """
    train, names = lists[0], set(options.classes or ())
    words = {word for lines in lists for line in lines.lines for word in line.words}
    # Where classes or labels are asked for, fractions are names.
    fractions = bool(options.names) or options.task == NUMBERS.task or not (options.task or names)
    read: dict[str, Label] = {word: _value(word, fractions=fractions) for word in words}
    if options.names or options.task == NUMBERS.task or any(isinstance(value, float) for value in read.values()):
        read |= {word: int(word[:40]) for word, value in read.items() if word == value and word.isdecimal()}
    # Words are names of classes, unless all are whole numbers and some are not names.
    if words <= names or not all(isinstance(value, int) for value in read.values()):
        read |= {word: word for word in names & words}
    splits = []
    twice, same = list[str](), list[str]()
    for lines, files in zip(lists, images, strict=True):
        first: dict[str, Line] = {}
        for number, line in enumerate(lines.lines):
            earlier = first.setdefault(line.path, line)
            if earlier is not line:
                (same if earlier.words == line.words else twice).append(lines.describe(number))
        for line in lines.lines if fractions else ():
            if comma := next(filter(_COMMA.fullmatch, line.words), ""):
                allowed = "numbers with a point, or data.task=classify for names"
                raise lines.error(line, f"'{comma}' is not a number. Allowed: {allowed}.")
        try:
            labels = pack([[read[word] for word in line.words] for line in lines.lines], lines.describe)
        except UserError as error:
            raise UserError(f"{lines.key}: {error}") from None
        splits.append(LabeledSplit(lines.key, files, labels, lines.describe))
    again = f"data: {amount(len(twice), 'line')} with an image of an earlier line and another target, such as "
    again = f"{again}{twice[0]}; several labels of an image go into one line" if twice else ""
    repeated = f"data: {amount(len(same), 'line')} repeated, so that the images count several times, such as "
    repeated = f"{repeated}{same[0]}" if same else ""
    dataset = make_dataset(splits, options).noting(again, repeated)
    if dataset.kind == NUMBERS and len(dataset.classes) == 1 and train.column not in ("", "label"):
        return replace(dataset, classes=(train.column,))
    return dataset


def _value(word: str, *, fractions: bool) -> Label:
    """Return the number that a word spells, whole unless `fractions` are allowed, or the word."""
    if word.removeprefix("-").isdecimal():
        return whole_number(word, word)
    try:
        number = float(word) if fractions and "_" not in word else math.nan  # Python reads 1_2 as 12
    except ValueError:
        return word
    return number if math.isfinite(number) else word
