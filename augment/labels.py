"""From the labels that pictures in larger files have, numbers or names, to targets."""

import logging
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from augment.dataset import Dataset, Picture, Split
from augment.errors import UserError, suggest
from augment.stored import name_of

Label = int | str

logger = logging.getLogger(__name__)

_SHOWN = 5
_LISTED = 50  # classes that fit into a message


def label_dataset(
    train: tuple[Sequence[Picture], Sequence[Label]], val: tuple[Sequence[Picture], Sequence[Label]], names: str | None
) -> Dataset:
    """Return a dataset of pictures with labels: numbers from 0, or names.

    Classes are those of a file of names; else, where labels are names, the sorted names of train; else the numbers of
    train, which must then leave none out.

    Args:
        train: pictures and their labels.
        val: pictures and their labels.
        names: the value of data.classes: a file with a class name a line.

    Raises:
        UserError: a label is of no class, or numbers and names are mixed.
    """
    kinds = {type(label) for _, labels in (train, val) for label in labels}
    if len(kinds) > 1:
        pictures, labels = train if int in map(type, train[1]) and str in map(type, train[1]) else val
        odd = next(i for i, label in enumerate(labels) if type(label) is not type(train[1][0]))
        raise UserError(
            f"data: {name_of(pictures[odd])} has the label {labels[odd]!r}, {name_of(train[0][0])} the label "
            f"{train[1][0]!r}. Allowed: numbers or names, not both."
        )
    classes = read_names(names) if names else _classes_of(*train)
    splits = [_split(name, pair, classes) for name, pair in (("train", train), ("val", val))]
    for name, split in zip(("train", "val"), splits, strict=True):
        there = set(split.targets)
        if missing := [label for target, label in enumerate(classes) if target not in there]:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            logger.warning("data.%s has no pictures of %s%s", name, ", ".join(missing[:_SHOWN]), more)
    return Dataset(classes, splits[0], splits[1])


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


def _classes_of(pictures: Sequence[Picture], labels: Sequence[Label]) -> tuple[str, ...]:
    unique = sorted(set(labels), key=lambda label: (str(type(label)), label))
    if isinstance(unique[0], str):
        return tuple(str(name) for name in unique)
    for expected, label in enumerate(unique):
        if label != expected:
            which = name_of(pictures[labels.index(label)])
            why = "is below 0" if int(label) < 0 else f"is there, and {expected} is not"
            raise UserError(
                f"data.train: label {label} ({which}) {why}. "
                "Allowed: whole numbers from 0 that leave none out, or data.classes=FILE with a name for each."
            )
    return tuple(map(str, unique))


def _split(name: str, pair: tuple[Sequence[Picture], Sequence[Label]], classes: tuple[str, ...]) -> Split:
    pictures, labels = pair
    names = isinstance(labels[0], str)
    known: dict[Label, int] = {label if names else target: target for target, label in enumerate(classes)}
    for picture, label in zip(pictures, labels, strict=True):
        if label not in known:
            raise UserError(f"data.{name}: {name_of(picture)} has {_unknown(label, classes)}")
    return Split(tuple(pictures), tuple(known[label] for label in labels))


def _unknown(label: Label, classes: tuple[str, ...]) -> str:
    if isinstance(label, int):
        return f"label {label}, which is out of range. Allowed: 0 to {len(classes) - 1}, a class each."
    shown = classes if len(classes) <= _LISTED else get_close_matches(label, classes, n=_SHOWN)
    return f"the unknown class '{label}'.{suggest(label, shown)}"
