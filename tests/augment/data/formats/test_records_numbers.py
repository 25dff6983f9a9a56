"""Numbers to predict, and rows of 0 and 1, in the sources of larger files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordio_writer import write_records
from stores import write_tar
from tfrecord_writer import IMAGE, write_examples

from augment.data.dataset import Dataset
from augment.data.sources import parse_data
from augment.data.targets.class_names import pack
from augment.support.errors import UserError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.usefixtures("own_folder")


def write_numbers(source: str, folder: Path, rows: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Write images with numbers named a and b; return the settings that read them so."""
    image_files = [b"\xff\xd8" + bytes([number]) for number in range(len(rows))]
    named = [dict(zip("ab", row, strict=True)) for row in rows]
    if source == "tfrecord":
        examples = [
            {IMAGE: [image]} | {name: [number] for name, number in numbers.items()}
            for image, numbers in zip(image_files, named, strict=True)
        ]
        write_examples(folder / "it", examples)
    elif source == "recordio":
        write_records(folder / "it", list(zip(image_files, rows, strict=True)))
    elif source == "webdataset":
        members = {f"{number}.jpg": image for number, image in enumerate(image_files)}
        told = {f"{number}.json": json.dumps(numbers).encode() for number, numbers in enumerate(named)}
        write_tar(folder / "it", members | told)
    else:
        columns = {name: [numbers[name] for numbers in named] for name in "ab"}
        parquet.write_table(pa.table({"image": image_files, **columns}), folder / "it")
    return {"source": source, "train": "it", "val": "it", "targets": ["a", "b"]}


NUMBERED = ("tfrecord", "recordio", "webdataset", "parquet")


@pytest.mark.parametrize("source", NUMBERED)
def test_numbers_are_read_by_name(source: str, tmp_path: Path) -> None:
    rows = ((0.5, 2.0), (-1.0, 1e20), (3.0, -0.0))
    given = write_numbers(source, tmp_path, rows)
    for _ in range(2):  # the second time from what is kept
        dataset = parse_data(given).load()
        assert (dataset.task, dataset.classes) == ("regress", ("a", "b"))
        assert np.array_equal(np.float32(dataset.train.targets), np.float32(rows))
    if source != "recordio":  # whose arrays have no names
        assert parse_data({**given, "targets": ["b"]}).load().train.targets[2] == (0.0,)


@pytest.mark.parametrize("source", NUMBERED)
def test_multilabel_reads_columns_of_0_and_1_as_labels(source: str, tmp_path: Path) -> None:
    rows = ((0.0, 1.0), (1.0, 1.0), (0.0, 0.0))
    given = write_numbers(source, tmp_path, rows)
    dataset = parse_data({**given, "multilabel": True}).load()
    assert (dataset.task, dataset.classes, dataset.train.targets) == ("multilabel", ("a", "b"), rows)
    with pytest.raises(UserError, match=r"data.targets is for numbers, but data.task=classify"):
        parse_data({**given, "task": "classify"}).load()


def test_floats_in_a_column_are_numbers_and_lists_of_them_several(tmp_path: Path) -> None:
    def read(*labels: Any, **settings: Any) -> Dataset:
        parquet.write_table(pa.table({"image": [b"x"] * len(labels), "label": list(labels)}), tmp_path / "it.parquet")
        given = {"source": "parquet", "train": "it.parquet", "val": "it.parquet", **settings}
        return parse_data(given).load()

    numbers, few = read(0.5, 2.0, 0.7), read(1.0, 2.0, 0.5)
    assert (numbers.train.targets, numbers.notices) == (((0.5,), (2.0,), (0.7,)), ())
    assert few.task == "regress"
    assert few.notices[0].startswith("the labels are floats, so the task is regression, but only 2 of 6 have")
    assert read([0.5, 1.5], [2.0, 3.0]).classes == ("target_1", "target_2")
    assert read(1, 3, task="regress").train.targets == ((1.0,), (3.0,))
    assert read(1.0, 0.0, task="classify").train.targets == (1, 0)
    assert read([1.0, 0.0], [1.0, 1.0], multilabel=True).train.targets == ((1.0, 0.0), (1.0, 1.0))
    with pytest.raises(UserError, match=r"it.parquet/1 has 1 number, but it.parquet/0 has 2. Give every image"):
        read([0.5, 1.5], [2.0], task="regress")
    with pytest.raises(UserError, match=r"it.parquet/0 has the label 'cat', which is not a number. data.task="):
        read("cat", "dog", task="regress")
    with pytest.raises(UserError, match=r"data.targets: 1 name for 2 numbers per image. Give one name per number."):
        read([0.5, 1.5], [2.0, 3.0], targets=["label"])


def test_padding_of_label_arrays_is_no_label(tmp_path: Path) -> None:
    write_records(tmp_path / "it.rec", [(b"x", (0.0, 2.0)), (b"y", (1.0, -1.0)), (b"z", (-1.0, -1.0))])

    def read(**settings: Any) -> Dataset:
        return parse_data({"source": "recordio", "train": "it.rec", "val": "it.rec", **settings}).load()

    assert read(multilabel=True).train.targets == ((1, 0, 1), (0, 1, 0), (0, 0, 0))
    assert read(task="regress").train.targets == ((0.0, 2.0), (1.0, -1.0), (-1.0, -1.0))


def test_features_of_tensorflows_own_writing_are_numbers() -> None:
    folder = Path(__file__).parents[3] / "written_by_others/tensorflow"

    def read(name: str, **settings: Any) -> Dataset:
        path = str(folder / name)
        return parse_data({"source": "tfrecord", "train": path, "val": path, **settings}).load()

    assert read("floats.tfrecord", image="image", label="label").train.targets == ((1.0,),)
    both = read("tutorial.tfrecords", image="image_raw", targets=["weight", "depth"])
    assert set(both.train.targets) == {(0.5, 3.0)}
    boxes = read("train-0000*", label="image/object/bbox/xmin")
    assert (boxes.task, boxes.train.targets[0]) == ("regress", (0.25, 0.5))


def test_an_image_has_a_limited_number_of_labels() -> None:
    with pytest.raises(UserError, match=r"^image 1 has 100,001 labels\. The limit is 100,000\."):
        pack([[0], [0] * 100_001], lambda index: f"image {index}")
