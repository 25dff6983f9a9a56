"""Names of classes and labels, and labels as their indices."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from augment.data.formats.texts import read_text
from augment.data.targets.given import LabeledSplit, Labels, all_rows, mixed
from augment.data.targets.kind import TargetOptions
from augment.support.errors import UserError, nearest, suggest
from augment.support.files import expanded
from augment.support.text import amount, list_some

_LISTED = 30  # classes that fit into a message

_AT_ONE = " Do labels begin at 1? Then set data.label_offset=1."


def find_names(
    splits: Sequence[LabeledSplit], options: TargetOptions, most: int
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Return the names of classes or labels, and the labels of each split as indices of them, (L,).

    Names are those of the options, or those that the images come with; else the labels themselves: sorted, if they are
    text, and up to the highest of train, `most` at most, if they are numbers.

    Raises:
        UserError: a label has no name, or numbers and names are mixed.
    """
    train, val = splits[0], splits[-1]
    if not options.classes and train.names and val.names and train.names != val.names:
        raise UserError(
            f"data: the files of val come with other names of classes ({list_some(val.names)}) than those of train "
            f"({list_some(train.names)}). Allowed: the same, or data.classes=FILE."
        )
    names = options.classes or train.names
    first = {bool(split.labels.words): split.describe(0) for split in splits if len(split.labels.values)}
    if len(first) > 1:
        raise mixed(first.values(), "data: ")
    if not names and not len(train.labels.values):
        raise UserError(f"{train.key}: {train.name(0)} has no label, and no other image has one.")
    if any(split.labels.words for split in splits):
        names = names or train.labels.words
        return names, [_by_name(split, names) for split in splits]
    return _by_number(splits, names, options.offset, most)


def as_lists(
    splits: Sequence[LabeledSplit], options: TargetOptions, task: str, *, single: bool = False
) -> tuple[Sequence[LabeledSplit], TargetOptions]:
    """Return splits whose images have lists of labels, and the options for these: rows of 0 and 1 become lists.

    Raises:
        UserError: rows hold other numbers; or, with `single`, one row has not a single 1.
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
            raise split.row_error(wrong, f". Allowed with data.task={task}{which}: 0 and 1.")
        odd = values.sum(axis=1, keepdims=True) != 1
        if single and odd.any():
            raise split.row_error(odd, f". Allowed with data.task={task}: one 1, and 0 otherwise.")
        lists.append(replace(split, labels=Labels(np.nonzero(values == 1)[1], (values == 1).sum(axis=1)), names=None))
    given = column_names(splits[0], width, options.names, options.classes)
    return lists, TargetOptions(classes=given or tuple(str(number + options.offset) for number in range(width)))


def column_names(
    split: LabeledSplit, width: int, names: tuple[str, ...], classes: tuple[str, ...] | None = None
) -> tuple[str, ...] | None:
    """Return the names of the columns that were given, if any were.

    Raises:
        UserError: there are more or fewer than columns.
    """
    key, given = ("data.targets", names) if names else ("data.classes", classes or ())
    if given and len(given) != width:
        raise UserError(f"{key}: {amount(len(given), 'name')}. Allowed: {width}, one for each number of an image.")
    if given:
        return given
    return split.names if split.names and len(split.names) == width > 1 else None


def read_names(file: str) -> tuple[str, ...]:
    """Read class names, one per line.

    Raises:
        UserError: the file cannot be read, is empty, or has a name twice.
    """
    allowed = "a class name per line"
    names = [line.strip() for line in read_text("data.classes", expanded(file), allowed).rstrip().splitlines()]
    if not all(names) or not names:
        what = f"line {names.index('') + 1} is empty" if names else "is empty"
        raise UserError(f"data.classes={file}: {what}. Allowed: {allowed}.")
    if len(set(names)) < len(names):
        raise UserError(f"data.classes={file}: has '{Counter(names).most_common(1)[0][0]}' twice. Allowed: once.")
    return tuple(names)


def _by_name(split: LabeledSplit, names: Sequence[str]) -> NDArray[np.int64]:
    numbers = {name: number for number, name in enumerate(names)}
    if unknown := next((word for word in split.labels.words if word not in numbers), ""):
        few = len(names) <= _LISTED
        hint = suggest(unknown, names) if few else f"{nearest(unknown, names)} Allowed: one of {len(names):,} classes."
        raise split.label_error(split.labels.values == split.labels.words.index(unknown), f", which is unknown.{hint}")
    table = np.array([numbers[word] for word in split.labels.words], np.int64)
    return table.take(split.labels.values)


def _by_number(
    splits: Sequence[LabeledSplit], given: tuple[str, ...] | None, offset: int, most: int
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Return the names of the classes, and the classes of each split."""
    found = []
    for split in splits:
        values = split.labels.values
        if values.dtype.kind == "f":
            odd = (values != np.floor(values)) | (np.abs(values) >= 2.0**63)
            if odd.any():
                raise split.label_error(odd, ". Allowed: whole numbers.")
        found.append(values.astype(np.int64) - offset)
    count = len(given) if given else max(int(found[0].max()) + 1, 0)
    if not given and count > most:
        what = f", which is not the number of a class. Allowed without data.classes: below {most + offset:,}."
        raise splits[0].label_error(found[0] == count - 1, what)
    allowed = f"{offset} to {count - 1 + offset}" if count else f"whole numbers from {offset}"
    named = amount(count, "class has a name", "classes have names")
    why = named if given else f"the highest in train is {count - 1 + offset}"
    for split, indices in zip(splits, found, strict=True):
        wrong = (indices < 0) | (indices >= count)
        if wrong.any():
            begins_at_one = given is not None and offset == 0 and (indices.min(), indices.max()) == (1, count)
            hint = (f" (data.label_offset={offset})." if offset else ".") + (_AT_ONE if begins_at_one else "")
            reason = f", as {why}" if count else ""
            raise split.label_error(wrong, f", which is out of range. Allowed: {allowed}{reason}{hint}")
    return given or tuple(str(number + offset) for number in range(count)), found
