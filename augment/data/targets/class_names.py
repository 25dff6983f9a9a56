"""Labels as sources provide them, class names, and the conversion of labels to indices of names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from augment.data.formats.text_files import read_text
from augment.data.images import ImageRef
from augment.support.errors import MAX_ERRORS, UserError, first_errors, nearest, nearest_each
from augment.support.files import expanded
from augment.support.formatting import amount, list_some

Label = int | float | str

_MAX_LENGTH = 200  # characters of a name to normalize. The time may grow with the square of the length
_MAX_LABELS = 100_000  # of an image. Millions take minutes
_MAX_HINTS = 3  # maximum number of hints. If more classes have a single image, they are probably spelled correctly


@dataclass(frozen=True)
class TargetOptions:
    """The settings about targets.

    Attributes:
        task: the task, which determines the kind of targets. Default: inferred from the labels.
        classes: names of classes or labels, in order. Default: the names that the source provides, else the labels.
        offset: number of the first class if labels are numbers.
        names: names of columns, which hold numbers, or 0 and 1 for labels.
    """

    task: str = ""
    classes: tuple[str, ...] | None = None
    offset: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Labels:
    """The labels or numbers of some images, as a source provides them.

    Attributes:
        values: (L,) the labels of all images, image by image: int64, float64, or int64 indices of `words`.
        counts: (N,) int64, the number of labels of each image.
        words: the distinct text labels, sorted. Empty if labels are numbers.
        rows: whether each image has a row of numbers, one per column, instead of a list of labels.
    """

    values: NDArray[Any]
    counts: NDArray[np.int64]
    words: tuple[str, ...] = ()
    rows: bool = False

    @classmethod
    def of_rows(cls, array: NDArray[Any]) -> Labels:
        """Convert an array, (N,) or (N, K).

        Raises:
            UserError: the array has the wrong shape or type.
        """
        if array.ndim not in (1, 2) or array.dtype.kind not in "biuf" or (len(array) and not array.size):
            raise UserError(f"the targets are {array.shape} {array.dtype}. Use numbers of shape (N,) or (N, K).")
        values = array.ravel().astype(np.float64 if array.dtype.kind == "f" else np.int64)
        return cls(values, np.full(len(array), len(values) // max(len(array), 1), np.int64), rows=True)

    def lists(self) -> list[list[Label]]:
        values: list[Label] = self.values.tolist()
        if self.words:
            values = [self.words[index] for index in self.values.tolist()]
        ends = np.cumsum(self.counts).tolist()
        return [values[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True)
class LabeledSplit:
    """The images of a split with their labels, before the labels are interpreted.

    Attributes:
        key: the setting that selects the images, for messages.
        images: the images.
        labels: their labels.
        name: function that returns an image's name for messages, given its index.
        names: class names in order, if the source provides any.
    """

    key: str
    images: Sequence[ImageRef]
    labels: Labels
    name: Callable[[int], str]
    names: tuple[str, ...] | None = None

    def describe(self, slot: int) -> str:
        """Describe a label and its image."""
        labels = self.labels
        shown = repr(labels.words[labels.values[slot]]) if labels.words else f"{labels.values[slot]:.15g}"
        return f"{self.name(_owner(labels.counts, slot))} has the label {shown}"

    def rows(self) -> NDArray[Any]:
        """Return the labels as rows of numbers, (N, K).

        Raises:
            UserError: images have different counts of labels, or labels are names.
        """
        labels = self.labels
        odd = (labels.counts == 0) | (labels.counts != labels.counts[0])
        if odd.any():
            index = int(np.argmax(odd))
            count = int(labels.counts[index])
            what = f"{self.name(index)} has {amount(count, 'number') if count else 'no number'}"
            first = f", but {self.name(0)} has {labels.counts[0]}" if index else ""
            raise UserError(f"{self.key}: {what}{first}. Give every image the same count of numbers.")
        values = labels.values
        if labels.words:
            try:
                values = np.array([float(word) for word in labels.words])[values]
            except ValueError:
                raise UserError(
                    f"{self.key}: {self.describe(0)}, which is not a number. data.task=regress and data.targets need "
                    "numbers."
                ) from None
        return values.reshape(len(labels.counts), -1)

    def label_error(self, wrong: NDArray[np.bool_], what: str) -> UserError:
        """Return the error about wrong labels. `wrong` is (L,)."""
        return self._error(wrong, self.describe, what)

    def row_error(self, wrong: NDArray[np.bool_], what: str) -> UserError:
        """Return the error about images with a wrong number. `wrong` is (N, K)."""
        rows = self.labels.lists()

        def describe(index: int) -> str:
            return f"{self.name(index)} has the target {rows[index] if len(rows[index]) > 1 else rows[index][0]}"

        return self._error(np.any(wrong, axis=1), describe, what)

    def _error(self, wrong: NDArray[np.bool_], describe: Callable[[int], str], what: str) -> UserError:
        """Return an error about the first wrong item, with the remedy, and up to four others. See `first_errors`."""
        first, *others = map(describe, np.flatnonzero(wrong)[:MAX_ERRORS].tolist())
        errors = [f"{self.key}: {first}{what}", *(f"{self.key}: {other}." for other in others)]
        return first_errors(errors, int(wrong.sum()))


def pack(labels: Sequence[Sequence[Label]], name: Callable[[int], str]) -> Labels:
    """Pack the labels of each image into arrays. `name` returns an image's name for messages, given its index.

    Raises:
        UserError: some labels are text, and other labels are numbers. A number is too large. An image has too many
            labels.
    """
    counts = np.fromiter(map(len, labels), np.int64, len(labels))
    if counts.max(initial=0) > _MAX_LABELS:
        most = int(counts.argmax())
        raise UserError(f"{name(most)} has {counts[most]:,} labels. The limit is {_MAX_LABELS:,}.")
    flat = list(chain.from_iterable(labels))

    def describe(slot: int) -> str:
        return f"{name(_owner(counts, slot))} has the label {flat[slot]!r:.60}"

    kinds = set(map(type, flat))
    if strange := kinds - {int, float, str, bool}:
        slot = [type(label) in strange for label in flat].index(True)
        raise UserError(f"{describe(slot)}. Use numbers, names, or lists of these.")
    if str not in kinds:
        try:
            return Labels(np.array(flat, np.float64 if float in kinds else np.int64), counts)
        except OverflowError:
            slot = max(range(len(flat)), key=lambda slot: abs(flat[slot]))  # type: ignore[arg-type]  # no text
            raise UserError(f"{describe(slot)}, which does not fit into 64 bits. Store it as text.") from None
    is_text = [isinstance(label, str) for label in flat]
    if not all(is_text) and float not in kinds and all(label.isdecimal() for label in flat if isinstance(label, str)):
        flat = list(map(str, flat))  # whole numbers next to text such as 007
    elif not all(is_text):
        both = map(describe, sorted((is_text.index(True), is_text.index(False))))
        raise UserError(f"{', and '.join(both)}. Use either numbers or names.")
    words = sorted(set(map(str, flat)))
    indices = {word: index for index, word in enumerate(words)}
    return Labels(np.fromiter((indices[str(label)] for label in flat), np.int64, len(flat)), counts, tuple(words))


def all_rows(splits: Sequence[LabeledSplit]) -> list[NDArray[Any]]:
    """Return the rows of each split, (N, K), with the same K in all splits.

    Raises:
        UserError: images have different counts of numbers, or labels are names.
    """
    rows = [split.rows() for split in splits]
    width = rows[0].shape[1]
    if rows[-1].shape[1] != width:
        raise UserError(
            f"{splits[-1].key}: {rows[-1].shape[1]} numbers per image, but {width} in train. Use the same count in "
            "both."
        )
    return rows


def _owner(counts: NDArray[np.int64], slot: int) -> int:
    """Return the index of a label's image, given the number of labels of each image."""
    return int(np.searchsorted(np.cumsum(counts), slot, side="right"))


