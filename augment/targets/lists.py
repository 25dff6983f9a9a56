"""From words in lists to targets: a class, labels or numbers for each picture."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from augment.dataset import Target, Task
from augment.errors import UserError
from augment.filelist import Line, Lines
from augment.targets.classes import Targets, understand_labels
from augment.targets.labels import Label, Labeled, pack
from augment.targets.mistaken import (
    refuse_flags_as_numbers,
    refuse_slips,
    refuse_unnamed_flags,
    refuse_unnamed_names,
    warn_of_joined,
    warn_of_measures,
)
from augment.targets.numerals import is_whole, read_number

logger = logging.getLogger(__name__)


def understand(
    train: Lines, val: Lines, *, task: Task | None, classes: tuple[str, ...] | None, offset: int = 0
) -> Targets:
    """Turn words into targets.

    Args:
        train: the list to learn from, whose labels count where no classes are given.
        val: the list to be scored on.
        task: what the words are; None: numbers if they have columns of their own, or if all are and some have a
            fraction; labels if a line has several; else a class each.
        classes: names of the classes or labels; None: those in `train`, sorted, or 0, 1, ... where all are numbers.
        offset: number of the first class, where words are numbers and no names.

    Raises:
        UserError: a line does not fit; the message says which one and why.
    """
    guessed = task is None
    refuse_unnamed_flags(train, val, "classify" if guessed and classes else task)
    if guessed and train.columns:
        refuse_flags_as_numbers(train, val)
    elif guessed and not classes:
        refuse_slips((train, val))
    task = task or ("regress" if train.columns else _task(train, val, known=classes is not None))
    if guessed and task == "classify" and not classes:
        refuse_unnamed_names(train)
        warn_of_measures(train)
    if task == "regress":
        first = train.lines[0]
        numbers = _Rows(lambda lines, line: _numbers(lines, line, first))
        return Targets(task, train.columns or number_names(len(first.words)), numbers.of(train), numbers.of(val))
    if train.columns:
        if task != "multilabel":
            raise UserError("data.targets: several columns of labels. Allowed: data.task=multilabel or regress.")
        flags = _Rows(_flags)
        return Targets(task, train.columns, flags.of(train), flags.of(val))
    if not classes and (guessed or task == "multilabel"):
        warn_of_joined((train, val))
    named = _named(train, val, classes or ())
    try:
        splits = [_labeled(lines, named) for lines in (train, val)]
        return understand_labels(*splits, classes=classes, offset=offset, task=task)
    except UserError as error:
        # Numbers that are no classes may be meant to be predicted.
        words = [word for line in train.lines for word in line.words]
        maybe = guessed and not classes and words and all(map(is_whole, words))
        raise UserError(f"{error}{' Numbers to predict need data.task=regress.' if maybe else ''}") from None


@dataclass(frozen=True)
class _Rows:
    """Makes a target of each line of a list."""

    target: Callable[[Lines, Line], Target]

    def of(self, lines: Lines) -> tuple[Target, ...]:
        return tuple(self.target(lines, line) for line in lines.lines)


def _task(train: Lines, val: Lines, *, known: bool) -> Task:
    words = [word for lines in (train, val) for line in lines.lines for word in line.words]
    numbers = [read_number(word) for word in words]
    if not known and words and None not in numbers and not all(map(is_whole, words)):
        fractions = [word for word in words if not is_whole(word)]
        if len(fractions) < len(words) / 2:
            logger.warning(
                "%d of %d labels have a fraction, as %s, so all are numbers to predict; data.task=classify if they are "
                "classes, data.task=regress if not", len(fractions), len(words), fractions[0],
            )  # fmt: skip
        return "regress"
    several = any(len(line.words) > 1 for lines in (train, val) for line in lines.lines)
    return "multilabel" if several else "classify"


def _named(train: Lines, val: Lines, classes: Collection[str]) -> Collection[str]:
    """Return the names of classes that words may be: none where all words are numbers and not all are names too."""
    words = {word for lines in (train, val) for line in lines.lines for word in line.words}
    return set(classes) if words <= set(classes) or not all(map(is_whole, words)) else ()


def _labeled(lines: Lines, named: Collection[str]) -> Labeled:
    """Return the labels of a list: numbers, where words are some and no names."""

    def name(place: int) -> str:
        line = lines.lines[place]
        return f"line {line.number} of {lines.file}: {line.path}"

    meant: dict[str, Label] = {word: word for line in lines.lines for word in line.words}
    meant |= {word: int(word) for word in meant if is_whole(word) and word not in named}
    labels = [[meant[word] for word in line.words] for line in lines.lines]
    try:
        return Labeled(lines.key, pack(labels, name), name)
    except UserError as error:
        raise UserError(f"{lines.key}: {error}") from None


def _flags(lines: Lines, line: Line) -> tuple[float, ...]:
    for word, column in zip(line.words, lines.columns, strict=True):
        if read_number(word) not in (0.0, 1.0):
            raise lines.error(line, f"{column} is '{word}'. Allowed: 0 or 1.")
    return tuple(map(float, line.words))


def _numbers(lines: Lines, line: Line, first: Line) -> tuple[float, ...]:
    if not line.words:
        raise lines.error(line, f"{line.path} has no number.")
    if len(line.words) != len(first.words):
        raise lines.error(line, f"{len(line.words)} numbers, but {len(first.words)} in the first line of data.train.")
    numbers = []
    for place, word in enumerate(line.words):
        number = read_number(word)
        if number is None:
            which = f" in column {lines.columns[place]}" if lines.columns else ""
            raise lines.error(line, f"'{word}'{which} is no number. Allowed with data.task=regress: numbers.")
        numbers.append(number)
    return tuple(numbers)


def number_names(count: int) -> tuple[str, ...]:
    """Return names for the numbers of a picture where nobody has given any."""
    return ("target",) if count == 1 else tuple(f"target_{place}" for place in range(1, count + 1))
