"""Converted data is identical for every reader, also after an interrupted conversion."""

import errno
import json
import shlex
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from nvidia.dali import fn, pipeline_def, tfrecord
from PIL import Image

from augment.cli.compose import compose_recipe
from augment.data.convert import conversion, lists, writers
from augment.data.convert.conversion import Options, convert
from augment.data.convert.manifest import MANIFEST, Done, total_checksum
from augment.data.convert.schema import Schema
from augment.data.convert.writers import FORMATS
from augment.data.dataset import Dataset, Split, Target, Task
from augment.data.images import read_encoded
from augment.data.sources import parse_data
from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("own_folder")

CLASSES = ("cat", "10", "2")  # whose order is not that of their names


def flags(rows: str) -> tuple[Target, ...]:
    return tuple(tuple(map(float, row)) for row in rows.split())


# Names that the list of a folder, JSON, a shell and the command line have to keep apart.
ODD = ('a "b", c', "it's", "rüde \u2603", "true")
ASKED: dict[str, tuple[tuple[str, ...], tuple[Target, ...]]] = {
    "multilabel": (ODD, flags("1001 0000 0110 1111 0010 0100 1000")),
    "multilabel of numbers": (("10", "2", "0"), flags("101 000 010 111 001 011 100")),
    "regress": ((*ODD, "path", "c:\\"), tuple((0.1 * n, -n / 3, 1e-40, 3e38, float(n), -1.0) for n in range(7))),
    "regress one": (("age",), ((0.1,), (2.0,), (-1.0,), (1e20,), (1 / 3,), (-0.0,), (7.0,))),
}


