"""From labels to classes: their names, and a target for each picture."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from augment.dataset import Dataset, Picture, Split, Target, Task
from augment.errors import UserError, suggest
from augment.targets.labels import Labeled, mixed

logger = logging.getLogger(__name__)

_SHOWN = 5
_LISTED = 30  # classes that fit into a message

# Classes that have no names are made up to the highest number; one beyond is no class but an id. Targets of several
# labels are as long as there are classes, so of these there are to be fewer.
_MAX_CLASSES = {"classify": 1_000_000, "multilabel": 10_000}


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
        raise mixed(first, "data: ")
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
