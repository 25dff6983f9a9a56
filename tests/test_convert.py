"""Data that is written in other formats is the same data, whoever reads it, also after a run that was stopped."""

import errno
import json
import sys
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from nvidia.dali import fn, pipeline_def
from PIL import Image

from augment.convert import main
from augment.dataset import Dataset, Split
from augment.errors import UserError
from augment.records import conversion
from augment.records.conversion import Options, convert
from augment.records.manifest import MANIFEST, Done, total_checksum
from augment.records.writers import FORMATS
from augment.sources import parse_data
from augment.stored import read_encoded

CLASSES = ("cat", "10", "2")  # whose order is not that of their names
SOURCES = {
    "folder": {"root": "{out}"},
    "webdataset": {"train": "{out}/train-*.tar", "val": "{out}/val-*.tar", "classes": "{out}/classes.txt"},
    "tfrecord": {"train": "{out}/train-*.tfrecord", "val": "{out}/val-*.tfrecord", "classes": "{out}/classes.txt"},
    "recordio": {"train": "{out}/train-*.rec", "val": "{out}/val-*.rec", "classes": "{out}/classes.txt"},
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def dataset(pictures: Split) -> Dataset:
    return Dataset(CLASSES, pictures, Split(pictures.files[:3], pictures.targets[:3]))


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MiB is a KiB, so that each picture or two are a shard."""
    cut = conversion._cut
    monkeypatch.setattr(conversion, "_cut", lambda s, o: cut(s, Options(o.to, o.size, o.quality, o.shard_mb / 1024)))  # type: ignore[arg-type]


def content(dataset: Dataset, split: str) -> Counter[tuple[str, bytes]]:
    found: Split = getattr(dataset, split)
    return Counter(
        (dataset.classes[target], bytes(read_encoded(file)))
        for file, target in zip(found.files, found.targets, strict=True)
    )


def load(to: str, out: Path) -> Dataset:
    return parse_data({"source": to, **{key: text.format(out=out) for key, text in SOURCES[to].items()}}).load()


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.usefixtures("small_shards")
def test_what_is_written_is_the_same_data(to: str, dataset: Dataset, tmp_path: Path) -> None:
    shards = convert(dataset, tmp_path / "out", Options(to, shard_mb=2))
    assert len(shards) > 3
    written = load(to, tmp_path / "out")
    for split in ("train", "val"):
        assert content(written, split) == content(dataset, split)
    again = convert(written, tmp_path / "folder", Options("folder", shard_mb=2))
    assert total_checksum(again) == total_checksum(shards)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.usefixtures("small_shards")
def test_a_stopped_run_is_gone_on_with(
    to: str, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, options, finish = tmp_path / "out", Options(to, shard_mb=2), conversion._finish
    done: list[Done] = []

    def stop(task: conversion._Task) -> Done:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(finish(task))
        return done[-1]

    with monkeypatch.context() as patch:
        patch.setattr(conversion, "_finish", stop)
        with pytest.raises(KeyboardInterrupt):
            convert(dataset, out, options)
    with (out / MANIFEST).open("a") as manifest:
        manifest.write('{"shard": "train-000')  # as a full disk leaves it
    (out / ".killed.part").mkdir()
    damaged = out / done[1].files[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    shards = convert(dataset, out, options)
    assert [shard.kept for shard in shards[:4]] == [True, False, True, False]
    assert content(load(to, out), "train") == content(dataset, "train")
    assert all(shard.kept for shard in convert(dataset, out, options))
    assert json.loads((out / MANIFEST).read_text().splitlines()[-1])["pictures"] == 10
    assert not list(out.glob("**/*.part"))


def test_larger_pictures_are_brought_to_a_short_side(tmp_path: Path) -> None:
    names = {"wide": (90, 60), "tall": (33, 80), "small": (20, 90), "turned": (80, 60)}
    for split in ("train", "val"):
        folder = tmp_path / "data" / split / "a"
        folder.mkdir(parents=True)
        for name, size in names.items():
            image = Image.linear_gradient("L").resize(size).convert("RGB")
            exif = Image.Exif()
            exif[0x0112] = 6 if name == "turned" else 1  # to be turned by 90 degrees
            image.save(folder / f"{name}.jpg", exif=exif)
    dataset = parse_data({"source": "folder", "root": str(tmp_path / "data")}).load()
    convert(dataset, tmp_path / "out", Options("folder", size=30))
    found = {file.stem.split("_")[1]: file for file in (tmp_path / "out/train/a").iterdir()}
    sizes = {name: Image.open(BytesIO(file.read_bytes())).size for name, file in found.items()}
    assert sizes == {"wide": (45, 30), "tall": (30, 73), "small": (20, 90), "turned": (30, 40)}
    assert found["small"].read_bytes() == (tmp_path / "data/train/a/small.jpg").read_bytes()
    shown = np.asarray(Image.open(found["turned"]).convert("L"), dtype=float)
    assert shown[:, 0].mean() > shown[:, -1].mean() + 100  # the dark top has come to the right


def test_dali_reads_the_shards(dataset: Dataset, tmp_path: Path) -> None:
    convert(dataset, tmp_path / "out", Options("webdataset"))

    @pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def pipeline() -> tuple[object, ...]:
        (shard,) = (tmp_path / "out").glob("val-*.tar")
        return tuple(fn.readers.webdataset(paths=[str(shard)], ext=["jpg", "cls"]))

    pictures, labels = pipeline().run()
    assert [np.array(pictures[i]).tobytes() for i in range(3)] == [read_encoded(file) for file in dataset.val.files]
    assert [int(np.array(labels[i]).tobytes()) for i in range(3)] == list(dataset.val.targets)


@pytest.mark.slow
def test_several_processes_write_what_one_writes(tmp_path: Path) -> None:
    for jobs in ("1", "2"):
        main(["data=sample", "--to", "tfrecord", "--out", str(tmp_path / jobs), "--shard-mb", "1", "--jobs", jobs])
    one, two = ({file.name: file.read_bytes() for file in (tmp_path / jobs).glob("*-of-*")} for jobs in "12")
    assert len(one) > 4
    assert one == two


def test_a_folder_with_something_else_is_left_alone(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(UserError, match=r"--out .*: is there and was not written by this program"):
        convert(dataset, tmp_path / "out", Options("folder"))
    convert(dataset, tmp_path / "new", Options("folder"))
    with pytest.raises(UserError, match="holds another conversion, which differs in size"):
        convert(dataset, tmp_path / "new", Options("folder", size=32))
    other = Dataset(dataset.classes, dataset.val, dataset.val)
    with pytest.raises(UserError, match="holds another conversion, which differs in data"):
        convert(other, tmp_path / "new", Options("folder"))


def test_no_room_is_said_before_anything_is_written(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UserError, match=r"\d MB are needed, and there is room for 0\.0"):
        convert(dataset, tmp_path / "out", Options("tfrecord"))
    assert not (tmp_path / "out").exists()


def test_pictures_with_several_labels_are_refused(pictures: Split, tmp_path: Path) -> None:
    several = Split(pictures.files, ((1.0, 0.0),) * len(pictures))
    with pytest.raises(UserError, match=r"^data: pictures with several labels are not written. Allowed: one class a"):
        convert(Dataset(("a", "b"), several, several, "multilabel"), tmp_path / "out", Options("tfrecord"))


def test_a_folder_that_cannot_be_written_is_said(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match=r"^--out .*out: cannot be written: Read-only file system\.$"):
        convert(dataset, tmp_path / "out", Options("tfrecord"))


def test_a_stopped_run_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules[main.__module__], "load_dataset", stopped)
    with pytest.raises(SystemExit) as caught:
        main(["data=sample", "--to", "tfrecord", "--out", "out"])
    assert (caught.value.code, capsys.readouterr().err[:32]) == (130, "stopped: the same command goes o")


@pytest.mark.parametrize("name", ["a/b", "..", " a"])
def test_class_names_that_cannot_be_written_are_refused(name: str, pictures: Split, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the class"):
        convert(Dataset((name, "b", "c"), pictures, pictures), tmp_path / "out", Options("folder"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data=sample", "--out", "x"], "--to: missing. Allowed: folder, webdataset, tfrecord, recordio."),
        (["data=sample", "--to", "tfrecords"], "unknown name 'tfrecords'. Did you mean 'tfrecord'?"),
        (["data=sample", "--to", "folder"], "--out: missing."),
        (["--to", "folder", "--out", "x"], "data: missing. Allowed: data=folder data.root=DIR, or another source."),
        (["data=folder", "--to", "folder", "--out", "x"], "data.root: missing"),
        (["data=sample", "--size", "0"], "--size: '0' is not allowed. Allowed: a whole number from 1 to 65,500"),
        (["data=sample", "--job", "2"], "--job: unknown flag. Did you mean '--jobs'?"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
