"""Converted data is identical for every reader, and a failed conversion leaves nothing behind."""

import errno
from collections import Counter
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from nvidia.dali import fn, pipeline_def
from PIL import Image

from augment.data.conversion import convert, reading_settings
from augment.data.dataset import Dataset, Split, Target
from augment.data.images import read_encoded
from augment.data.sources import parse_data
from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("own_folder")

OUT = Path("my photos")
TINY = 2048  # bytes, of one image or two

# Names that a list, JSON, a shell and the command line have to keep apart.
ODD = ('a "b", c', "it's", "rüde \u2603", "true")


def flags(rows: str) -> tuple[Target, ...]:
    return tuple(tuple(map(float, row)) for row in rows.split())


GIVEN: dict[str, tuple[str, tuple[str, ...], tuple[Target, ...]]] = {
    # The order of the classes is not that of their names.
    "classes": ("classify", ("cat", "10", "2"), (2, 0, 1, 1, 2, 0, 2)),
    "labels": ("multilabel", ODD, flags("1001 0000 0110 1111 0010 0100 1000")),
    "labels of numbers": ("multilabel", ("10", "2", "0"), flags("101 000 010 111 001 011 100")),
    "numbers": ("regress", (*ODD, "c:\\"), tuple((0.1 * n, -n / 3, 1e-40, 3e38, float(n)) for n in range(7))),
    "one number": ("regress", ("age",), ((0.1,), (2.0,), (-1.0,), (1e20,), (1 / 3,), (-0.0,), (7.0,))),
    "numbers 0 and 1": ("regress", ("sick",), ((0.0,), (1.0,)) * 3 + ((0.0,),)),
}


def given(name: str, files: Split) -> Dataset:
    task, names, targets = GIVEN[name]
    return Dataset(names, Split(files.files, targets), Split(files.files[:3], targets[:3]), task)


def named(dataset: Dataset, target: Target) -> object:
    if dataset.task == "regress":
        return np.float32(target).tobytes()
    return tuple(dataset.classes[index] for index in dataset.kind.present(target))


def content(dataset: Dataset, split: str) -> Counter[tuple[object, bytes]]:
    """Images with the names of their labels, or with their numbers as float32."""
    found: Split = getattr(dataset, split)
    return Counter(
        (named(dataset, target), bytes(read_encoded(file)))
        for file, target in zip(found.files, found.targets, strict=True)
    )


CASES = [("folder", "classes"), *(("webdataset", name) for name in GIVEN)]


