"""Images and labels in files of other tools, see written_by_others/README.md."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from loaders import build_loader
from stores import FIXED

from augment.data.dataset import Dataset, Split
from augment.data.sources import load_dataset, parse_data
from augment.support.errors import UserError

FILES = Path(__file__).parents[3] / "written_by_others"
TARGETS = (0, 1, 2, 0, 1, 2)
NUMBERS, NAMES = ("0", "1", "2"), ("cat", "dog", "emu")
MIXED = tuple(f"{number}.{'jpg' if number % 2 else 'png'}" for number in range(6))
PNG = tuple(f"{number}.png" for number in range(6))
BY_CLASS = (0, 3, 1, 4, 2, 5)  # the order of a folder of each class

CASES: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    # name: (source, files, settings, the images that went in, classes)
    "TensorFlow, ImageNet's features": (
        "tfrecord", "tensorflow/train-*-of-00002", {"label_offset": 1}, MIXED, ("1", "2", "3")),
    "TensorFlow, ImageNet's names": (
        "tfrecord", "tensorflow/train-*-of-00002", {"label": "image/class/text"}, MIXED, NAMES),
    "TensorFlow, classes of a file": (
        "tfrecord", "tensorflow/train-{00000..00001}-of-00002", {"label_offset": 1, "classes": "names.txt"}, MIXED,
        NAMES),
    "TensorFlow, other features": (
        "tfrecord", "tensorflow/tutorial.tfrecords", {"image": "image_raw", "label": "label"}, MIXED, NUMBERS),
    "tfrecord": ("tfrecord", "tfrecord/train.tfrecord", {"image": "image", "label": "label"}, MIXED, NUMBERS),
    "tfrecord, names": ("tfrecord", "tfrecord/train.tfrecord", {"image": "image", "label": "name"}, MIXED, NAMES),
    "MXNet, pack_img": ("recordio", "mxnet/images.rec", {}, PNG, NUMBERS),
    "MXNet, no index and the magic number in images": ("recordio", "mxnet/magic.rec", {}, PNG, NUMBERS),
    "MXNet, im2rec": ("recordio", "mxnet/im2rec.rec", {}, tuple(MIXED[i] for i in BY_CLASS), NUMBERS),
    "webdataset, numbers": ("webdataset", "webdataset/numbers-{000000..000001}.tar", {}, MIXED, NUMBERS),
    "webdataset, JSON": ("webdataset", "webdataset/json.tar", {}, PNG[:4], NUMBERS),
    "webdataset, a field within": ("webdataset", "webdataset/json.tar", {"label": "json.class.name"}, PNG[:4], NAMES),
    "webdataset, long endings": ("webdataset", "webdataset/endings.tar", {"label": "class.txt"}, MIXED[:3], NAMES),
    "GNU tar": ("webdataset", "webdataset/gnu.tar", {}, MIXED[:3], NAMES),
    "Caffe, encoded": ("lmdb", "lmdb/encoded", {}, MIXED, NUMBERS),
    "datasets": ("parquet", "parquet/hub.parquet", {}, MIXED, NAMES),
    "pandas": ("parquet", "parquet/pandas.parquet", {}, MIXED, NAMES),
    "pandas, categories": ("parquet", "parquet/pandas.parquet", {"label": "kind"}, MIXED, NAMES),
    "polars": ("parquet", "parquet/polars.parquet", {"image": "picture", "label": "species"}, MIXED, NAMES),
    "polars, categories": ("parquet", "parquet/polars.parquet", {"image": "picture", "label": "kind"}, MIXED, NAMES),
    "polars, bytes for numbers": (
        "parquet", "parquet/polars.parquet", {"image": "picture", "label": "number"}, MIXED, NUMBERS),
    "pandas, CSV": ("filelist", "pandas.csv", {}, MIXED, NAMES),
}  # fmt: skip

SEVERAL = ((0, 2), (1,), (2,), (0, 1, 2), (1,), (2,))
WITH_NONE = ((0, 2), (1,), (), (0, 1, 2), (1,), (2,))
SEVERAL_CASES: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...], tuple[tuple[int, ...], ...]]] = {
    "TensorFlow": ("tfrecord", "tensorflow/several.tfrecord", {"image": "image", "label": "labels"}, MIXED,
                   ((0, 2), (1,), (), (0, 1, 2), (2,), (0,))),
    "MXNet": ("recordio", "mxnet/arrays.rec", {}, MIXED, SEVERAL),
    "MXNet, im2rec --pack-label": ("recordio", "mxnet/labels.rec", {}, tuple(MIXED[i] for i in BY_CLASS),
                                   ((0, 1), (0,), (1,), (1, 2), (2,), (0, 1, 2))),
    "webdataset": ("webdataset", "webdataset/json.tar", {"label": "json.tags"}, PNG[:4],
                   ((0,), (0, 1), (0, 1, 2), (0,))),
    "datasets": ("parquet", "parquet/several.parquet", {"image": "img", "label": "tags"}, MIXED, WITH_NONE),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.txt").write_text("cat\ndog\nemu\n")


def load(source: str, files: str, settings: dict[str, Any]) -> Dataset:
    pattern = str(FILES / files)
    return load_dataset(parse_data({"source": source, "train": pattern, "val": pattern, **settings}))


def fed(split: Split) -> Counter[tuple[object, bytes]]:
    """What an epoch of the loader has."""
    loader = build_loader(FIXED, split, batch_size=4, seed=3, raw=True)
    return Counter(
        (target if isinstance(target, int) else tuple(target), pixels.numpy().tobytes())
        for batch in loader
        for target, pixels in zip(batch.targets.tolist(), batch.images, strict=True)
    )


def originals(names: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(FILES / "originals" / name for name in names)


@pytest.mark.parametrize("case", CASES)
def test_images_and_classes_of_other_tools_are_unchanged(case: str) -> None:
    source, files, settings, names, classes = CASES[case]
    dataset = load(source, files, settings)
    targets = tuple(TARGETS[int(name[0])] for name in names)
    assert (dataset.classes, dataset.task) == (classes, "classify")
    assert fed(dataset.train) == fed(Split(originals(names), targets))
    assert dataset.val == dataset.train


@pytest.mark.parametrize("case", SEVERAL_CASES)
def test_several_labels_of_other_tools_are_unchanged(case: str) -> None:
    source, files, settings, names, labels = SEVERAL_CASES[case]
    dataset = load(source, files, settings)
    hot = tuple(tuple(float(target in having) for target in range(3)) for having in labels)
    assert (len(dataset.classes), dataset.task) == (3, "multilabel")
    assert fed(dataset.train) == fed(Split(originals(names), hot))


def test_the_hubs_names_come_with_several_labels_too() -> None:
    assert load("parquet", "parquet/several.parquet", {"image": "img", "label": "tags"}).classes == NAMES


def test_caffes_pixels() -> None:
    """Blue, green and red planes become the image; one plane becomes a gray one, here of the green channel."""
    dataset = load("lmdb", "lmdb/raw", {})
    assert dataset.train.targets == (0, 1, 2)
    color = Split(dataset.train.files[:2], (0, 1))
    assert fed(color) == fed(Split(originals(PNG[:2]), (0, 1)))
    (gray,) = build_loader(FIXED, Split(dataset.train.files[2:], (0,)), batch_size=1, seed=3, raw=True)
    (whole,) = build_loader(FIXED, Split(originals(PNG[2:3]), (0,)), batch_size=1, seed=3, raw=True)
    for channel in range(3):
        assert torch.equal(gray.images[:, channel], whole.images[:, 1])


def test_a_record_of_many_parts_is_one_in_the_file_that_is_read() -> None:
    """Else the case above would show nothing: there are a first, a middle and a last part."""
    content = (FILES / "mxnet/magic.rec").read_bytes()
    begins = [place for place in range(0, len(content), 4) if content[place : place + 4] == b"\x0a\x23\xd7\xce"]
    assert {content[place + 7] >> 5 for place in begins} == {1, 2, 3}


@pytest.mark.parametrize(
    ("source", "files", "settings", "message"),
    [
        ("tfrecord", "tensorflow/gzip.tfrecord", {}, "is compressed, or not a TFRecord file."),
        ("tfrecord", "tensorflow/tutorial.tfrecords", {"image": "image_raw", "targets": ["weigth"]},
         "no feature 'weigth' (data.targets). Did you mean 'weight'? Allowed: depth, image_raw, label, weight."),
        ("tfrecord", "tensorflow/tutorial.tfrecords", {"image": "image_raw", "targets": ["image_raw"]},
         "record 0: feature 'image_raw' (data.targets) holds 0 numbers instead of one"),
        ("tfrecord", "tensorflow/tutorial.tfrecords", {"image": "image_row"},
         "no feature 'image_row' (data.image). Did you mean 'image_raw'? Allowed: depth, image_raw, label, weight."),
        ("tfrecord", "tensorflow/train-00000-of-00002", {"label": "image/object/number"},
         "train-00000-of-00002/0 has no label (4 images have none or several)."),
        ("recordio", "mxnet/im2rec.lst", {}, "is compressed, or not a RecordIO file."),
        ("parquet", "webdataset/gnu.tar", {}, "cannot be read as a parquet file: "),
        ("parquet", "parquet/paths.parquet", {}, "A path without bytes is not enough."),
        ("webdataset", "webdataset/gnu.tar.gz", {}, "is not an uncompressed tar file, or is truncated ("),
        ("webdataset", "webdataset/dots.tar", {}, "Files with the same name up to the first dot must"),
        ("webdataset", "webdataset/endings.tar", {}, "cannot find 0.cls or 0.json, only x/0.class.txt, x/0.txt."),
        ("lmdb", "lmdb", {}, "lmdb/data.mdb does not exist"),
    ],
)  # fmt: skip
def test_unsupported_files_are_rejected(source: str, files: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        load(source, files, settings)
    assert message in str(caught.value)
    assert str(caught.value).startswith("data.train")
