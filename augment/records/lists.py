"""What is written about all pictures: their classes, and lists of pictures that lie in no folder of a class."""

import csv
import io
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from augment.errors import UserError
from augment.filelist import LABELS_SEPARATOR, read_list
from augment.files import write_whole
from augment.records.told import Meaning, Told, tell
from augment.targets.lists import understand

CLASSES_FILE = "classes.txt"

_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_WORDS = {"null", "true", "false", "nan", "inf"}  # that mean something on the command line


def write_lists(out: Path, rows: Mapping[str, tuple[Sequence[str], Sequence[Told]]], meaning: Meaning) -> None:
    """Write a list of each split, `<split>.csv`, and read them again, where pictures do not have a class each.

    Args:
        out: folder of the lists, and that paths are relative to.
        rows: by split the paths of the pictures and their targets.
        meaning: what targets are.

    Raises:
        UserError: what was written reads differently.
        OSError: it cannot be written.
    """
    if meaning.task == "classify":
        return
    image, columns = _image_column(meaning), _columns(meaning)
    for split, (paths, told) in rows.items():
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([image, *(columns or ["label"])])
        for path, target in zip(paths, told, strict=True):
            writer.writerow([path, *_cells(target, meaning)])
        write_whole(out / f"{split}.csv", stream.getvalue())
    lists = [
        read_list(f"data.{split}", out / f"{split}.csv", image=image, label=None, targets=columns) for split in rows
    ]
    classes = meaning.names if meaning.task == "multilabel" else None
    train, val = lists
    found = understand(train, val, task=meaning.task, classes=classes)
    for (paths, told), lines, targets in zip(rows.values(), lists, (found.train, found.val), strict=True):
        again = list(map(meaning.exact, tell(targets, meaning.task)))
        same = [line.path for line in lines.lines] == list(paths) and again == list(map(meaning.exact, told))
        if not same or found.names != meaning.names:
            raise UserError(f"{lines.file}: what was written reads differently.")


def use_lists(out: Path, meaning: Meaning) -> str:
    """Return the overrides that make lists the data."""
    settings: dict[str, object] = {"train": out / "train.csv", "val": out / "val.csv"}
    if (image := _image_column(meaning)) != "path":
        settings["image"] = image
    if columns := _columns(meaning):
        settings["targets"] = names_given(columns)
    elif meaning.task == "multilabel":
        settings["classes"] = out / CLASSES_FILE
    if meaning.task == "multilabel":
        settings["multilabel"] = "true"
    elif columns:
        settings["task"] = meaning.task  # they may all be 0 and 1
    return typed("filelist", settings)


def typed(source: str, settings: Mapping[str, object]) -> str:
    """Return overrides as people type them in a shell."""
    return " ".join([f"data={source}", *(shlex.quote(f"data.{name}={value}") for name, value in settings.items())])


def names_given(names: Sequence[str]) -> str:
    """Return names as the command line's grammar wants a list."""
    quoted = (name if _PLAIN.fullmatch(name) and name.lower() not in _WORDS else _quoted(name) for name in names)
    return f"[{','.join(quoted)}]"


def _quoted(name: str) -> str:
    """Put a name in the quotes of the command line's grammar, where backslashes before a quote stand for themselves."""
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), name) + "'"


def _image_column(meaning: Meaning) -> str:
    name = "path"
    while name in meaning.names:
        name += "_"
    return name


def _columns(meaning: Meaning) -> tuple[str, ...]:
    """Return the columns that the targets have, one for each name, where one for all does not do."""
    separated = any(LABELS_SEPARATOR in name for name in meaning.names)
    return meaning.names if meaning.task == "regress" or separated else ()


def _cells(told: Told, meaning: Meaning) -> list[str]:
    if meaning.task == "regress":
        return list(map(repr, told.numbers))
    if _columns(meaning):
        return [str(int(place in told.places)) for place in range(len(meaning.names))]
    return [LABELS_SEPARATOR.join(meaning.having(told))]