@pytest.fixture
def dataset(image_files: Split) -> Dataset:
    return Dataset(CLASSES, image_files, Split(image_files.files[:3], image_files.targets[:3]))


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MiB is a KiB, so that each image or two are a shard."""
    cut = conversion._cut
    monkeypatch.setattr(conversion, "_cut", lambda s, o: cut(s, Options(o.to, o.size, o.quality, o.shard_mb / 1024)))  # type: ignore[arg-type]


def content(dataset: Dataset, split: str) -> Counter[tuple[object, bytes]]:
    """Images with the names of their labels, or with their numbers as float32."""
    found: Split = getattr(dataset, split)
    told: list[object] = []
    for target in found.targets:
        if isinstance(target, int):
            told.append(dataset.classes[target])
        elif dataset.task == "regress":
            told.append((dataset.classes, np.array(target, np.float32).tobytes()))
        else:
            told.append(tuple(name for name, has in zip(dataset.classes, target, strict=True) if has))
    return Counter((one, bytes(read_encoded(file))) for file, one in zip(found.files, told, strict=True))


def load(to: str, out: Path, dataset: Dataset) -> Dataset:
    """Load what was written by the line that is printed."""
    usage = FORMATS[to].usage(out, Schema(dataset.task, dataset.classes))
    return compose_recipe(shlex.split(usage)).source().load()


def asked(name: str, image_files: Split) -> Dataset:
    names, targets = ASKED[name]
    train = Split(image_files.files, tuple(targets[: len(image_files)]))
    task: Task = "regress" if name.startswith("regress") else "multilabel"
    return Dataset(names, train, Split(image_files.files[:3], train.targets[:3]), task)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.usefixtures("small_shards")
def test_converted_data_is_identical(to: str, dataset: Dataset, tmp_path: Path) -> None:
    shards = convert(dataset, tmp_path / "out", Options(to, shard_mb=2))
    assert len(shards) > 3
    written = load(to, tmp_path / "out", dataset)
    for split in ("train", "val"):
        assert content(written, split) == content(dataset, split)
    again = convert(written, tmp_path / "folder", Options("folder", shard_mb=2))
    assert total_checksum(again) == total_checksum(shards)


@pytest.mark.parametrize("task", ASKED)
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.usefixtures("small_shards")
def test_labels_and_numbers_are_the_same_in_every_format(
    to: str, task: str, image_files: Split, tmp_path: Path
) -> None:
    dataset = asked(task, image_files)
    shards = convert(dataset, tmp_path / "my photos", Options(to, shard_mb=2))
    assert len(shards) > 3
    written = load(to, tmp_path / "my photos", dataset)
    assert (written.task, written.classes) == (dataset.task, dataset.classes)
    for split in ("train", "val"):
        assert content(written, split) == content(dataset, split)
    assert all(shard.kept for shard in convert(dataset, tmp_path / "my photos", Options(to, shard_mb=2)))
    again = convert(written, tmp_path / "other", Options("tfrecord", shard_mb=2))
    assert total_checksum(again) == total_checksum(shards)


def test_labels_with_semicolons_have_columns(image_files: Split, tmp_path: Path) -> None:
    told = asked("multilabel of numbers", image_files)
    dataset = Dataset(("a;b", "path", "c"), told.train, told.val, "multilabel")
    convert(dataset, tmp_path / "out", Options("folder"))
    header, first = (tmp_path / "out/val.csv").read_text().splitlines()[:2]
    assert header == "path_,a;b,path,c"
    assert first.endswith(",1,0,1")
    assert content(load("folder", tmp_path / "out", dataset), "val") == content(dataset, "val")


def test_labels_are_no_formulas_in_a_list(image_files: Split, tmp_path: Path) -> None:
    told = asked("multilabel of numbers", image_files)
    dataset = Dataset(("=a", "-b", "@c"), told.train, told.val, "multilabel")
    convert(dataset, tmp_path / "out", Options("folder"))
    cells = [line.split(",")[1] for line in (tmp_path / "out" / "train.csv").read_text().splitlines()[1:]]
    assert "'=a;@c" in cells
    assert not any(cell.startswith(("=", "-", "@")) for cell in cells)


def test_numbers_that_are_all_0_and_1_stay_numbers(image_files: Split, tmp_path: Path) -> None:
    split = Split(image_files.files[:2], ((0.0,), (1.0,)))
    dataset = Dataset(("sick",), split, split, "regress")
    convert(dataset, tmp_path / "out", Options("folder"))
    written = load("folder", tmp_path / "out", dataset)
    assert (written.task, written.val.targets) == ("regress", split.targets)


@pytest.mark.parametrize("task", ["multilabel", "regress"])
@pytest.mark.parametrize("to", FORMATS)
def test_a_changed_target_is_detected(
    to: str, task: str, image_files: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = asked(task, image_files)
    other = (1,) if task == "multilabel" else (float(np.nextafter(np.float32(0.5), np.float32(1))), *[0.0] * 5)
    train = Split(dataset.train.files, ((1.0, 0.0, 0.0, 0.0) if task == "multilabel" else (0.5, *[0.0] * 5),) * 7)
    for module, name in ((writers, "_label"), (writers, "_features"), (writers, "_floats"), (lists, "_cells")):
        write = getattr(module, name)
        monkeypatch.setattr(module, name, lambda _, schema, write=write: write(other, schema))
    with pytest.raises(UserError, match=r"out/train.*: differs when read back"):
        convert(Dataset(dataset.classes, train, train, dataset.task), tmp_path / "out", Options(to))


def test_other_tools_read_the_numbers(image_files: Split, tmp_path: Path) -> None:
    dataset = Dataset(
        ("age", "size"), *[Split(image_files.files[:3], ((1.5, 2.0), (0.1, -1.0), (0.0, 3.0)))] * 2, "regress"
    )
    convert(dataset, tmp_path / "tfrecord", Options("tfrecord"))
    convert(dataset, tmp_path / "recordio", Options("recordio"))

    @pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def pipeline() -> tuple[object, ...]:
        (shard,) = (tmp_path / "tfrecord").glob("val-*.tfrecord")
        features = {name: tfrecord.FixedLenFeature((), tfrecord.float32, 0.0) for name in dataset.classes}
        found = fn.readers.tfrecord(path=str(shard), index_path=f"{shard}.idx", features=features)
        (shard,) = (tmp_path / "recordio").glob("val-*.rec")
        _, labels = fn.readers.mxnet(path=[str(shard)], index_path=[str(shard.with_suffix(".idx"))])
        return found["age"], found["size"], labels

    ages, sizes, rows = (np.array(output.as_tensor()).reshape(3, -1) for output in pipeline().run())
    expected = np.array(dataset.val.targets, np.float32)
    assert np.array_equal(np.hstack([ages, sizes]), expected)
    assert np.array_equal(rows, expected)


@pytest.mark.parametrize("task", ["classify", "multilabel", "regress"])
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.usefixtures("small_shards")
def test_interrupted_conversions_resume(
    to: str, task: str, dataset: Dataset, image_files: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = dataset if task == "classify" else asked(task, image_files)
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
    assert content(load(to, out, dataset), "train") == content(dataset, "train")
    assert all(shard.kept for shard in convert(dataset, out, options))
    assert json.loads((out / MANIFEST).read_text().splitlines()[-1])["images"] == 10
    assert not list(out.glob("**/*.part"))


def test_16_bits_per_channel_are_scaled_to_8(tmp_path: Path) -> None:
    for split in ("train", "val"):
        folder = tmp_path / "data" / split / "a"
        folder.mkdir(parents=True)
        Image.fromarray(np.full((60, 60), 30_000, np.uint16)).save(folder / "gray.png")
    convert(parse_data({"source": "folder", "root": str(tmp_path / "data")}).load(), tmp_path / "out",
            Options("folder", size=30))  # fmt: skip
    (file,) = (tmp_path / "out/train/a").iterdir()
    assert np.unique(np.asarray(Image.open(file))).tolist() == [round(30_000 / 257)]


def test_larger_images_are_reduced_to_a_short_side(tmp_path: Path) -> None:
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

    image_files, labels = pipeline().run()
    assert [np.array(image_files[i]).tobytes() for i in range(3)] == [read_encoded(file) for file in dataset.val.files]
    assert [int(np.array(labels[i]).tobytes()) for i in range(3)] == list(dataset.val.targets)


@pytest.mark.usefixtures("small_shards")
def test_few_images_start_no_processes(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(conversion, "ProcessPoolExecutor")
    assert len(convert(dataset, tmp_path / "out", Options("tfrecord", size=16, shard_mb=1), jobs=64)) > 3
    monkeypatch.setattr(conversion, "_WORTHWHILE", 1e-9)  # else the above would show nothing
    with pytest.raises(NameError, match="ProcessPoolExecutor"):
        convert(dataset, tmp_path / "other", Options("tfrecord", size=16, shard_mb=1), jobs=64)


def test_a_folder_with_other_content_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(UserError, match=r"--out .*: exists and was not written by this program"):
        convert(dataset, tmp_path / "out", Options("folder"))
    convert(dataset, tmp_path / "new", Options("folder"))
    with pytest.raises(UserError, match="contains another conversion, which differs in size"):
        convert(dataset, tmp_path / "new", Options("folder", size=32))
    other = Dataset(dataset.classes, dataset.val, dataset.val)
    with pytest.raises(UserError, match="contains another conversion, which differs in data"):
        convert(other, tmp_path / "new", Options("folder"))


def test_missing_disk_space_is_reported_before_writing(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UserError, match=r"\d MB are needed, and there is room for 0\.0"):
        convert(dataset, tmp_path / "out", Options("tfrecord"))
    assert not (tmp_path / "out").exists()


def test_names_and_numbers_that_cannot_be_written_are_refused(image_files: Split, tmp_path: Path) -> None:
    def write(names: tuple[str, ...], *target: float, to: str = "tfrecord") -> None:
        split = Split(image_files.files, (target,) * len(image_files))
        convert(Dataset(names, split, split, "regress"), tmp_path / "out", Options(to))

    with pytest.raises(UserError, match="'a' is the name of more than one number"):
        write(("a", "b", "a"), 0.0, 1.0, 2.0)
    with pytest.raises(UserError, match="the number 'image/encoded' is named as the images are"):
        write(("image/encoded",), 0.5)
    with pytest.raises(UserError, match="the number 'a\u2028b' has blanks around its name or lines in it"):
        write(("a\u2028b",), 1.0, to="folder")
    assert not (tmp_path / "out").exists()


def test_an_unwritable_folder_is_reported(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match=r"^--out .*out: cannot be written: Read-only file system\.$"):
        convert(dataset, tmp_path / "out", Options("tfrecord"))


@pytest.mark.parametrize("name", ["a/b", "..", " a"])
def test_class_names_that_cannot_be_written_are_refused(name: str, image_files: Split, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the class"):
        convert(Dataset((name, "b", "c"), image_files, image_files), tmp_path / "out", Options("folder"))
    assert not (tmp_path / "out").exists()
