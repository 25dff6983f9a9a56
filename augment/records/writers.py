"""The formats that can be written: a shard of each, and reading it again as somebody else would."""

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from augment.records.lists import CLASSES_FILE, names_given, typed, use_lists, write_lists
from augment.records.recordio import PADDING, index_records, unpack, write_records
from augment.records.spans import RecordFile, Span
from augment.records.tfrecord import Features, index_examples, write_examples
from augment.records.told import Meaning, Told, cut, told_of
from augment.records.webdataset import index_shard

# What a file that begins so is called.
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
    """A picture to be written.

    Attributes:
        number: its place in the split.
        key: its name without an ending, unique in the split, without dots and slashes.
        picture: encoded.
        told: its target.
    """

    number: int
    key: str
    picture: bytes
    told: Told

    @property
    def file(self) -> str:
        """The key with the ending that goes with the content."""
        return self.key + next((ending for head, ending in _ENDINGS.items() if self.picture.startswith(head)), ".jpg")


@dataclass(frozen=True)
class Format:
    """A format that can be written.

    Attributes:
        doc: what it is, a phrase.
        write: writes the samples of a shard into a folder; gets the folder, the shard's name, the samples and what
            their targets are, and returns the names of what was written, the one that is read first.
        read: yields (target, encoded picture) of what was written, None for a target that is not told there; gets the
            folder, the names and what targets are.
        usage: the overrides that make it the data; gets the folder and what targets are.
        finish: writes what is about all shards, if there is anything; gets the folder, by split the names of the
            pictures' files and their targets, and what targets are.
    """

    doc: str
    write: Callable[[Path, str, Sequence[Sample], Meaning], list[str]]
    read: Callable[[Path, Sequence[str], Meaning], Iterator[tuple[Told | None, bytes]]]
    usage: Callable[[Path, Meaning], str]
    finish: Callable[[Path, Mapping[str, tuple[Sequence[str], Sequence[Told]]], Meaning], object] = lambda *_: None


def _write_folder(folder: Path, shard: str, samples: Sequence[Sample], meaning: Meaning) -> list[str]:
    split = shard.partition("-")[0]
    parts = ["".join(f"{name}/" for name in meaning.having(s.told) if meaning.task == "classify") for s in samples]
    names = [f"{split}/{part}{sample.file}" for part, sample in zip(parts, samples, strict=True)]
    for part in dict.fromkeys(parts):
        (folder / split / part).mkdir(parents=True)
    for name, sample in zip(names, samples, strict=True):
        (folder / name).write_bytes(sample.picture)
    return names


def _read_folder(folder: Path, names: Sequence[str], meaning: Meaning) -> Iterator[tuple[Told | None, bytes]]:
    places = {name: place for place, name in enumerate(meaning.names)}
    for name in names:
        told = Told((places[Path(name).parent.name],)) if meaning.task == "classify" else None
        yield told, (folder / name).read_bytes()


def _use_folder(out: Path, meaning: Meaning) -> str:
    return typed("folder", {"root": out}) if meaning.task == "classify" else use_lists(out, meaning)


def _write_tar(folder: Path, shard: str, samples: Sequence[Sample], meaning: Meaning) -> list[str]:
    name = f"{shard}.tar"
    ending = "cls" if meaning.task == "classify" else "json"
    with tarfile.open(folder / name, "w", format=tarfile.USTAR_FORMAT) as archive:
        for sample in samples:
            label = (f"{sample.key}.{ending}", _label(sample.told, meaning).encode())
            for file, content in ((sample.file, sample.picture), label):
                member = tarfile.TarInfo(file)
                member.size, member.mode = len(content), 0o644
                archive.addfile(member, io.BytesIO(content))
    return [name]


def _label(told: Told, meaning: Meaning) -> str:
    """Return what is written into the file beside a picture."""
    match meaning.task:
        case "classify":
            return str(told.places[0])
        case "multilabel":
            return json.dumps({"label": meaning.having(told)}, ensure_ascii=False)
        case "regress":
            return json.dumps(dict(zip(meaning.names, told.numbers, strict=True)), ensure_ascii=False)


