"""Choose the kind of targets from labels, or from the words of image lists, and convert them.

Sources with image-level labels call `make_dataset`, unless folders already fix the classes. `make_dataset` raises an
error that asks for a setting if labels are ambiguous.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import NO_VAL, Dataset, ImageRef, Split
from augment.data.formats.filelist import Line, Lines
from augment.data.formats.text_files import whole_number
from augment.data.targets.class_names import Label, LabeledSplit, Labels, TargetOptions, all_rows, describe_joined, pack
from augment.data.targets.classification import CLASSES
from augment.data.targets.kind import Kind, known_kinds
from augment.data.targets.multilabel import LABELS
from augment.data.targets.regression import NUMBERS
from augment.support.errors import UserError, for_each
from augment.support.formatting import amount, list_some, plural


def make_dataset(splits: Sequence[LabeledSplit], options: TargetOptions, *, has_number_types: bool = True) -> Dataset:
    """Convert labels to targets.

    Without a task in the options, the labels decide. If all images have the same number of floats, these are numbers to
    predict. Rows of 0 and 1 are labels. Lists are labels if any image has more than one label, but lists of 0 and 1
    with one length count as rows. Otherwise, each image has one class.

    Args:
        splits: train with its labels, and val if there is one.
        options: the settings about targets.
        has_number_types: whether the source distinguishes floats from integers. If not, floats do not imply regression.

    Raises:
        UserError: the splits contradict each other, or a label is invalid. The message names it.
    """
    requested = known_kinds().get(options.task)
    for split in splits:
        if not len(split.labels.counts):
            raise UserError(f"{split.key} has no images. Check the setting.")
    notice = ""
    if _are_rows(splits, options, has_number_types=has_number_types):
        splits = [replace(split, labels=replace(split.labels, rows=True)) for split in splits]
        rows = all_rows(splits)
        kind = requested or _kind_of_rows(splits[0].key, rows, options)
        is_inferred = not (requested or options.names or options.classes)
        if kind == NUMBERS and is_inferred and rows[0].shape[1] == 1:
            notice = describe_whole_numbers(np.concatenate(rows).ravel())
    else:
        several = any((split.labels.counts > 1).any() for split in splits)
        kind = requested or (LABELS if several else CLASSES)
    names, targets = kind.read(splits, options)
    if kind == NUMBERS:
        notice = notice or _describe_rounding(np.concatenate(targets))
    train, *val = (Split(tuple(split.images), own, kind) for split, own in zip(splits, targets, strict=True))
    return Dataset(names, train, val[0] if val else NO_VAL).noting(notice)


def describe_whole_numbers(values: NDArray[Any]) -> str:
    """Return a notice if numbers to predict may be classes, because most have no fraction."""
    fractions = int(np.count_nonzero(values != np.floor(values)))
    if fractions >= len(values) / 2:
        return ""
    return (
        f"the labels are floats, so the task is regression, but only {fractions} of {len(values)} "
        f"{plural(fractions, 'has', 'have')} a fraction. Set data.task=classify or data.task=regress"
    )


def _describe_rounding(values: NDArray[np.float64]) -> str:
    """Return a notice if float32 rounds a number to predict by more than a thousandth of the standard deviation."""
    error, spread = np.abs(values - values.astype(np.float32)).max(axis=0), values.std(axis=0)
    wrong = (error > 1e-3 * spread) & (spread > 0)
    if not wrong.any():
        return ""
    column = int(np.argmax(wrong))
    return (
        f"data: float32 rounds numbers to predict, such as {values[0, column]:.17g}, by up to {error[column]:.3g}, but "
        f"their standard deviation is only {spread[column]:.3g}. Subtract an offset"
    )


def _are_rows(splits: Sequence[LabeledSplit], options: TargetOptions, *, has_number_types: bool) -> bool:
    """Whether each image has a row of numbers instead of a list of labels."""
    labels = [split.labels for split in splits]
    if all(own.rows for own in labels):
        return True
    if any(own.rows and own.counts[0] > 1 for own in labels):
        raise UserError("data: one split has rows of numbers, but the other has labels. Use rows or labels in both.")
    if options.names or options.task == NUMBERS.task or _are_columns(labels):
        return True
    has_floats = has_number_types and any(own.values.dtype.kind == "f" for own in labels)
    return has_floats and all(len(np.unique(own.counts)) == 1 and len(own.values) for own in labels)


def _are_columns(labels: Sequence[Labels]) -> bool:
    """Whether each image has a 0 or 1 for every label, instead of the numbers of its labels."""
    counts = np.unique(np.concatenate([own.counts for own in labels]))
    is_binary = all(not own.words and bool(np.isin(own.values, (0, 1)).all()) for own in labels)
    return len(counts) == 1 and counts[0] > 1 and is_binary


def _kind_of_rows(key: str, rows: Sequence[NDArray[Any]], options: TargetOptions) -> Kind:
    width = rows[0].shape[1]
    has_floats = any(values.dtype.kind == "f" for values in rows)
    is_binary = all(bool(np.isin(values, (0, 1)).all()) for values in rows)
    is_one_hot = is_binary and all(bool((values.sum(axis=1) == 1).all()) for values in rows)
    if width == 1 and not options.names:
        return NUMBERS if has_floats and not options.classes else CLASSES
    if not is_binary and (has_floats or options.names):
        return NUMBERS
    if is_binary and not (is_one_hot or options.names or (has_floats and not options.classes)):
        return LABELS
    raise UserError(
        f"{key}: {list_some(options.names) or f'the {width} numbers of each image'} may be a class, labels or numbers "
        "to predict. Set data.task to classify, multilabel or regress."
    )


# A number with a decimal comma.
_COMMA = re.compile(r"-?\d*,\d+")


def make_list_dataset(lists: Sequence[Lines], images: Sequence[Sequence[ImageRef]], options: TargetOptions) -> Dataset:
    """Convert image lists to a dataset.

    Words become numbers if they spell numbers, unless they are class names.

    Args:
        lists: the list of train, and the list of val if there is one.
        images: the images of each list.
        options: the settings about targets.

    Raises:
        UserError: a line is invalid. The message names it.
    """
    # If the settings ask for classes or labels, fractions are names.
    fractions = bool(options.names) or options.task == NUMBERS.task or not (options.task or options.classes)
    read = _read_words(lists, options, fractions=fractions)
    if fractions:
        _check_commas(lists)
    splits = []
    for lines, files in zip(lists, images, strict=True):
        try:
            labels = pack([list(map(read.__getitem__, line.words)) for line in lines.lines], lines.describe)
        except UserError as error:
            raise UserError(f"{lines.key}: {error}") from None
        splits.append(LabeledSplit(lines.key, files, labels, lines.describe))
    dataset = make_dataset(splits, options)
    dataset = dataset.noting(describe_joined(dataset.classes), *_describe_repeated(lists))
    if dataset.kind == LABELS:
        dataset = dataset.noting(_describe_equal_labels(lists))
    if dataset.kind == NUMBERS and len(dataset.classes) == 1 and lists[0].column not in ("", "label"):
        return replace(dataset, classes=(lists[0].column,))
    return dataset


def _read_words(lists: Sequence[Lines], options: TargetOptions, *, fractions: bool) -> dict[str, Label]:
    """Return the number or the name that each word of the lists stands for."""
    names = set(options.classes or ())
    words = {word for lines in lists for line in lines.lines for word in line.words}
    read: dict[str, Label] = {word: _value(word, fractions=fractions) for word in words}
    if options.names or options.task == NUMBERS.task or any(isinstance(value, float) for value in read.values()):
        read |= {word: int(word[:40]) for word, value in read.items() if word == value and word.isdecimal()}
    elif all(map(str.isdecimal, words)) and not all(isinstance(value, int) for value in read.values()):
        read = {word: word for word in words}  # such as 007, next to 7 in the same or another list
    # Words that are class names stay text, unless all words are whole numbers and some are not class names.
    if words <= names or not all(isinstance(value, int) for value in read.values()):
        read |= {word: word for word in names & words}
    return read


def _check_commas(lists: Sequence[Lines]) -> None:
    """Raise an error about numbers with a decimal comma."""
    for lines in lists:

        def check(line: Line, lines: Lines = lines) -> None:
            if comma := next(filter(_COMMA.fullmatch, line.words), ""):
                raise lines.error(
                    line,
                    f"'{comma}' is not a number. Write a decimal point, or set data.task=classify if it is a name.",
                )

        for_each(check, lines.lines)


def _describe_repeated(lists: Sequence[Lines]) -> Iterator[str]:
    """Yield notices about images in several lines: with different targets, and with equal targets."""
    different, equal = list[str](), list[str]()
    for lines in lists:
        first: dict[str, Line] = {}
        for number, line in enumerate(lines.lines):
            earlier = first.setdefault(line.path, line)
            if earlier is not line:
                repeated = equal if earlier.words == line.words else different
                repeated.append(lines.describe(number))
    if different:
        count = amount(len(different), "line lists", "lines list")
        yield (
            f"data: {count} an image again with a different target, such as {different[0]}. Write several labels of an "
            "image in one line"
        )
    if equal:
        count = amount(len(equal), "line is", "lines are")
        yield f"data: {count} repeated, so some images count several times, such as {equal[0]}"


def _describe_equal_labels(lists: Sequence[Lines]) -> str:
    """Return a notice about lines that repeat a label, because their columns may have other meanings."""
    found = [(lines, line) for lines in lists for line in lines.lines if len(set(line.words)) < len(line.words)]
    if not found:
        return ""
    lines, line = found[0]
    return (
        f"data: {amount(len(found), 'line repeats', 'lines repeat')} a label, such as line {line.number} of "
        f"{lines.file}. If only the first column after the path is a label, remove the other columns"
    )


def _value(word: str, *, fractions: bool) -> Label:
    """Return the number that a word spells, or the word. The number may have a fraction only if `fractions` is true."""
    if word.removeprefix("-").isdecimal():
        return whole_number(word, word)
    try:
        number = float(word) if fractions and "_" not in word else math.nan  # Python reads 1_2 as 12
    except ValueError:
        return word
    return number if math.isfinite(number) else word
