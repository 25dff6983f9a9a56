"""The formats that can be written: how each stores a sample, and the settings that read it."""

import csv
import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from augment.data.dataset import CLASSES_FILE
from augment.data.formats.filelist import LABELS_SEPARATOR
from augment.data.formats.tfrecord import IMAGE, LABEL, TEXT, Feature, write_examples
from augment.data.targets.kind import Target, known_kinds
from augment.support.errors import UserError
from augment.support.text import table_cell

_PATH = "path"  # the column of a list that names the images

# File endings by the first bytes of a file.
_ENDINGS = {
    b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"BM": ".bmp", b"II*\0": ".tif", b"MM\0*": ".tif",
    b"\0\0\0\x0cjP": ".jp2", b"\xff\x4f\xff\x51": ".jp2", b"P": ".pnm",
}  # fmt: skip


@dataclass(frozen=True)
class Schema:
    """The kind of targets of a data set."""

    task: str  # each kind of target has a branch here and in each writer
    names: tuple[str, ...]  # of the classes, labels or numbers

    def indices(self, target: Target) -> list[int]:
        """Return the indices of an image's class or labels, rising."""
        return list(known_kinds()[self.task].present(target))

    def labels(self, target: Target) -> list[str]:
        """Return the names of an image's class or labels."""
        return [self.names[index] for index in self.indices(target)]

    def exact(self, target: Target) -> bytes:
        """Return bytes that are equal only for equal targets; numbers are compared as float32, as in training."""
        if self.task == "regress":
            return np.array(target, "<f4").tobytes()
        return "\n".join(self.labels(target)).encode()  # no name contains a line end


@dataclass(frozen=True)
class EncodedSample:
    """An encoded image to write; its key is a name without an ending, unique in the split, without dots and slashes."""

    key: str
    image: bytes
    target: Target

    @property
    def file(self) -> str:
        """The key with the ending that fits the content."""
        return self.key + next((ending for head, ending in _ENDINGS.items() if self.image.startswith(head)), ".jpg")


@dataclass(frozen=True)
class Format:
    """A format that can be written."""

    doc: str
    write: Callable[[Path, Iterable[EncodedSample], Schema], None]  # to a path without its ending, or into a folder
    ending: str = ""  # the ending of its shards; empty if it has none, because each image is a file
    image: str = ""  # name of the field that holds the image, which a number to predict cannot have


def check_names(schema: Schema, to: str) -> None:
    """Check that a format can hold a data set with these names.

    Raises:
        UserError: it cannot.
    """
    task, counts = schema.task, Counter(schema.names)
    kinds = {name: kind for name, kind in known_kinds().items() if not kind.follows}
    if task not in kinds:
        raise UserError(f"data: its task is {task}, which no format can hold. Allowed: {', '.join(kinds)}.")
    in_folder = to == "folder" and task
    for name in schema.names:
        shown = name.encode(errors="replace").decode()
        for wrong, why in (
            (name != shown, "has characters that are not Unicode"),
            (counts[name] > 1, f"is the name of more than one {kinds[task].noun}"),
            (name != name.strip() or name.splitlines() != [name], "has blanks around its name or lines in it"),
            (task == "regress" and name == FORMATS[to].image, "is named as the images are"),
            (in_folder == "multilabel" and LABELS_SEPARATOR in name, f"has a {LABELS_SEPARATOR} in it"),
            (in_folder == "classify" and ("/" in name or name.startswith(".")), "cannot be a folder"),
        ):
            if wrong:
                raise UserError(f"the {kinds[task].noun} '{shown}' {why}. Allowed with --to {to}: other names.")


def settings_of(to: str, out: Path, schema: Schema) -> dict[str, Any]:
    """Return the settings, `{source: name, ...}`, that read the files in a folder."""
    if to == "folder" and schema.task == "classify":
        return {"source": to, "root": str(out)}
    if to == "folder":
        found = {"source": "filelist", "train": f"{out}/train.csv", "val": f"{out}/val.csv"}
    else:
        found = {"source": to} | {split: f"{out}/{split}-*{FORMATS[to].ending}" for split in ("train", "val")}
    if schema.task == "regress":
        return found | {"targets": list(schema.names), "task": "regress"}
    found["classes"] = f"{out}/{CLASSES_FILE}"
    return found | ({"multilabel": True} if schema.task == "multilabel" else {})


def _write_folder(folder: Path, samples: Iterable[EncodedSample], schema: Schema) -> None:
    if schema.task == "classify":
        for sample in samples:
            class_folder = folder / schema.labels(sample.target)[0]
            class_folder.mkdir(parents=True, exist_ok=True)
            (class_folder / sample.file).write_bytes(sample.image)
        return
    folder.mkdir()
    with folder.with_suffix(".csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([_PATH, *map(table_cell, schema.names if schema.task == "regress" else ["label"])])
        for sample in samples:
            (folder / sample.file).write_bytes(sample.image)
            labels = LABELS_SEPARATOR.join(schema.labels(sample.target))
            cells = _numbers(sample.target) if schema.task == "regress" else [table_cell(labels)]
            writer.writerow([f"{folder.name}/{sample.file}", *cells])


def _write_tar(path: Path, samples: Iterable[EncodedSample], schema: Schema) -> None:
    ending = "cls" if schema.task == "classify" else "json"
    with tarfile.open(f"{path}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for sample in samples:
            label = (f"{sample.key}.{ending}", _label(sample.target, schema).encode())
            for file, content in ((sample.file, sample.image), label):
                member = tarfile.TarInfo(file)
                member.size, member.mode = len(content), 0o644
                archive.addfile(member, io.BytesIO(content))


def _label(target: Target, schema: Schema) -> str:
    """Return the content of the label file of an image."""
    if schema.task == "classify":
        return str(target)
    regress = schema.task == "regress"
    content = dict(zip(schema.names, _numbers(target), strict=True)) if regress else {"label": schema.labels(target)}
    return json.dumps(content, ensure_ascii=False)


def _write_tfrecord(path: Path, samples: Iterable[EncodedSample], schema: Schema) -> None:
    examples = ({IMAGE: [sample.image]} | _features(sample.target, schema) for sample in samples)
    write_examples(Path(f"{path}.tfrecord"), examples)


def _features(target: Target, schema: Schema) -> dict[str, Feature]:
    if schema.task == "regress":
        return {name: [number] for name, number in zip(schema.names, _numbers(target), strict=True)}
    labels: dict[str, Feature] = {LABEL: schema.indices(target)}
    names = [name.encode() for name in schema.labels(target)]
    return labels | ({TEXT: names} if names else {})


def _numbers(target: Target) -> list[float]:
    return list(map(float, [target] if isinstance(target, int) else target))


FORMATS: Mapping[str, Format] = {
    "folder": Format(
        "a file each, <split>/<class>/*, or with labels or numbers <split>/* and <split>.csv",
        _write_folder,
        image=_PATH,
    ),
    "webdataset": Format("tar shards", _write_tar, ".tar"),
    "tfrecord": Format("TFRecord, with the index of DALI's reader", _write_tfrecord, ".tfrecord", IMAGE),
}
