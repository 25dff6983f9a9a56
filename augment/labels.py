"""From the labels that pictures come with, numbers or names, one or several each, to classes and targets."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.dataset import Dataset, Picture, Split, Target, Task
from augment.errors import UserError, suggest

Label = int | float | str

logger = logging.getLogger(__name__)

_SHOWN = 5
_LISTED = 30  # classes that fit into a message

# Classes that have no names are made up to the highest number; one beyond is no class but an id. Targets of several
# labels are as long as there are classes, so of these there are to be fewer.
_MAX_CLASSES = {"classify": 1_000_000, "multilabel": 10_000}


@dataclass(frozen=True)
class Labels:
    """Labels of some pictures.

    Attributes:
        values: (L,) those of all pictures, one after the other: int64, float64, or where they are text, int64 places in
            `words`.
        counts: (N,) int64, how many of them are each picture's.
        words: the labels that are text, each once, sorted; empty if they are numbers.
    """

    values: NDArray[Any]
    counts: NDArray[np.int64]
    words: tuple[str, ...] = ()

    def owner(self, place: int) -> int:
        """Return which picture a label belongs to."""
        return int(np.searchsorted(np.cumsum(self.counts), place, side="right"))

    def written(self, place: int) -> str:
        """Return a label as people write it."""
        return repr(self.words[self.values[place]]) if self.words else f"{self.values[place]:.15g}"


@dataclass(frozen=True)
class Labeled:
    """The labels of a split.

    Attributes:
        key: of the setting that the pictures come from, for messages.
        labels: of all pictures.
        name: says what people call a picture, given its place in the split.
        names: names of the classes, by number, that come with the pictures.
    """

    key: str
    labels: Labels
    name: Callable[[int], str]
    names: tuple[str, ...] | None = None

    def said(self, place: int) -> str:
        """Say which picture a label belongs to, and the label."""
        return f"{self.name(self.labels.owner(place))} has the label {self.labels.written(place)}"

    def error(self, wrong: NDArray[np.bool_], what: str) -> UserError:
        """Return an error about the first of some labels, (L,)."""
        return UserError(f"{self.key}: {self.said(int(np.argmax(wrong)))}{what}")


@dataclass(frozen=True)
class Targets:
    """What the labels of two splits mean.

    Attributes:
        task: what the targets are.
        names: of the classes, labels or numbers.
        train: a target for each picture to learn from.
        val: for each of those to be scored on.
    """

    task: Task
    names: tuple[str, ...]
    train: tuple[Target, ...]
    val: tuple[Target, ...]

    def of(self, train: Sequence[Picture], val: Sequence[Picture]) -> Dataset:
        """Return the dataset of these targets and their pictures."""
        return Dataset(self.names, Split(tuple(train), self.train), Split(tuple(val), self.val), self.task)


def pack(labels: Sequence[Sequence[Label]], name: Callable[[int], str]) -> Labels:
    """Make arrays of the labels of each picture.

    Args:
        labels: of each picture.
        name: what people call a picture, given its place.

    Raises:
        UserError: some labels are text and some are numbers, or one is too large a number.
    """
    counts = np.fromiter(map(len, labels), np.int64, len(labels))
    flat = list(chain.from_iterable(labels))
    kinds = set(map(type, flat))
    if str not in kinds:
        try:
            return Labels(np.array(flat, np.float64 if float in kinds else np.int64), counts)
        except OverflowError:
            large = next(i for i, label in enumerate(flat) if not isinstance(label, str) and abs(label) >= 2**63)
            place = int(np.searchsorted(np.cumsum(counts), large, side="right"))
            raise UserError(f"{name(place)} has the label {flat[large]}, which is no number of a class.") from None
    texts = [label for label in flat if isinstance(label, str)]
    words = sorted(set(texts))
    places = {word: place for place, word in enumerate(words)}
    if len(texts) < len(flat):
        first: dict[bool, str] = {}
        for place, label in ((place, label) for place, some in enumerate(labels) for label in some):
            if isinstance(label, str) not in first:
                first[isinstance(label, str)] = f"{name(place)} has the label {label!r}"
        raise _mixed(first)
    return Labels(np.fromiter(map(places.__getitem__, texts), np.int64, len(texts)), counts, tuple(words))


def join(parts: Sequence[Labels], name: Callable[[int], str]) -> Labels:
    """Return the labels of several files, one after the other.

    Args:
        parts: the labels of each file.
        name: what people call a picture, given its place among those of all files.

    Raises:
        UserError: those of one file are text, those of another numbers.
    """
    words = sorted(set().union(*(part.words for part in parts)))
    counts = np.concatenate([part.counts for part in parts])
    if not words:
        return Labels(np.concatenate([part.values for part in parts]), counts)
    places = {word: place for place, word in enumerate(words)}
    first: dict[bool, str] = {}
    begins = np.cumsum([0, *(len(part.counts) for part in parts)]).tolist()
    for part, begin in zip(parts, begins, strict=False):
        if len(part.values) and bool(part.words) not in first:
            first[bool(part.words)] = f"{name(begin + part.owner(0))} has the label {part.written(0)}"
    if len(first) > 1:
        raise _mixed(first)
    tables = [(np.array([places[word] for word in part.words], np.int64), part.values) for part in parts if part.words]
    return Labels(np.concatenate([table[values] for table, values in tables]), counts, tuple(words))


def understand_labels(
    train: Labeled,
    val: Labeled,
    *,
    classes: tuple[str, ...] | None = None,
    offset: int = 0,
    task: Task | None = None,
) -> Targets:
    """Give the classes numbers and names.

    Args:
        train: the labels to learn.
        val: those to be scored by.
        classes: names of the classes, by number; by default those that the pictures come with, else the labels
            themselves: sorted, if they are text, and up to the highest of train, if they are numbers.
        offset: number of the first class, subtracted from labels that are numbers.
        task: classify for one label a picture, multilabel for any number; None: multilabel if a picture has several.

    Raises:
        UserError: a label of no class, numbers and names in one set, no or several labels where there is to be one, or
            no class of val is in train.
    """
    splits = (train, val)
    if not task:
        several = sum(int(np.count_nonzero(split.labels.counts > 1)) for split in splits)
        task = "multilabel" if several else "classify"
        if several:
            logger.info("%d pictures have several labels: any number of labels is learned, not one class", several)
    for split in splits:
        if not len(split.labels.counts):
            raise UserError(f"{split.key}: holds no pictures.")
        if task == "classify":
            _check_single(split)
    if not classes and train.names and val.names and train.names != val.names:
        raise UserError(
            f"data: the files of val come with other names of classes ({_some(val.names)}) than those of train "
            f"({_some(train.names)}). Allowed: the same, or data.classes=FILE."
        )
    names = classes or train.names
    first = {bool(split.labels.words): split.said(0) for split in splits if len(split.labels.values)}
    if len(first) > 1:
        raise _mixed(first, "data: ")
    if not names and not len(train.labels.values):
        raise UserError(f"{train.key}: {train.name(0)} has no label, and no other picture has one.")
    if any(split.labels.words for split in splits):
        names = names or train.labels.words
        found = [_by_name(split, names) for split in splits]
    else:
        names, found = _by_number(splits, names, offset, task)
    note_missing(names, found[0], found[1], offset)
    if task == "classify":
        return Targets(task, names, tuple(found[0].tolist()), tuple(found[1].tolist()))
    hot = [_hot(of, split.labels.counts, len(names)) for of, split in zip(found, splits, strict=True)]
    return Targets(task, names, hot[0], hot[1])


def read_names(file: str) -> tuple[str, ...]:
    """Read class names, one a line.

    Raises:
        UserError: the file cannot be read, is empty, or has a name twice.
    """
    try:
        names = [line.strip() for line in Path(file).expanduser().read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise UserError(f"data.classes={file}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"data.classes={file}: is no text. Allowed: a class name a line.") from None
    while names and not names[-1]:
        names.pop()
    if not all(names):
        raise UserError(f"data.classes={file}: line {names.index('') + 1} is empty. Allowed: a class name a line.")
    if not names:
        raise UserError(f"data.classes={file}: is empty. Allowed: a class name a line.")
    first: dict[str, int] = {}
    for line, name in enumerate(names, 1):
        if first.setdefault(name, line) != line:
            raise UserError(f"data.classes={file}: lines {first[name]} and {line} are both '{name}'. Allowed: once.")
    return tuple(names)


def _mixed(first: Mapping[bool, str], key: str = "") -> UserError:
    return UserError(f"{key}{', and '.join(first.values())}. Allowed: numbers or names, not both.")


def _check_single(split: Labeled) -> None:
    odd = np.flatnonzero(split.labels.counts != 1)
    if not len(odd):
        return
    count = int(split.labels.counts[odd[0]])
    more = f" ({len(odd):,} pictures have none or several)" if len(odd) > 1 else ""
    raise UserError(
        f"{split.key}: {split.name(int(odd[0]))} has {f'{count} labels' if count else 'no label'}{more}. "
        "Allowed: one, or any number with data.multilabel=true."
    )


def _by_name(split: Labeled, names: Sequence[str]) -> NDArray[np.int64]:
    numbers = {name: number for number, name in enumerate(names)}
    table = np.array([numbers.get(word, -1) for word in split.labels.words], np.int64)
    targets: NDArray[np.int64] = table[split.labels.values] if len(table) else np.empty(0, np.int64)
    wrong = targets < 0
    if wrong.any():
        word = split.labels.words[split.labels.values[np.argmax(wrong)]]
        if len(names) <= _LISTED:
            hint = suggest(word, names)
        else:
            near = get_close_matches(word, names, n=1, cutoff=0.5)
            hint = (f" Did you mean '{near[0]}'?" if near else "") + f" Allowed: one of {len(names):,} classes."
        raise split.error(wrong, f", which is unknown.{hint}")
    return targets


def _by_number(
    splits: Sequence[Labeled], given: tuple[str, ...] | None, offset: int, task: Task
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Return the names of the classes and the classes of both splits."""
    found = []
    for split in splits:
        values = split.labels.values
        if values.dtype.kind == "f":
            odd = (values != np.floor(values)) | (np.abs(values) >= 2.0**63)
            if odd.any():
                raise split.error(odd, ". Allowed: whole numbers.")
        found.append(values.astype(np.int64) - offset)
    count = len(given) if given else max(int(found[0].max()) + 1, 0)
    if not given and count > _MAX_CLASSES[task]:
        what = f", which is no number of a class. Allowed without data.classes: below {_MAX_CLASSES[task] + offset:,}."
        raise splits[0].error(found[0] == count - 1, what)
    allowed = f"{offset} to {count - 1 + offset}" if count else f"whole numbers from {offset}"
    why = f"{count:,} classes have names" if given else f"the highest in train is {count - 1 + offset}"
    for split, targets in zip(splits, found, strict=True):
        wrong = (targets < 0) | (targets >= count)
        if wrong.any():
            begins_at_one = given is not None and offset == 0 and (targets.min(), targets.max()) == (1, count)
            hint = (f" (data.label_offset={offset})." if offset else ".") + (_AT_ONE if begins_at_one else "")
            reason = f", as {why}" if count else ""
            raise split.error(wrong, f", which is out of range. Allowed: {allowed}{reason}{hint}")
    return given or tuple(str(number + offset) for number in range(count)), found


