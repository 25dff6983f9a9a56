"""The formats that can be written: a shard of each, and reading it again as somebody else would."""

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from augment.records.recordio import index_records, unpack, write_records
from augment.records.spans import RecordFile, Span
from augment.records.tfrecord import TEXT, index_examples, write_examples
from augment.webdataset import index_shard

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
        target: its class.
        label: the class's name.
    """

    number: int
    key: str
    picture: bytes
    target: int
    label: str

    @property
    def file(self) -> str:
        """The key with the ending that goes with the content."""
        return self.key + next((ending for head, ending in _ENDINGS.items() if self.picture.startswith(head)), ".jpg")


@dataclass(frozen=True)
class Format:
    """A format that can be written.

    Attributes:
        doc: what it is, a phrase.
        write: writes the samples of a shard into a folder; gets the folder, the shard's name and the samples, and
            returns the names of what was written, the one that is read first.
        read: yields (name of the class, encoded picture) of what was written; gets the folder, the names and all
            classes.
        usage: the overrides that make it the data, with {out} for the folder.
    """

    doc: str
    write: Callable[[Path, str, Sequence[Sample]], list[str]]
    read: Callable[[Path, Sequence[str], Sequence[str]], Iterator[tuple[str, bytes]]]
    usage: str


def _write_folder(folder: Path, shard: str, samples: Sequence[Sample]) -> list[str]:
    names = [f"{shard.partition('-')[0]}/{sample.label}/{sample.file}" for sample in samples]
    for name, sample in zip(names, samples, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(sample.picture)
    return names


def _read_folder(folder: Path, names: Sequence[str], _: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        yield Path(name).parent.name, (folder / name).read_bytes()


def _write_tar(folder: Path, shard: str, samples: Sequence[Sample]) -> list[str]:
    name = f"{shard}.tar"
    with tarfile.open(folder / name, "w", format=tarfile.USTAR_FORMAT) as archive:
        for sample in samples:
            for file, content in ((sample.file, sample.picture), (f"{sample.key}.cls", str(sample.target).encode())):
                member = tarfile.TarInfo(file)
                member.size, member.mode = len(content), 0o644
                archive.addfile(member, io.BytesIO(content))
    return [name]


def _read_tar(folder: Path, names: Sequence[str], classes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    with (folder / names[0]).open("rb") as stream:
        for _, start, size, label in index_shard(folder / names[0], "cls"):
            stream.seek(start)
            yield classes[int(str(label))], stream.read(size)


def _write_tfrecord(folder: Path, shard: str, samples: Sequence[Sample]) -> list[str]:
    name = f"{shard}.tfrecord"
    write_examples(folder / name, [(sample.picture, sample.target, sample.label) for sample in samples])
    return [name, f"{name}.idx"]


def _read_tfrecord(folder: Path, names: Sequence[str], _: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    file = RecordFile.of(folder / names[0])
    index = index_examples(file, lambda _: None, label=TEXT)
    for (offset, length), label in zip(index.spans.tolist(), index.values().tolist(), strict=True):
        yield label, bytes(Span(file, "", offset, length).read())


def _write_recordio(folder: Path, shard: str, samples: Sequence[Sample]) -> list[str]:
    name = f"{shard}.rec"
    pictures = [(sample.picture, sample.target, sample.label) for sample in samples]
    write_records(folder / name, pictures, samples[0].number)
    return [name, f"{shard}.idx"]


def _read_recordio(folder: Path, names: Sequence[str], classes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    file = RecordFile.of(folder / names[0])
    index = index_records(file, lambda _: None)
    for (offset, length), label in zip(index.spans.tolist(), index.labels.tolist(), strict=True):
        yield classes[label], bytes(Span(file, "", offset, length, unpack).read())


def _usage(source: str, ending: str) -> str:
    return f"data={source} data.train='{{out}}/train-*{ending}' data.val='{{out}}/val-*{ending}' {_CLASSES}"


CLASSES_FILE = "classes.txt"
_CLASSES = f"data.classes={{out}}/{CLASSES_FILE}"

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "folder": Format("a file each, <split>/<class>/*", _write_folder, _read_folder, "data=folder data.root={out}"),
        "webdataset": Format("tar shards", _write_tar, _read_tar, _usage("webdataset", ".tar")),
        "tfrecord": Format(
            "TFRecord, with the index of DALI's reader",
            _write_tfrecord,
            _read_tfrecord,
            _usage("tfrecord", ".tfrecord"),
        ),
        "recordio": Format("MXNet's RecordIO", _write_recordio, _read_recordio, _usage("recordio", ".rec")),
    }
)
