"""What a source gives: any number of labels or numbers per image, before a kind of target is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from augment.support.errors import UserError
from augment.support.text import amount

if TYPE_CHECKING:
    from augment.data.dataset import ImageRef

Label = int | float | str


@dataclass(frozen=True)
class Labels:
    """Labels or numbers of some images: the one form in which every source describes its targets.

    Attributes:
        values: (L,) the labels of all images, one image after the other: int64, float64, or int64 indices into `words`.
        counts: (N,) int64, how many of them each image has.
        words: the labels that are text, each once, sorted; empty if labels are numbers.
        rows: whether each image has a row of numbers, one per column, rather than a list of labels.
    """

    values: NDArray[Any]
    counts: NDArray[np.int64]
    words: tuple[str, ...] = ()
    rows: bool = False

    @classmethod
    def of_rows(cls, array: NDArray[Any]) -> Labels:
        """Take the rows of an array, (N,) or (N, K).

        Raises:
            UserError: it has another shape or type.
        """
        if array.ndim not in (1, 2) or array.dtype.kind not in "biuf" or (len(array) and not array.size):
            raise UserError(f"the targets are {array.shape} {array.dtype}. Allowed: (N,) or (N, K) numbers.")
        values = array.ravel().astype(np.float64 if array.dtype.kind == "f" else np.int64)
        return cls(values, np.full(len(array), len(values) // max(len(array), 1), np.int64), rows=True)

    def lists(self) -> list[list[Label]]:
        """Return the labels of each image."""
        values: list[Label] = self.values.tolist()
        if self.words:
            values = [self.words[index] for index in self.values.tolist()]
        ends = np.cumsum(self.counts).tolist()
        return [values[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True)
class LabeledSplit:
    """The images of a split with their labels, before these are interpreted.

    Attributes:
        key: the setting that the images come from, for messages.
        name: returns the name of an image for messages, given its index.
        names: names of the classes, by number, that come with the images.
    """

    key: str
    images: Sequence[ImageRef]
    labels: Labels
    name: Callable[[int], str]
    names: tuple[str, ...] | None = None

    def describe(self, slot: int) -> str:
        """Describe a label and the image that it belongs to."""
        labels = self.labels
        shown = repr(labels.words[labels.values[slot]]) if labels.words else f"{labels.values[slot]:.15g}"
        return f"{self.name(_owner(labels.counts, slot))} has the label {shown}"

    def rows(self) -> NDArray[Any]:
        """Return the labels as rows of numbers, (N, K).

        Raises:
            UserError: an image has none, or another number of them; or they are names.
        """
        labels = self.labels
        odd = (labels.counts == 0) | (labels.counts != labels.counts[0])
        if odd.any():
            index = int(np.argmax(odd))
            count, first = int(labels.counts[index]), f", but {labels.counts[0]} for {self.name(0)}" if index else ""
            raise UserError(
                f"{self.key}: {self.name(index)} has {amount(count, 'number') if count else 'no number'}{first}. "
                "Allowed: as many each."
            )
        values = labels.values
        if labels.words:
            try:
                values = np.array([float(word) for word in labels.words])[values]
            except ValueError:
                what = f"{self.describe(0)}, which is a name"
                raise UserError(f"{self.key}: {what}. Allowed with data.task=regress: numbers.") from None
        return values.reshape(len(labels.counts), -1)

    def label_error(self, wrong: NDArray[np.bool_], what: str) -> UserError:
        """Return an error about the first wrong label, (L,)."""
        return UserError(f"{self.key}: {self.describe(int(np.argmax(wrong)))}{what}")

    def row_error(self, wrong: NDArray[np.bool_], what: str) -> UserError:
        """Return an error about the first image with a wrong number, (N, K)."""
        index = int(np.argmax(wrong.any(axis=1)))
        row = self.labels.lists()[index]
        return UserError(f"{self.key}: {self.name(index)} has the target {row if len(row) > 1 else row[0]}{what}")


def pack(labels: Sequence[Sequence[Label]], name: Callable[[int], str]) -> Labels:
    """Pack the labels of each image, named by `name` in messages, into arrays.

    Raises:
        UserError: some labels are text and others numbers, or a number is too large.
    """
    counts = np.fromiter(map(len, labels), np.int64, len(labels))
    flat = list(chain.from_iterable(labels))

    def describe(slot: int) -> str:
        return f"{name(_owner(counts, slot))} has the label {flat[slot]!r}"

    kinds = set(map(type, flat))
    if strange := kinds - {int, float, str, bool}:
        slot = next(slot for slot, label in enumerate(flat) if type(label) in strange)
        allowed = "the number or the name of a class, a number to predict, or a list of them"
        raise UserError(f"{describe(slot)}. Allowed: {allowed}.")
    if str not in kinds:
        try:
            return Labels(np.array(flat, np.float64 if float in kinds else np.int64), counts)
        except OverflowError:
            large = next(i for i, label in enumerate(flat) if not isinstance(label, str) and abs(label) >= 2**63)
            raise UserError(f"{describe(large)}, which is not the number of a class.") from None
    is_text = [isinstance(label, str) for label in flat]
    if not all(is_text):
        raise mixed(map(describe, sorted((is_text.index(True), is_text.index(False)))))
    words = sorted(set(map(str, flat)))
    indices = {word: index for index, word in enumerate(words)}
    return Labels(np.fromiter((indices[str(label)] for label in flat), np.int64, len(flat)), counts, tuple(words))


def all_rows(splits: Sequence[LabeledSplit]) -> list[NDArray[Any]]:
    """Return the rows of each split, (N, K), as long in val as in train.

    Raises:
        UserError: they are not, or not as long for each image; see `LabeledSplit.rows`.
    """
    rows = [split.rows() for split in splits]
    width = rows[0].shape[1]
    if rows[-1].shape[1] != width:
        raise UserError(f"{splits[-1].key}: {rows[-1].shape[1]} numbers per image, but {width} in train.")
    return rows


def _owner(counts: NDArray[np.int64], slot: int) -> int:
    """Return the index of the image that a label belongs to, given how many each image has."""
    return int(np.searchsorted(np.cumsum(counts), slot, side="right"))


def mixed(described: Iterable[str], key: str = "") -> UserError:
    """Return an error about labels that are numbers and labels that are text, one of each described."""
    return UserError(f"{key}{', and '.join(described)}. Allowed: numbers or names, not both.")
