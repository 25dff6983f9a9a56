"""Turn the words of image lists into labels, and refuse lists that are ambiguous."""

import logging
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from augment.data.dataset import Dataset, ImageRef, Task
from augment.data.formats.filelist import Lines
from augment.data.targets.interpretation import TargetOptions, make_dataset
from augment.data.targets.labels import Label, LabeledSplit, Labels, pack
from augment.support.errors import UserError
from augment.support.text import amount, list_some, plural

logger = logging.getLogger(__name__)

# Words among numbers are typing errors if at least this many numbers have a fraction, and at most this share of the
# words, or one per list, are not numbers.
_FRACTIONS, _SLIPS = 3, 0.1

# With this many images or more, a column that differs in every line is not the class.
_UNIQUE_FROM = 8

_LISTED = 30  # columns that fit into a message

_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")


def make_list_dataset(lists: Sequence[Lines], images: Sequence[Sequence[ImageRef]], options: TargetOptions) -> Dataset:
    """Turn two lists into a dataset.

    Words are numbers to predict if they have columns of their own, or if all are numbers and some have a fraction.

    Args:
        lists: the list of train, and that of val if there is one.
        images: the images of each.
        options: the settings about targets; the names of the targets are those of the columns.

    Raises:
        UserError: a line does not fit; the message says which one and why.
    """
    train, val = lists[0], lists[-1]
    task, known = options.task, options.classes is not None
    _refuse_unnamed_flags(train, val, "classify" if known and not task else task)
    if not (task or train.columns or known):
        _refuse_slips(lists)
        task = "regress" if _are_numbers(lists) else None
    if train.columns and task == "classify":
        raise UserError("data.targets: several columns of labels. Allowed: data.task=multilabel or regress.")
    numbers = bool(train.columns) or task == "regress"
    if numbers:
        _refuse_unnamed_numbers(lists)
    if not (numbers or task or known) and all(len(line.words) < 2 for lines in lists for line in lines.lines):
        _refuse_unnamed_names(train)
    # Words are names of classes, unless all are whole numbers and some are not names.
    words = {word for lines in lists for line in lines.lines for word in line.words}
    classes = set(options.classes or ())
    named = classes if words <= classes or not all(map(_is_whole, words)) else ()
    splits = []
    for lines, files in zip(lists, images, strict=True):
        labels = _numbers(lines, task or "regress") if numbers else _labels(lines, named)
        splits.append(LabeledSplit(lines.key, files, labels, lines.describe))
    single = numbers and train.column not in ("", "label") and all(len(line.words) == 1 for line in train.lines)
    names = (train.column,) if single else train.columns
    return make_dataset(splits, replace(options, task=task, names=names), typed=False)


def _are_numbers(lists: Sequence[Lines]) -> bool:
    """Whether words are numbers to predict."""
    words = [word for lines in lists for line in lines.lines for word in line.words]
    if not words or None in map(_read_number, words) or all(map(_is_whole, words)):
        return False
    points = [word for word in words if not _is_whole(word)]
    fractions = [word for word in points if float(word) % 1]  # pandas writes classes as 1.0 if a cell is empty
    if len(points) < len(words) / 2 or not fractions:
        logger.warning(
            "%d of %s %s a fraction, and %s is written with a point, so all are numbers to predict; data.task=classify "
            "if they are classes, data.task=regress if not",
            len(fractions), amount(len(words), "label"), plural(len(fractions), "has", "have"), points[0],
        )  # fmt: skip
    return True


def _labels(lines: Lines, named: Collection[str]) -> Labels:
    """Return the words of a list as labels: whole numbers that are no names as numbers."""
    labels: dict[str, Label] = {word: word for line in lines.lines for word in line.words}
    # Longer ones are refused as too large, too; Python would convert none of more than 4,300 digits.
    labels |= {word: int(word[:40]) for word in labels if _is_whole(word) and word not in named}
    try:
        return pack([[labels[word] for word in line.words] for line in lines.lines], lines.describe)
    except UserError as error:
        raise UserError(f"{lines.key}: {error}") from None


