"""From words in lists to targets: a class, labels or numbers for each picture."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from augment.dataset import Target, Task
from augment.errors import UserError, suggest
from augment.filelist import Line, Lines


@dataclass(frozen=True)
class Targets:
    """What the words of two lists mean.

    Attributes:
        task: what the targets are.
        names: of the classes, labels or numbers.
        train: a target for each line of the first list.
        val: of the second one.
    """

    task: Task
    names: tuple[str, ...]
    train: tuple[Target, ...]
    val: tuple[Target, ...]


def understand(train: Lines, val: Lines, *, task: Task | None, classes: tuple[str, ...] | None) -> Targets:
    """Turn words into targets.

    Args:
        train: the list to learn from, whose labels count where no classes are given.
        val: the list to be scored on.
        task: what the words are; None: numbers if they have columns of their own, or if all are and some have a
            fraction; labels if a line has several; else a class each.
        classes: names of the classes or labels; None: those in `train`, sorted, or 0, 1, ... where all are numbers.

    Raises:
        UserError: a line does not fit; the message says which one and why.
    """
    task = task or ("regress" if train.columns else _task(train, val, known=classes is not None))
    if task == "regress":
        first = train.lines[0]
        numbers = _Rows(lambda lines, line: _numbers(lines, line, first))
        return Targets(task, train.columns or _number_names(len(first.words)), numbers.of(train), numbers.of(val))
    if train.columns:
        if task != "multilabel":
            raise UserError("data.targets: several columns of labels. Allowed: data.task=multilabel or regress.")
        flags = _Rows(_flags)
        return Targets(task, train.columns, flags.of(train), flags.of(val))
    names = classes or _names(train)
    places = {name: place for place, name in enumerate(names)}

    def target(lines: Lines, line: Line) -> Target:
        found = [_place(lines, line, word, places) for word in line.words]
        return _hot(found, len(names)) if task == "multilabel" else _only(lines, line, found)

    rows = _Rows(target)
    return Targets(task, names, rows.of(train), rows.of(val))


@dataclass(frozen=True)
class _Rows:
    """Makes a target of each line of a list."""

    target: Callable[[Lines, Line], Target]

    def of(self, lines: Lines) -> tuple[Target, ...]:
        return tuple(self.target(lines, line) for line in lines.lines)


def _task(train: Lines, val: Lines, *, known: bool) -> Task:
    words = [word for lines in (train, val) for line in lines.lines for word in line.words]
    numbers = [_number(word) for word in words]
    if not known and words and None not in numbers and not all(map(_is_whole, words)):
        return "regress"
    several = any(len(line.words) > 1 for lines in (train, val) for line in lines.lines)
    return "multilabel" if several else "classify"


def _names(train: Lines) -> tuple[str, ...]:
    words = {word for line in train.lines for word in line.words}
    if not words:
        raise train.error(train.lines[0], "no label. A line is a picture's path and its label.")
    if all(word.isdecimal() for word in words):
        return _numbered(train)
    return tuple(sorted(words))


def _numbered(train: Lines) -> tuple[str, ...]:
    """Return 0, 1, ... as names, if none is left out."""
    first: dict[int, Line] = {}
    for line in train.lines:
        for word in line.words:
            first.setdefault(int(word), line)
    for expected, number in enumerate(sorted(first)):
        if number != expected:
            raise train.error(
                first[number],
                f"class {number}, but {expected} is nowhere. Allowed: whole numbers from 0 that leave none out, or "
                "data.classes=FILE with a name for each; numbers to predict need data.task=regress.",
            )
    return tuple(map(str, range(len(first))))


def _place(lines: Lines, line: Line, word: str, places: dict[str, int]) -> int:
    """Return the class that a word means: by its name, or by its index where no class is called so."""
    if word in places:
        return places[word]
    if _is_whole(word):
        if 0 <= int(word) < len(places):
            return int(word)
        raise lines.error(
            line,
            f"class {word} is out of range. Allowed: 0 to {len(places) - 1}."
            f"{' Numbers to predict need data.task=regress.' if int(word) < 0 else ''}",
        )
    allowed = suggest(word, places) if len(places) <= 30 else f" Allowed: one of {len(places)} classes."
    raise lines.error(line, f"unknown label '{word}'.{allowed}")


def _only(lines: Lines, line: Line, found: list[int]) -> int:
    if not found:
        raise lines.error(
            line,
            f"{line.path} has no label. Allowed: one; none with data.multilabel=true, where it has none of them.",
        )
    if len(found) > 1:
        raise lines.error(line, f"{len(found)} labels. Allowed: one, or data.multilabel=true.")
    return found[0]


def _hot(found: list[int], count: int) -> tuple[float, ...]:
    return tuple(1.0 if place in found else 0.0 for place in range(count))


def _flags(lines: Lines, line: Line) -> tuple[float, ...]:
    for word, column in zip(line.words, lines.columns, strict=True):
        if _number(word) not in (0.0, 1.0):
            raise lines.error(line, f"{column} is '{word}'. Allowed: 0 or 1.")
    return tuple(map(float, line.words))


def _numbers(lines: Lines, line: Line, first: Line) -> tuple[float, ...]:
    if not line.words:
        raise lines.error(line, f"{line.path} has no number.")
    if len(line.words) != len(first.words):
        raise lines.error(line, f"{len(line.words)} numbers, but {len(first.words)} in the first line of data.train.")
    numbers = []
    for place, word in enumerate(line.words):
        number = _number(word)
        if number is None:
            which = f" in column {lines.columns[place]}" if lines.columns else ""
            raise lines.error(line, f"'{word}'{which} is no number. Allowed with data.task=regress: numbers.")
        numbers.append(number)
    return tuple(numbers)


def _number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _is_whole(word: str) -> bool:
    return word.removeprefix("-").isdecimal()


def _number_names(count: int) -> tuple[str, ...]:
    return ("target",) if count == 1 else tuple(f"target_{place}" for place in range(1, count + 1))


def absent(names: Sequence[str], targets: Sequence[Target]) -> list[str]:
    """Return the classes or labels that none of the targets has."""
    seen = {place for target in targets for place in _having(target)}
    return [name for place, name in enumerate(names) if place not in seen]


def _having(target: Target) -> list[int]:
    return [target] if isinstance(target, int) else [place for place, value in enumerate(target) if value]
