"""Labels as pictures come with them: numbers or names, one or several each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.errors import UserError

Label = int | float | str


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
        raise mixed(first)
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
        raise mixed(first)
    tables = [(np.array([places[word] for word in part.words], np.int64), part.values) for part in parts if part.words]
    return Labels(np.concatenate([table[values] for table, values in tables]), counts, tuple(words))


def mixed(first: Mapping[bool, str], key: str = "") -> UserError:
    """Return an error about labels that are numbers and labels that are text, one of each said in `first`."""
    return UserError(f"{key}{', and '.join(first.values())}. Allowed: numbers or names, not both.")
