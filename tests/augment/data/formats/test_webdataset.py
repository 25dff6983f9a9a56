"""Tar shards: samples, labels, and every way in which a shard can be broken."""

import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from stores import write_shards, write_tar

from augment.data.dataset import Dataset, Split
from augment.data.formats.records import RecordFile, Span
from augment.data.formats.webdataset import read_shard
from augment.data.sources import parse_data
from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture
def jpeg(image_files: Split) -> bytes:
    assert isinstance(image_files.files[0], Path)
    return image_files.files[0].read_bytes()


def load(train: str, val: str | None = None, **settings: Any) -> Dataset:
    return parse_data({"source": "webdataset", "train": train, "val": val or train, **settings}).load()


def only_sample(file: Path, label: str | None = None) -> tuple[str, int, int, Any]:
    """Return name, offset, length and label of the only sample of a shard."""
    ((offset, length, (value,), name),) = read_shard(RecordFile.of(file), label=label)
    return name, offset, length, value


def names(split: Split) -> list[str]:
    return [file.name for file in split.files]


def test_images_are_unchanged_and_in_the_order_of_their_shards(image_files: Split, tmp_path: Path) -> None:
    files = [Path(str(file)) for file in image_files.files]
    dataset = load(write_shards(tmp_path, files, image_files.targets, 3))
    order = [0, 3, 6, 1, 4, 2, 5]
    assert names(dataset.train) == [f"train-{i % 3:03}.tar/photos/{i:04}.jpg" for i in order]
    assert dataset.classes == ("0", "1", "2")
    assert dataset.train.targets == tuple(image_files.targets[i] for i in order)
    stored = [file for file in dataset.train.files if isinstance(file, Span)]
    assert [bytes(file.read()) for file in stored] == [files[i].read_bytes() for i in order]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_format_of_tar_and_long_names(format: int, jpeg: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    stem = "cäfé" * 20 if format != tarfile.USTAR_FORMAT else "cafe"
    (tmp_path / "a" / f"{stem}.jpg").write_bytes(jpeg)
    (tmp_path / "a" / f"{stem}.cls").write_text("0")
    with tarfile.open(tmp_path / "it.tar", "w", format=format) as archive:
        archive.add(tmp_path / "a", "a")
    name, start, size, label = only_sample(tmp_path / "it.tar")
    assert (name, size, label) == (f"a/{stem}.jpg", len(jpeg), 0)
    assert (tmp_path / "it.tar").read_bytes()[start : start + size] == jpeg


LABELS: dict[str, tuple[dict[str, bytes], str | None, Any]] = {
    "number": ({"cls": b"3"}, None, 3),
    "zeros": ({"cls": b"003"}, None, "003"),
    "byte order mark": ({"cls": "\ufeffcat".encode()}, None, "cat"),
    "name": ({"cls": b" sea lion\n"}, None, "sea lion"),
    "json": ({"json": b'{"label": 4}'}, None, 4),
    "cls before json": ({"json": b'{"label": 4}', "cls": b"1"}, None, 1),
    "field": ({"json": b'{"a": {"b": "cat"}, "label": 4}', "cls": b"1"}, "json.a.b", "cat"),
    "other fields": (
        {"json": b'{"label": 4, "hash": 123456789012345678901234567890, "tree": %b}' % (b"[" * 50 + b"]" * 50)},
        None,
        4,
    ),
    "ending": ({"cls": b"1", "breed.txt": b"2"}, "breed.txt", 2),
}


@pytest.mark.parametrize("case", LABELS)
def test_sources_of_labels(case: str, jpeg: bytes, tmp_path: Path) -> None:
    members, setting, expected = LABELS[case]
    file = write_tar(tmp_path / "it.tar", {"a.jpg": jpeg, **{f"a.{name}": v for name, v in members.items()}})
    assert only_sample(file, setting)[3] == expected


BROKEN: dict[str, tuple[Any, str]] = {
    "no label": ({"b.cls": None, "b.txt": b"1"}, "b.jpg has no label: cannot find b.cls or b.json, only b.txt"),
    "no image": ({"b.jpg": None, "b.gif": b"GIF"}, "sample b has no image: b.cls, b.gif"),
    "two images": ({"b.png": b"x"}, "sample b has more than one image: b.jpg, b.cls, b.png"),
    "empty label": ({"b.cls": b" \n"}, "b.cls is empty"),
    "no text": ({"b.cls": b"\xff"}, "b.cls is not text"),
    "no json": ({"b.cls": None, "b.json": b"{"}, "b.json is not JSON"),
    "no field": ({"b.cls": None, "b.json": b'{"class": 1}'}, "b.json has no field label. Allowed: class."),
    "list": (
        {"b.cls": None, "b.json": b'{"label": [1, null]}'},
        "b.jpg has the label None. Use numbers, names",
    ),
    "long number": (
        {"b.cls": None, "b.json": b'{"label": [1, -9223372036854775809]}'},
        "b.jpg has the label -9223372036854775809, which does not fit into 64 bits. Store it as text.",
    ),
    "deep label": ({"b.cls": None, "b.json": b'{"label": %b}' % (b"[" * 500 + b"]" * 500)}, "b.jpg has the label [[["),
    "too deep": ({"b.cls": None, "b.json": b"[" * 10**5}, "b.json is not JSON (nested too deeply)"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_invalid_samples_are_rejected(case: str, jpeg: bytes, tmp_path: Path) -> None:
    changes, message = BROKEN[case]
    members = {"a.jpg": jpeg, "a.cls": b"0", "b.jpg": jpeg, "b.cls": b"1"} | changes
    file = write_tar(tmp_path / "it.tar", {name: content for name, content in members.items() if content is not None})
    with pytest.raises(UserError, match=re.escape(message)):
        load(str(file))


@pytest.mark.parametrize("size", [-1024, 2**70])
def test_sizes_that_no_file_has_are_rejected(size: int, jpeg: bytes, tmp_path: Path) -> None:
    file = write_tar(tmp_path / "it.tar", {"a.jpg": jpeg, "a.cls": b"0"})
    head = bytearray(file.read_bytes()[:512])
    head[124:136] = size.to_bytes(12, signed=True) if size < 0 else (2**95 + size).to_bytes(12)
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    file.write_bytes(head + file.read_bytes()[512:])
    with pytest.raises(UserError, match=r"it\.tar: is (damaged|not an uncompressed tar file)"):
        load(str(file))


def test_sparse_files_of_any_size_are_rejected(jpeg: bytes, tmp_path: Path) -> None:
    file = write_tar(tmp_path / "it.tar", {"a.jpg": jpeg, "a.cls": b"0"})
    head = bytearray(file.read_bytes()[:512])
    head[156:157], head[257:265] = tarfile.GNUTYPE_SPARSE, b"ustar  \0"
    head[386:410], head[483:495] = bytes(24), (2**95 + 2**80).to_bytes(12)  # no block with data, and the size
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    file.write_bytes(head + file.read_bytes()[512:])
    with pytest.raises(UserError, match=r"it\.tar: is damaged, or cannot be read"):
        load(str(file))


def test_text_may_be_numbers(jpeg: bytes, tmp_path: Path) -> None:
    file = str(write_tar(tmp_path / "it.tar", {"a.jpg": jpeg, "a.age": b"2", "b.jpg": jpeg, "b.age": b"1.5\n"}))
    assert load(file, label="age", task="regress").train.targets == ((2.0,), (1.5,))


def test_labels_with_zeros_in_front_are_names(jpeg: bytes, tmp_path: Path) -> None:
    members = {
        f"{i}.{end}": part for i, label in enumerate((b"007", b"7")) for end, part in (("jpg", jpeg), ("cls", label))
    }
    assert load(str(write_tar(tmp_path / "it.tar", members))).classes == ("007", "7")


def test_lists_become_several_labels(jpeg: bytes, tmp_path: Path) -> None:
    def shard(*labels: str) -> str:
        members = {f"{i}.{end}": content for i, label in enumerate(labels)
                   for end, content in (("jpg", jpeg), ("json", b'{"label": %b}' % label.encode()))}  # fmt: skip
        return str(write_tar(tmp_path / "it.tar", members))

    for _ in range(2):  # as indexed, and as kept
        dataset = load(shard('["dog", "cat"]', "[]", '"dog"'))
        assert (dataset.task, dataset.classes) == ("multilabel", ("cat", "dog"))
        assert dataset.train.targets == ((1.0, 1.0), (0.0, 0.0), (0.0, 1.0))
    one = load(shard("[1]", "0"))
    assert (one.task, one.train.targets) == ("classify", (1, 0))
    with pytest.raises(UserError, match=r"^data\.train: it\.tar/1\.jpg has no label\. Give each image one label"):
        load(shard("[0]", "[]"))
    assert load(shard("[0]", "[]"), multilabel=True).train.targets == ((1.0,), (0.0,))


def test_labels_in_large_files_are_rejected(jpeg: bytes, tmp_path: Path) -> None:
    label = tarfile.TarInfo("a.cls")
    label.size = 2**27
    shard = write_tar(tmp_path / "a.tar", {"a.jpg": jpeg})
    end = 512 + len(jpeg) + -len(jpeg) % 512
    with shard.open("r+b") as stream:
        stream.seek(end)
        stream.write(label.tobuf())
        stream.truncate(end + 512 + label.size + 1024)  # a sparse file
    with pytest.raises(UserError, match=r"a\.cls has 134,217,728 bytes\. The limit is 67,108,864\."):
        list(read_shard(RecordFile.of(shard)))


def test_names_of_any_length_are_stored(jpeg: bytes, tmp_path: Path) -> None:
    names = [f"class {i}" for i in range(999)] + ["x" * 10**7]
    images = {f"{i}.jpg": jpeg for i in range(1000)}
    write_tar(tmp_path / "a.tar", images | {f"{i}.cls": name.encode() for i, name in enumerate(names)})
    for _ in range(2):  # the second time, from the stored index
        assert load(f"{tmp_path}/a.tar").classes == tuple(sorted(names))