def _numbers(lines: Lines, task: Task) -> Labels:
    values = []
    for line in lines.lines:
        for slot, word in enumerate(line.words):
            number = _read_number(word)
            if number is None:
                which = f" in column {lines.columns[slot]}" if lines.columns else ""
                raise lines.error(line, f"'{word}'{which} is not a number. Allowed with data.task={task}: numbers.")
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


def _refuse_slips(splits: Sequence[Lines]) -> None:
    """Refuse lists of fractional numbers in which a few labels are not numbers: all would become names of classes.

    Raises:
        UserError: the message names the first such line and what it contains.
    """
    cells = [(lines, line, word) for lines in splits for line in lines.lines for word in line.words or ("",)]
    odd = [cell for cell in cells if _read_number(cell[2]) is None]
    commas = {word for _, _, word in odd if _DECIMAL_COMMA.fullmatch(word)}
    slips = [word for _, _, word in odd if word not in commas]
    fractions = {word for _, _, word in cells if _read_number(word) is not None and not _is_whole(word)} | commas
    if not odd or len(fractions) < _FRACTIONS or len(slips) > max(len(splits), _SLIPS * len(cells)):
        return
    lines, line, word = odd[0]
    what = f"'{word}', which is not a number" if word else "no number"
    more = f" (and {len(odd) - 1:,} more)" if len(odd) > 1 else ""
    point = "numbers, with a point for the fraction" if _DECIMAL_COMMA.fullmatch(word) else "numbers"
    raise lines.error(
        line,
        f"{line.path} has {what}{more}, where other labels are fractional numbers. "
        f"Allowed: {point}; or data.task=classify if these are names.",
    )


def _refuse_unnamed_flags(train: Lines, val: Lines, task: Task | None) -> None:
    """Refuse lists with several columns of 0 and 1 if one of them is the class only because of its position.

    Raises:
        UserError: the message names the columns.
    """
    flags = [name for name in train.flags if name in val.flags]
    if len(flags) < 2 or train.flags[0] != flags[0] or task in ("classify", "regress"):
        return
    listed = ",".join(flags[:_LISTED]) + (",..." if len(flags) > _LISTED else "")
    raise UserError(
        f"{train.key}: {train.file} has {len(flags)} columns of 0 and 1, {list_some(flags)}, and no column 'label'. "
        f"Allowed: data.targets=[{listed}] data.multilabel=true for labels, or data.label={flags[0]} if that "
        "column is the class."
    )


def _refuse_unnamed_numbers(splits: Sequence[Lines]) -> None:
    """Refuse lists with several columns of which one is predicted only because of its position.

    Raises:
        UserError: the message names the columns.
    """
    for lines in splits:
        if len(lines.guessed) > 1:
            listed = ",".join(lines.guessed[:_LISTED])
            raise UserError(
                f"{lines.key}: {lines.file} has no column 'label', and the numbers to predict may be in any of "
                f"{list_some(lines.guessed)}. Allowed: those of data.targets=[{listed}] that are to be predicted."
            )


def _refuse_unnamed_names(train: Lines) -> None:
    """Refuse a list whose class column was chosen by position and differs in every line.

    Raises:
        UserError: the message names the column and the others.
    """
    words = [line.words for line in train.lines]
    if not train.guessed or len(words) < _UNIQUE_FROM or len(set(words)) < len(words):
        return
    taken, *others = train.guessed
    allowed = [f"data.label or data.targets with the right column of {list_some(others)}"] if others else []
    if all(_is_whole(word) for some in words for word in some):
        allowed.append(f"data.targets=[{taken}] if it is a number to predict")
    raise UserError(
        f"{train.key}: {train.file} has no column 'label', and '{taken}', the column in its position, differs in "
        f"each of its {len(words):,} lines. Allowed: {', '.join([*allowed, f'data.label={taken} if it is the class'])}."
    )
