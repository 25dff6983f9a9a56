"""The formats that can be written: write a shard of each, and read it back."""

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from augment.data.convert.lists import CLASSES_FILE, names_given, typed, use_lists, write_lists
from augment.data.convert.schema import Schema, Values
from augment.data.formats.index import Reader
from augment.data.formats.recordio import PADDING, read_records, unpack, write_records
from augment.data.formats.spans import RecordFile, Span
from augment.data.formats.tfrecord import IMAGE, LABEL, TEXT, Feature, read_examples, write_examples
from augment.data.formats.webdataset import read_shard
from augment.data.targets.given import Label

# File endings by the first bytes of a file.
_ENDINGS = {
    b"\xff\xd8": ".jpg",
    b"\x89PNG": ".png",
    b"RIFF": ".webp",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
    b"\0\0\0\x0cjP": ".jp2",
    b"\xff\x4f\xff\x51": ".jp2",
    b"P": ".pnm",
}


@dataclass(frozen=True)
class Sample:
    """An image to write.

    Attributes:
        number: index of the image in the split.
        key: name without an ending, unique in the split, without dots and slashes.
        image: the encoded image.
        values: the target.
    """

    number: int
    key: str
    image: bytes
    values: Values

    @property
    def file(self) -> str:
        """The key with the ending that fits the content."""
        return self.key + next((ending for head, ending in _ENDINGS.items() if self.image.startswith(head)), ".jpg")


@dataclass(frozen=True)
class Format:
    """A format that can be written.

    Attributes:
        doc: a phrase that describes it.
        write: writes the samples of a shard into a folder; takes the folder, the shard's name, the samples and the
            schema; returns the names of the files, the one to read first.
        read: yields (target, encoded image) of these files, None for a target that is stored elsewhere; takes the
            folder, the names and the schema.
        usage: returns the overrides that read the data; takes the folder and the schema.
        finish: writes files about all shards, if there are any; takes the folder, the names of the image files and
            their targets by split, and the schema.
    """

    doc: str
    write: Callable[[Path, str, Sequence[Sample], Schema], list[str]]
    read: Callable[[Path, Sequence[str], Schema], Iterator[tuple[Values | None, bytes]]]
    usage: Callable[[Path, Schema], str]
    finish: Callable[[Path, Mapping[str, tuple[Sequence[str], Sequence[Values]]], Schema], object] = lambda *_: None


def _write_folder(folder: Path, shard: str, samples: Sequence[Sample], schema: Schema) -> list[str]:
    split = shard.partition("-")[0]
    classified = schema.task == "classify"
    parts = [f"{schema.names[int(sample.values[0])]}/" if classified else "" for sample in samples]
    names = [f"{split}/{part}{sample.file}" for part, sample in zip(parts, samples, strict=True)]
    for part in dict.fromkeys(parts):
        (folder / split / part).mkdir(parents=True)
    for name, sample in zip(names, samples, strict=True):
        (folder / name).write_bytes(sample.image)
    return names


def _read_folder(folder: Path, names: Sequence[str], schema: Schema) -> Iterator[tuple[Values | None, bytes]]:
    indices = {name: index for index, name in enumerate(schema.names)}
    for name in names:
        values = (indices[Path(name).parent.name],) if schema.task == "classify" else None
        yield values, (folder / name).read_bytes()


def _use_folder(out: Path, schema: Schema) -> str:
    return typed("folder", {"root": out}) if schema.task == "classify" else use_lists(out, schema)


def _write_tar(folder: Path, shard: str, samples: Sequence[Sample], schema: Schema) -> list[str]:
    name = f"{shard}.tar"
    ending = "cls" if schema.task == "classify" else "json"
    with tarfile.open(folder / name, "w", format=tarfile.USTAR_FORMAT) as archive:
        for sample in samples:
            label = (f"{sample.key}.{ending}", _label(sample.values, schema).encode())
            for file, content in ((sample.file, sample.image), label):
                member = tarfile.TarInfo(file)
                member.size, member.mode = len(content), 0o644
                archive.addfile(member, io.BytesIO(content))
    return [name]