def _read_tar(folder: Path, names: Sequence[str], meaning: Meaning) -> Iterator[tuple[Told, bytes]]:
    places = {name: place for place, name in enumerate(meaning.names)}
    wanted = "cls" if meaning.task == "classify" else "json.label"
    numbers = meaning.names if meaning.task == "regress" else ()
    with (folder / names[0]).open("rb") as stream:
        for _, start, size, found in index_shard(folder / names[0], wanted, numbers):
            values = found if isinstance(found, list) else [found]
            if meaning.task == "multilabel":
                values = [places[str(name)] for name in values]
            stream.seek(start)
            yield told_of(values, meaning.task), stream.read(size)


def _write_tfrecord(folder: Path, shard: str, samples: Sequence[Sample], meaning: Meaning) -> list[str]:
    name = f"{shard}.tfrecord"
    write_examples(folder / name, [(sample.picture, _features(sample.told, meaning)) for sample in samples])
    return [name, f"{name}.idx"]


def _features(told: Told, meaning: Meaning) -> Features:
    if meaning.task == "regress":
        return Features(numbers=dict(zip(meaning.names, told.numbers, strict=True)))
    return Features(told.places, meaning.having(told))


def _read_tfrecord(folder: Path, names: Sequence[str], meaning: Meaning) -> Iterator[tuple[Told, bytes]]:
    file = RecordFile.of(folder / names[0])
    index = index_examples(file, lambda _: None, targets=meaning.names if meaning.task == "regress" else ())
    values = cut(index.labels.tolist(), index.counts.tolist())
    for (offset, length), found in zip(index.spans.tolist(), values, strict=True):
        yield told_of(found, meaning.task), bytes(Span(file, "", offset, length).read())


def _write_recordio(folder: Path, shard: str, samples: Sequence[Sample], meaning: Meaning) -> list[str]:
    name = f"{shard}.rec"
    pictures = [(sample.picture, _floats(sample.told, meaning)) for sample in samples]
    write_records(folder / name, pictures, samples[0].number)
    return [name, f"{shard}.idx"]


def _floats(told: Told, meaning: Meaning) -> float | Sequence[float]:
    """Return what a record's header holds: an array of several, which is not empty, for then it would be class 0."""
    if meaning.task == "multilabel":
        return told.places or (PADDING,)
    values = told.numbers if meaning.task == "regress" else told.places
    return values[0] if len(values) == 1 else values


def _read_recordio(folder: Path, names: Sequence[str], meaning: Meaning) -> Iterator[tuple[Told, bytes]]:
    file = RecordFile.of(folder / names[0])
    index = index_records(file, lambda _: None)
    values = cut(index.labels.tolist(), index.counts.tolist())
    for (offset, length), found in zip(index.spans.tolist(), values, strict=True):
        if meaning.task == "multilabel":
            found = [value for value in found if value != PADDING]
        yield told_of(found, meaning.task), bytes(Span(file, "", offset, length, unpack).read())


def _use(source: str, ending: str) -> Callable[[Path, Meaning], str]:
    def usage(out: Path, meaning: Meaning) -> str:
        settings: dict[str, object] = {"train": out / f"train-*{ending}", "val": out / f"val-*{ending}"}
        if meaning.task == "regress":
            settings |= {"targets": names_given(meaning.names), "task": "regress"}
        else:
            settings["classes"] = out / CLASSES_FILE
        if meaning.task == "multilabel":
            settings["multilabel"] = "true"
        return typed(source, settings)

    return usage


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "folder": Format(
            "a file each, <split>/<class>/*, or with labels or numbers <split>/* and <split>.csv",
            _write_folder,
            _read_folder,
            _use_folder,
            write_lists,
        ),
        "webdataset": Format("tar shards", _write_tar, _read_tar, _use("webdataset", ".tar")),
        "tfrecord": Format(
            "TFRecord, with the index of DALI's reader",
            _write_tfrecord,
            _read_tfrecord,
            _use("tfrecord", ".tfrecord"),
        ),
        "recordio": Format("MXNet's RecordIO", _write_recordio, _read_recordio, _use("recordio", ".rec")),
    }
)