def given_names(found: Sequence[tuple[str, ...] | None], options: TargetOptions) -> tuple[str, ...] | None:
    """Return the names in the options. Without such names, return the names that the source provides for train.

    Args:
        found: the names that the source provides for each split.
        options: the settings about targets.

    Raises:
        UserError: the source provides different names for train and val.
    """
    train, val = found[0], found[-1]
    if not options.classes and train and val and train != val:
        raise UserError(
            f"data: val has the class names {list_some(val)}, but train has {list_some(train)}. Use the same names, or "
            "set data.classes=FILE."
        )
    return options.classes or train


def find_names(
    splits: Sequence[LabeledSplit], options: TargetOptions, most: int
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Return the names of classes or labels, and each split's labels as indices of the names, (L,).

    The options or the source provide the names. Otherwise, names are the labels: text labels in sorted order, or all
    numbers up to the highest label of train.

    Args:
        splits: train with its labels, and val if there is one.
        options: the settings about targets.
        most: largest number of classes if neither the options nor the source provide names.

    Raises:
        UserError: a label has no name, or numbers and names are mixed.
    """
    names = given_names([split.names for split in splits], options)
    train = splits[0]
    examples = {bool(split.labels.words): split.describe(0) for split in splits if len(split.labels.values)}
    if len(examples) > 1:
        raise UserError(f"data: {', and '.join(examples.values())}. Use either numbers or names.")
    if not names and not len(train.labels.values):
        raise UserError(f"{train.key}: neither {train.name(0)} nor any other image has a label. Add labels.")
    if any(split.labels.words for split in splits):
        names = names or train.labels.words
        return names, [_by_name(split, names) for split in splits]
    return _by_number(splits, names, options.offset, most)


def describe_alike(names: Sequence[str]) -> str:
    """Return a notice about names that differ only in case, spaces or the encoding of accents, or an empty string."""
    first: dict[str, str] = {}
    for name in filter(lambda name: len(name) <= _MAX_LENGTH, names):
        other = first.setdefault("".join(normalize("NFKC", name).casefold().split()), name)
        if other != name:
            return (
                f"data: {other!r} and {name!r} are different classes, although they differ only in case, spaces or the "
                "encoding of accents. If you mean one class, use one name"
            )
    return ""


def describe_joined(names: Sequence[str]) -> str:
    """Return a notice about names of several labels, such as "red|blue" or "['red']", or an empty string."""
    known = set(names)
    parts = {name: [[part.strip() for part in name.split(separator)] for separator in " |,"] for name in names}
    joined = [
        name
        for name in names
        if name[:1] + name[-1:] == "[]" or any(len(some) > 1 and known.issuperset(some) for some in parts[name])
    ]
    if not joined:
        return ""
    return (
        f"data: {len(joined)} of {len(names)} labels seem to be several labels, such as {joined[0]!r}. If an image has "
        "several labels, separate them with ; in CSV lists, and with spaces in other lists"
    )


def suggest_spelling(absent: Sequence[str], images: Mapping[str, int]) -> str:
    """Return the end of a notice about classes that a split lacks. If they have a single image, they may be misspelled.

    Args:
        absent: the classes.
        images: the number of images of each class in all splits.
    """
    rare = [name for name in absent if images[name] == 1 and not name.isdecimal()]
    if len(rare) > _MAX_HINTS:
        return ""
    return nearest_each(rare, [name for name, count in images.items() if count > 1])


def as_lists(
    splits: Sequence[LabeledSplit], options: TargetOptions, task: str, *, single: bool = False
) -> tuple[Sequence[LabeledSplit], TargetOptions]:
    """Convert rows of 0 and 1 to lists of labels, and return the splits with the options for lists.

    Raises:
        UserError: a row has other numbers. With `single`, a row does not have exactly one 1.
    """
    if not splits[0].labels.rows:
        return splits, options
    rows = all_rows(splits)
    width = rows[0].shape[1]
    if width == 1 and not options.names:
        return [replace(s, labels=Labels(r[:, 0], s.labels.counts)) for s, r in zip(splits, rows, strict=True)], options
    lists = []
    for split, values in zip(splits, rows, strict=True):
        wrong = (values != 0) & (values != 1)
        if wrong.any():
            which = f" for {', '.join(options.names)}" if options.names else ""
            raise split.row_error(wrong, f". data.task={task} needs 0 and 1{which}.")
        odd = values.sum(axis=1, keepdims=True) != 1
        if single and odd.any():
            raise split.row_error(odd, f". data.task={task} needs one 1 per image, and 0 otherwise.")
        lists.append(replace(split, labels=Labels(np.nonzero(values == 1)[1], (values == 1).sum(axis=1)), names=None))
    given = column_names(splits[0], width, options.names, options.classes)
    return lists, TargetOptions(classes=given or tuple(str(number + options.offset) for number in range(width)))


def column_names(
    split: LabeledSplit, width: int, names: tuple[str, ...], classes: tuple[str, ...] | None = None
) -> tuple[str, ...] | None:
    """Return the names of the columns, from the settings or the source, or None.

    Raises:
        UserError: the settings have more or fewer names than columns.
    """
    key, given = ("data.targets", names) if names else ("data.classes", classes or ())
    if given and len(given) != width:
        raise UserError(
            f"{key}: {amount(len(given), 'name')} for {amount(width, 'number')} per image. Give one name per number."
        )
    if given:
        return given
    return split.names if split.names and len(split.names) == width > 1 else None


def label_number(text: str, names: Sequence[str], where: str) -> int:
    """Return the index of a class or label by its name. `where` is the row of a file, for messages.

    Raises:
        UserError: there is no such name.
    """
    if not text:
        raise UserError(f"{where}: the label is empty. Write a label, or the action drop.")
    if text not in names:
        raise UserError(f"{where}: the label '{text}' is unknown.{nearest(text, names)} Known: {list_some(names, 10)}.")
    return list(names).index(text)


def read_names(file: str) -> tuple[str, ...]:
    """Read class names, one per line.

    Raises:
        UserError: the file cannot be read, has an empty line, or has a name twice.
    """
    allowed = "one class name per line"
    names = [line.strip() for line in read_text("data.classes", expanded(file), allowed).rstrip().splitlines()]
    if not all(names) or not names:
        raise UserError(f"data.classes={file}: line {[*names, ''].index('') + 1} is empty. Write {allowed}.")
    if len(set(names)) < len(names):
        raise UserError(f"data.classes={file}: '{Counter(names).most_common(1)[0][0]}' occurs twice. Remove one.")
    return tuple(names)


def _by_name(split: LabeledSplit, names: Sequence[str]) -> NDArray[np.int64]:
    numbers = {name: number for number, name in enumerate(names)}
    wrong = np.array([word not in numbers for word in split.labels.words])[split.labels.values]
    if wrong.any():
        unknown = dict.fromkeys(split.labels.words[value] for value in split.labels.values[wrong].tolist())
        hint = f", which is unknown.{nearest_each([*unknown][:_MAX_HINTS], names)} Known: {list_some(names, 10)}."
        raise split.label_error(wrong, hint)
    table = np.array([numbers[word] for word in split.labels.words], np.int64)
    return table.take(split.labels.values)


def _by_number(
    splits: Sequence[LabeledSplit], given: tuple[str, ...] | None, offset: int, most: int
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    found = []
    for split in splits:
        values = split.labels.values
        if values.dtype.kind == "f":
            odd = (values != np.floor(values)) | (np.abs(values) >= 2.0**63)
            if odd.any():
                raise split.label_error(odd, ". Use whole numbers.")
        found.append(values.astype(np.int64) - offset)
    count = len(given) if given else max(int(found[0].max()) + 1, 0)
    if not given and count > most:
        what = f", which is too large. Use labels below {most + offset:,}, or set data.classes=FILE."
        raise splits[0].label_error(found[0] == count - 1, what)
    named = amount(count, "class has a name", "classes have names")
    why = named if given else f"the highest label in train is {count - 1 + offset}"
    allowed = f"{offset} to {count - 1 + offset}, because {why}" if count else f"whole numbers from {offset}"
    for split, indices in zip(splits, found, strict=True):
        wrong = (indices < 0) | (indices >= count)
        if wrong.any():
            hint = f" (data.label_offset={offset})." if offset else "."
            if given is not None and offset == 0 and (indices.min(), indices.max()) == (1, count):
                hint += " If labels begin at 1, set data.label_offset=1."
            if given is None:
                hint += " To predict numbers, set data.task=regress."
            raise split.label_error(wrong, f", which is out of range. Allowed: {allowed}{hint}")
    return given or tuple(str(number + offset) for number in range(count)), found