def _label(values: Values, schema: Schema) -> str:
    """Return the content of the label file of an image."""
    if schema.task == "classify":
        return str(values[0])
    content = dict(zip(schema.names, values, strict=True)) if schema.task == "regress" else None
    return json.dumps(content or {"label": schema.names_of(values)}, ensure_ascii=False)


def _read_tar(folder: Path, names: Sequence[str], schema: Schema) -> Iterator[tuple[Values, bytes]]:
    wanted = "cls" if schema.task == "classify" else "json.label"
    read = partial(read_shard, label=wanted, targets=schema.names if schema.task == "regress" else ())
    indices: dict[Label, int] = {name: index for index, name in enumerate(schema.names)}
    for values, image in _read_records(folder / names[0], read):
        yield [indices[name] for name in values] if schema.task == "multilabel" else values, image


def _read_records(path: Path, read: Reader, **more: Any) -> Iterator[tuple[list[Label], bytes]]:
    file = RecordFile.of(path)
    for record in read(file):
        yield list(record.labels), bytes(Span(file, "", record.offset, record.length, **more).read())


def _write_tfrecord(folder: Path, shard: str, samples: Sequence[Sample], schema: Schema) -> list[str]:
    name = f"{shard}.tfrecord"
    write_examples(folder / name, [{IMAGE: [sample.image]} | _features(sample.values, schema) for sample in samples])
    return [name, f"{name}.idx"]


def _features(values: Values, schema: Schema) -> dict[str, Feature]:
    if schema.task == "regress":
        return {name: [float(number)] for name, number in zip(schema.names, values, strict=True)}
    labels: dict[str, Feature] = {LABEL: list(map(int, values))}
    return labels | ({TEXT: [name.encode() for name in schema.names_of(values)]} if values else {})


def _read_tfrecord(folder: Path, names: Sequence[str], schema: Schema) -> Iterator[tuple[Values, bytes]]:
    targets = schema.names if schema.task == "regress" else ()
    return _read_records(folder / names[0], partial(read_examples, targets=targets))


def _write_recordio(folder: Path, shard: str, samples: Sequence[Sample], schema: Schema) -> list[str]:
    name = f"{shard}.rec"
    images = [(sample.image, _floats(sample.values, schema)) for sample in samples]
    write_records(folder / name, images, samples[0].number)
    return [name, f"{shard}.idx"]


def _floats(values: Values, schema: Schema) -> float | Sequence[float]:
    """Return the labels of a record's header: several as an array, which must not be empty, or it would be class 0."""
    numbers = list(map(float, values))
    if schema.task == "multilabel":
        return numbers or (PADDING,)
    return numbers[0] if len(numbers) == 1 else numbers


def _read_recordio(folder: Path, names: Sequence[str], schema: Schema) -> Iterator[tuple[Values, bytes]]:
    for values, image in _read_records(folder / names[0], read_records, unpack=unpack):
        yield [value for value in values if value != PADDING or schema.task != "multilabel"], image


def _use(source: str, ending: str, out: Path, schema: Schema) -> str:
    settings: dict[str, object] = {"train": out / f"train-*{ending}", "val": out / f"val-*{ending}"}
    if schema.task == "regress":
        settings |= {"targets": names_given(schema.names), "task": "regress"}
    else:
        settings["classes"] = out / CLASSES_FILE
    if schema.task == "multilabel":
        settings["multilabel"] = "true"
    return typed(source, settings)


FORMATS: Mapping[str, Format] = {
    "folder": Format(
        "a file each, <split>/<class>/*, or with labels or numbers <split>/* and <split>.csv",
        _write_folder,
        _read_folder,
        _use_folder,
        write_lists,
    ),
    "webdataset": Format("tar shards", _write_tar, _read_tar, partial(_use, "webdataset", ".tar")),
    "tfrecord": Format(
        "TFRecord, with the index of DALI's reader",
        _write_tfrecord,
        _read_tfrecord,
        partial(_use, "tfrecord", ".tfrecord"),
    ),
    "recordio": Format("MXNet's RecordIO", _write_recordio, _read_recordio, partial(_use, "recordio", ".rec")),
}
