"""Turn labels into class names and a target for each image."""

import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import Target, Task
from augment.data.targets.labels import LabeledSplit, Labels, mixed
from augment.support.errors import UserError, nearest, suggest
from augment.support.files import expanded, require_file
from augment.support.text import amount, list_some, plural

logger = logging.getLogger(__name__)

_LISTED = 30  # classes that fit into a message

# Without names, classes are made up to the highest number; a number beyond this is an id, not a class. Targets of
# several labels are as long as there are classes, so fewer of these are allowed.
_MAX_CLASSES = {"classify": 1_000_000, "multilabel": 10_000}

_AT_ONE = " Do labels begin at 1? Then set data.label_offset=1."


def find_classes(
    splits: Sequence[LabeledSplit], task: Task, classes: tuple[str, ...] | None, offset: int
) -> tuple[tuple[str, ...], list[tuple[Target, ...]]]:
    """Return the names of the classes and the targets of each split.

    Args:
        splits: the labels of train, and of val if there is one.
        task: classify for one label per image, multilabel for any number.
        classes: names of the classes, by number; by default those that the images come with, else the labels
            themselves: sorted, if they are text, and up to the highest of train, if they are numbers.
        offset: number of the first class, subtracted from labels that are numbers.

    Raises:
        UserError: a label of no class, numbers and names mixed, not exactly one label where one is needed, or no class
            of val is in train.
    """
    train, val = splits[0], splits[-1]
    if task == "classify":
        for split in splits:
            odd = np.flatnonzero(split.labels.counts != 1)
            if len(odd):
                count = int(split.labels.counts[odd[0]])
                more = f" ({len(odd):,} images have none or several)" if len(odd) > 1 else ""
                raise UserError(
                    f"{split.key}: {split.name(int(odd[0]))} has {f'{count} labels' if count else 'no label'}{more}. "
                    "Allowed: one, or any number with data.multilabel=true."
                )
    if not classes and train.names and val.names and train.names != val.names:
        raise UserError(
            f"data: the files of val come with other names of classes ({list_some(val.names)}) than those of train "
            f"({list_some(train.names)}). Allowed: the same, or data.classes=FILE."
        )
    names = classes or train.names
    first = {bool(split.labels.words): split.describe(0) for split in splits if len(split.labels.values)}
    if len(first) > 1:
        raise mixed(first.values(), "data: ")
    if not names and not len(train.labels.values):
        raise UserError(f"{train.key}: {train.name(0)} has no label, and no other image has one.")
    if any(split.labels.words for split in splits):
        names = names or train.labels.words
        found = [_by_name(split, names) for split in splits]
    else:
        names, found = _by_number(splits, names, offset, task)
    check_classes(names, *found, offset=offset)
    if task == "classify":
        return names, [tuple(indices.tolist()) for indices in found]
    return names, [_flags(of, split.labels.counts, len(names)) for of, split in zip(found, splits, strict=True)]