@pytest.mark.parametrize(("to", "name"), CASES)
def test_converted_data_is_identical(to: str, name: str, image_files: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment.data.conversion._SHARD_BYTES", TINY)
    dataset = given(name, image_files)
    convert(dataset, OUT, to)
    assert len(list(OUT.glob("train-*.tar"))) > 2 or to == "folder"
    written = parse_data(reading_settings(dataset, to, OUT)).load()
    assert written.task == dataset.task
    assert set(written.classes) == set(dataset.classes)
    for split in ("train", "val"):
        assert content(written, split) == content(dataset, split)
    assert not [file for file in (*OUT.iterdir(), *Path().iterdir()) if file.name.startswith(".")]


@pytest.mark.parametrize("changed", ["image", "target", "count"])
@pytest.mark.parametrize(("to", "name"), CASES[:2])
def test_what_is_written_wrongly_is_detected(
    to: str, name: str, changed: str, image_files: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(settings: object) -> object:
        found = parse_data(settings).load()
        _, second, *others = found.train.files
        targets = found.train.targets
        if changed == "image":
            train = replace(found.train, files=(second, second, *others))
        elif changed == "target":
            train = replace(found.train, targets=(next(t for t in targets if t != targets[0]), *targets[1:]))
        else:
            train = replace(found.train, files=(second, *others), targets=targets[1:])
        return SimpleNamespace(load=lambda: replace(found, train=train))

    monkeypatch.setattr("augment.data.conversion.parse_data", parse)
    with pytest.raises(UserError, match="train: the written files differ from the dataset"):
        convert(given(name, image_files), OUT, to)
    assert not OUT.exists()


@dataclass(frozen=True)
class Failing:
    """An image that cannot be read."""

    name: str
    error: BaseException

    def read(self) -> bytes:
        raise self.error


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError(errno.EIO, "Input/output error"), UserError, "^a cannot be read: Input/output error"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_a_conversion_that_stops_leaves_nothing_and_starts_anew(
    error: BaseException, raised: type[BaseException], message: str | None, image_files: Split
) -> None:
    dataset = given("classes", image_files)
    broken = replace(dataset, val=Split((Failing("a", error),), (0,)))
    with pytest.raises(raised, match=message):
        convert(broken, OUT, "webdataset")
    assert not list(Path().glob("[.m]*"))
    OUT.mkdir()
    convert(dataset, OUT, "webdataset")


def test_other_content_of_a_folder_is_kept(image_files: Split) -> None:
    OUT.mkdir()
    (OUT / "mine.txt").touch()
    with pytest.raises(UserError, match=r"^--out my photos exists and is not empty\. Use a new or empty folder"):
        convert(given("classes", image_files), OUT, "folder")
    assert [file.name for file in OUT.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("task", "name", "to", "message"),
    [
        ("regress", "a\u2028b", "webdataset", r"the number 'a\\u2028b' cannot be written with --to webd"),
        ("classify", "a/b", "folder", "the class 'a/b' cannot be written"),
        ("classify", "..", "folder", "the class '..' cannot be written"),
        ("classify", " a", "webdataset", "the class ' a' cannot be written"),
        ("classify", "b\udce9e", "webdataset", r"the class 'b\\udce9e' cannot be written"),
        ("regress", "a", "folder", "data: --to folder does not support the task regress. Allowed: classify."),
    ],
)
def test_names_that_cannot_be_written_are_rejected(
    task: str, name: str, to: str, message: str, image_files: Split
) -> None:
    split = replace(image_files, targets=(0 if task == "classify" else (0.0, 1.0),) * len(image_files))
    with pytest.raises(UserError, match=message):
        convert(Dataset((name, "b"), split, split, task), OUT, to)
    assert not OUT.exists()


# --- images ---


def write_photos(**images: tuple[Image.Image, int]) -> Dataset:
    """Write images with their EXIF orientations as a folder of one class."""
    for split in ("train", "val"):
        folder = Path("photos") / split / "a"
        folder.mkdir(parents=True)
        for name, (image, orientation) in images.items():
            exif = Image.Exif()
            exif[0x0112] = orientation
            image.save(folder / f"{name}.{'jpg' if image.mode == 'RGB' else 'png'}", exif=exif)
    return parse_data({"source": "folder", "root": "photos"}).load()


def test_larger_images_are_reduced_to_a_short_side() -> None:
    sizes = {"wide": (90, 60), "tall": (33, 80), "small": (20, 90), "turned": (80, 60)}
    ramp = Image.linear_gradient("L").convert("RGB")
    images = {name: (ramp.resize(size), 6 if name == "turned" else 1) for name, size in sizes.items()}
    convert(write_photos(**images), OUT, "folder", size=30)
    found = {file.stem.split("_")[1]: file for file in (OUT / "train/a").iterdir()}
    reduced = {name: Image.open(BytesIO(file.read_bytes())).size for name, file in found.items()}
    assert reduced == {"wide": (45, 30), "tall": (30, 73), "small": (20, 90), "turned": (30, 40)}
    assert found["small"].read_bytes() == Path("photos/train/a/small.jpg").read_bytes()
    shown = np.asarray(Image.open(found["turned"]).convert("L"), dtype=float)
    assert shown[:, 0].mean() > shown[:, -1].mean() + 100  # the dark top has come to the right


# --- other readers ---


def test_dali_reads_the_shards(image_files: Split) -> None:
    classes = given("classes", image_files)
    convert(classes, OUT, "webdataset")

    @pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def pipeline() -> tuple[object, ...]:
        return tuple(fn.readers.webdataset(paths=[str(file) for file in OUT.glob("val-*.tar")], ext=["jpg", "cls"]))

    images, labels = pipeline().run()
    assert [np.array(image).tobytes() for image in images] == [read_encoded(file) for file in classes.val.files]
    assert [int(np.array(label).tobytes()) for label in labels] == list(classes.val.targets)