_AT_ONE = " Do labels begin at 1? Then set data.label_offset=1."


def _hot(targets: NDArray[np.int64], counts: NDArray[np.int64], classes: int) -> tuple[Target, ...]:
    """Return for each picture 1 where it has a label and 0 where not; pictures with the same labels share theirs."""
    flat, ends = targets.tolist(), np.cumsum(counts).tolist()
    known: dict[tuple[int, ...], tuple[float, ...]] = {}
    rows = []
    for begin, end in zip([0, *ends], ends, strict=False):
        having = tuple(flat[begin:end])
        if having not in known:
            row = [0.0] * classes
            for target in having:
                row[target] = 1.0
            known[having] = tuple(row)
        rows.append(known[having])
    return tuple(rows)


def note_missing(names: Sequence[str], train: NDArray[np.int64], val: NDArray[np.int64], offset: int) -> None:
    """Say in the log which classes have no pictures.

    Args:
        names: of all classes.
        train: (N,) classes of the pictures to learn from.
        val: (M,) those of the pictures to be scored on.
        offset: number that people know the first class by.

    Raises:
        UserError: both splits have classes, but none is in both.
    """
    there = [np.unique(train), np.unique(val)]
    if len(train) and len(val) and not len(np.intersect1d(there[0], there[1])):
        of_train, of_val = (_some([names[number] for number in found.tolist()]) for found in there)
        raise UserError(f"data: no class of val is in train; train has {of_train}, val {of_val}.")
    for which, found in zip(("train", "val"), there, strict=True):
        absent = np.setdiff1d(np.arange(len(names)), found).tolist()
        if absent:
            hint = _AT_ONE if which == "train" and offset == 0 and absent == [0] and names[0] == "0" else ""
            missing = _some([names[number] for number in absent])
            logger.warning(
                "%d of %d classes have no picture in %s: %s.%s", len(absent), len(names), which, missing, hint
            )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")
