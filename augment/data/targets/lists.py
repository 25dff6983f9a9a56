"""Turn the words of image lists into labels, and refuse lists that are ambiguous."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from augment.data.dataset import Dataset, ImageRef
from augment.data.formats.filelist import Lines
from augment.data.targets.given import Label, LabeledSplit, Labels, pack
from augment.data.targets.interpretation import describe_whole_numbers, make_dataset
from augment.data.targets.kind import TargetOptions
from augment.data.targets.numbers import NUMBERS
from augment.support.errors import UserError

# Words among numbers are typing errors if at least this many numbers have a fraction, and at most this share of the
# words, or one per list, are not numbers.
_FRACTIONS, _SLIPS = 3, 0.1

# A column whose words differ in more than this share of the lines, if there are that many, is not the class.
_DISTINCT, _DISTINCT_FROM = 0.9, 8


def make_list_dataset(lists: Sequence[Lines], images: Sequence[Sequence[ImageRef]], options: TargetOptions) -> Dataset:
    """Turn the list of train, and that of val if there is one, into a dataset of their images.

    Words are numbers to predict if they have columns of their own, or if all are numbers and some have a fraction.

    Raises:
        UserError: a line does not fit; the message says which one and why.
    """
    train, kind, notice = lists[0], options.kind, ""
    words = [word for lines in lists for line in lines.lines for word in line.words]
    if not (kind or train.columns or options.classes):
        _refuse_slips(lists)
        if _are_numbers(words):
            point = next(word for word in words if not _is_whole(word))
            kind = NUMBERS
            notice = describe_whole_numbers(f"{point} is written with a point", np.array(words, np.float64))
    numbers = bool(train.columns) or kind == NUMBERS
    if train.guessed and not (numbers or kind or options.classes) and _differ([line.words for line in train.lines]):
        raise UserError(
            f"{train.key}: {train.file} has no column 'label', and '{train.column}' differs in nearly every line. "
            "Allowed: data.label=NAME for the class, or data.targets=[NAME] for a number."
        )
    # Words are names of classes, unless all are whole numbers and some are not names.
    classes = set(options.classes or ())
    named = classes if set(words) <= classes or not all(map(_is_whole, words)) else ()
    splits = []
    for lines, files in zip(lists, images, strict=True):
        labels = _numbers(lines, (kind or NUMBERS).task) if numbers else _labels(lines, named)
        splits.append(LabeledSplit(lines.key, files, labels, lines.describe))
    single = numbers and train.column not in ("", "label") and all(len(line.words) == 1 for line in train.lines)
    names = (train.column,) if single else train.columns
    return make_dataset(splits, replace(options, kind=kind, names=names), typed=False).noting(notice)


def _are_numbers(words: Sequence[str]) -> bool:
    """Whether words are numbers to predict."""
    return bool(words) and None not in map(_read_number, words) and not all(map(_is_whole, words))


def _labels(lines: Lines, named: Collection[str]) -> Labels:
    """Return the words of a list as labels: whole numbers that are no names as numbers."""
    labels: dict[str, Label] = {word: word for line in lines.lines for word in line.words}
    # Longer ones are refused as too large, too; Python would convert none of more than 4,300 digits.
    labels |= {word: int(word[:40]) for word in labels if _is_whole(word) and word not in named}
    try:
        return pack([[labels[word] for word in line.words] for line in lines.lines], lines.describe)
    except UserError as error:
        raise UserError(f"{lines.key}: {error}") from None


def _numbers(lines: Lines, task: str) -> Labels:
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

    Numbers with a decimal comma are no numbers here, however many there are.
    """
    cells = [(lines, line, word) for lines in splits for line in lines.lines for word in line.words or ("",)]
    odd = [cell for cell in cells if _read_number(cell[2]) is None]
    meant = [word.replace(",", ".", 1) for _, _, word in cells]
    slips = sum(_read_number(word) is None for word in meant)
    fractions = {word for word in meant if _read_number(word) is not None and not _is_whole(word)}
    if not odd or (slips and (len(fractions) < _FRACTIONS or slips > max(len(splits), _SLIPS * len(cells)))):
        return
    lines, line, word = odd[0]
    what = f"'{word}', which is not a number" if word else "no number"
    more = f" (and {len(odd) - 1:,} more)" if len(odd) > 1 else ""
    raise lines.error(
        line,
        f"{line.path} has {what}{more}, where other labels are fractional numbers. "
        "Allowed: numbers, with a point for the fraction; or data.task=classify if these are names.",
    )


def _differ(words: Sequence[tuple[str, ...]]) -> bool:
    """Whether nearly every line has another word, so that these are hardly classes."""
    single = len(words) >= _DISTINCT_FROM and all(len(of_line) < 2 for of_line in words)
    return single and len(set(words)) > _DISTINCT * len(words)
