"""Write lists of images and their targets, for tasks without a folder per class."""

import csv
import io
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from augment.data.convert.schema import Schema, Values
from augment.data.formats.filelist import LABELS_SEPARATOR, read_list
from augment.data.targets.kind import TargetOptions, known_kinds
from augment.data.targets.lists import make_list_dataset
from augment.support.errors import UserError
from augment.support.files import write_atomically
from augment.support.text import table_cell

CLASSES_FILE = "classes.txt"

_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_WORDS = {"null", "true", "false", "nan", "inf"}  # that mean something on the command line


def write_lists(out: Path, rows: Mapping[str, tuple[Sequence[str], Sequence[Values]]], schema: Schema) -> None:
    """Write a list of each split, `<split>.csv`, and read them back; unless each image has one class.

    Args:
        out: folder of the lists, which paths are relative to.
        rows: the paths of the images and their targets by split.
        schema: the kind of targets.

    Raises:
        UserError: a list differs when read back.
        OSError: it cannot be written.
    """
    if schema.task == "classify":
        return
    image, columns = _image_column(schema), _columns(schema)
    for split, (paths, targets) in rows.items():
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([image, *map(table_cell, columns or ["label"])])
        for path, values in zip(paths, targets, strict=True):
            writer.writerow([table_cell(path), *_cells(values, schema)])
        write_atomically(out / f"{split}.csv", stream.getvalue())
    lists = [
        read_list(f"data.{split}", out / f"{split}.csv", image=image, label=None, targets=columns) for split in rows
    ]
    options = TargetOptions(known_kinds()[schema.task], schema.names if schema.task == "multilabel" else None)
    found = make_list_dataset(lists, [[Path(line.path) for line in lines.lines] for lines in lists], options)
    for (names, targets), lines, split_found in zip(rows.values(), lists, (found.train, found.val), strict=True):
        same = [line.path for line in lines.lines] == list(names)
        again = map(schema.exact, schema.values(split_found.targets))
        if not same or list(again) != list(map(schema.exact, targets)) or found.classes != schema.names:
            raise UserError(f"{lines.file}: differs when read back.")


def use_lists(out: Path, schema: Schema) -> str:
    """Return the overrides that read the lists."""
    settings: dict[str, object] = {"train": out / "train.csv", "val": out / "val.csv"}
    if (image := _image_column(schema)) != "path":
        settings["image"] = image
    if columns := _columns(schema):
        settings["targets"] = names_given(columns)
    elif schema.task == "multilabel":
        settings["classes"] = out / CLASSES_FILE
    if schema.task == "multilabel":
        settings["multilabel"] = "true"
    elif columns:
        settings["task"] = schema.task  # they may all be 0 and 1
    return typed("filelist", settings)


def typed(source: str, settings: Mapping[str, object]) -> str:
    """Return overrides as typed in a shell."""
    return " ".join([f"data={source}", *(shlex.quote(f"data.{name}={value}") for name, value in settings.items())])


def names_given(names: Sequence[str]) -> str:
    """Return names as a list in the command line's grammar."""
    given = []
    for name in names:
        if not _PLAIN.fullmatch(name) or name.lower() in _WORDS:
            # Before a quote, the grammar wants each backslash twice.
            name = "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), name) + "'"
        given.append(name)
    return f"[{','.join(given)}]"


def _image_column(schema: Schema) -> str:
    name = "path"
    while name in schema.names:
        name += "_"
    return name


def _columns(schema: Schema) -> tuple[str, ...]:
    """Return the columns of the targets, one for each name; empty where one column for all is enough."""
    separated = any(LABELS_SEPARATOR in name for name in schema.names)
    return schema.names if schema.task == "regress" or separated else ()


def _cells(values: Values, schema: Schema) -> list[str]:
    if schema.task == "regress":
        return list(map(repr, values))
    if _columns(schema):
        return [str(int(index in values)) for index in range(len(schema.names))]
    return [table_cell(LABELS_SEPARATOR.join(schema.names_of(values)))]