def read_names(file: str) -> tuple[str, ...]:
    """Read class names, one per line.

    Raises:
        UserError: the file cannot be read, is empty, or has a name twice.
    """
    allowed = "Allowed: a class name per line."
    try:
        text = require_file(expanded(file)).read_text(encoding="utf-8").rstrip()
    except OSError as error:
        raise UserError(f"data.classes={file}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"data.classes={file}: is not text. {allowed}") from None
    if "\0" in text:
        raise UserError(f"data.classes={file}: has a NUL character in it. {allowed}")
    names = [line.strip() for line in text.splitlines()]
    if not all(names):
        raise UserError(f"data.classes={file}: line {names.index('') + 1} is empty. {allowed}")
    if not names:
        raise UserError(f"data.classes={file}: is empty. {allowed}")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        first, second = [line for line, other in enumerate(names, 1) if other == name][:2]
        raise UserError(f"data.classes={file}: lines {first} and {second} are both '{name}'. Allowed: once.")
    return tuple(names)


def check_classes(
    names: Sequence[str], train: NDArray[np.int64], val: NDArray[np.int64] | None = None, *, offset: int = 0
) -> None:
    """Warn of classes without images.

    Args:
        names: the names of all classes.
        train: (N,) classes of the training images.
        val: (M,) classes of the validation images; None: there are none yet.
        offset: the number by which people know the first class.

    Raises:
        UserError: both splits have classes, but they share none.
    """
    present = [np.unique(split) for split in (train, val) if split is not None]
    if all(map(len, present)) and not len(np.intersect1d(present[0], present[-1])):
        of_train, of_val = (list_some([names[index] for index in found.tolist()]) for found in present)
        raise UserError(f"data: no class of val is in train; train has {of_train}, val {of_val}.")
    for which, found in zip(("train", "val"), present, strict=False):
        absent = np.setdiff1d(np.arange(len(names)), found).tolist()
        if absent:
            hint = _AT_ONE if which == "train" and offset == 0 and absent == [0] and names[0] == "0" else ""
            missing = list_some([names[index] for index in absent])
            have = plural(len(absent), "has", "have")
            of = amount(len(names), "class")
            logger.warning("%d of %s %s no image in %s: %s.%s", len(absent), of, have, which, missing, hint)


def _by_name(split: LabeledSplit, names: Sequence[str]) -> NDArray[np.int64]:
    numbers = {name: number for number, name in enumerate(names)}
    table = np.array([numbers.get(word, -1) for word in split.labels.words], np.int64)
    indices: NDArray[np.int64] = table[split.labels.values] if len(table) else np.empty(0, np.int64)
    wrong = indices < 0
    if wrong.any():
        word = split.labels.words[split.labels.values[np.argmax(wrong)]]
        few = len(names) <= _LISTED
        hint = suggest(word, names) if few else f"{nearest(word, names)} Allowed: one of {len(names):,} classes."
        raise split.label_error(wrong, f", which is unknown.{hint}")
    return indices


def _by_number(
    splits: Sequence[LabeledSplit], given: tuple[str, ...] | None, offset: int, task: Task
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Return the names of the classes and the classes of both splits."""
    found = []
    for split in splits:
        values = split.labels.values
        if values.dtype.kind == "f":
            odd = (values != np.floor(values)) | (np.abs(values) >= 2.0**63)
            if odd.any():
                raise split.label_error(odd, ". Allowed: whole numbers.")
        found.append(values.astype(np.int64) - offset)
    count = len(given) if given else max(int(found[0].max()) + 1, 0)
    if not given and count > _MAX_CLASSES[task]:
        limit = _MAX_CLASSES[task] + offset
        what = f", which is not the number of a class. Allowed without data.classes: below {limit:,}."
        raise splits[0].label_error(found[0] == count - 1, what)
    allowed = f"{offset} to {count - 1 + offset}" if count else f"whole numbers from {offset}"
    why = (
        amount(count, "class has a name", "classes have names")
        if given
        else f"the highest in train is {count - 1 + offset}"
    )
    for split, indices in zip(splits, found, strict=True):
        wrong = (indices < 0) | (indices >= count)
        if wrong.any():
            begins_at_one = given is not None and offset == 0 and (indices.min(), indices.max()) == (1, count)
            hint = (f" (data.label_offset={offset})." if offset else ".") + (_AT_ONE if begins_at_one else "")
            reason = f", as {why}" if count else ""
            raise split.label_error(wrong, f", which is out of range. Allowed: {allowed}{reason}{hint}")
    return given or tuple(str(number + offset) for number in range(count)), found


def _flags(indices: NDArray[np.int64], counts: NDArray[np.int64], classes: int) -> tuple[Target, ...]:
    """Return for each image a row of 1 for its labels and 0 otherwise; images with the same labels share their row."""
    sets = [frozenset(labels) for labels in Labels(indices, counts).lists()]
    rows = {labels: tuple(float(index in labels) for index in range(classes)) for labels in set(sets)}
    return tuple(rows[labels] for labels in sets)
