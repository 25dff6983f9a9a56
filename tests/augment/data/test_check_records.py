"""The cache of checks of images in larger files is valid for exactly these images."""

import os
from pathlib import Path

import pytest
from tfrecord_writer import IMAGE, LABEL, write_examples

from augment.data.sources import LOADED, load_dataset, parse_data
from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("own_folder")

BROKEN = b"no image"


@pytest.fixture
def jpeg(photos: tuple[Path, ...]) -> bytes:
    return photos[0].read_bytes()


def write_features(file: Path, jpeg: bytes) -> None:
    """Write a TFRecord file of an Example with an image in one feature, and none in another."""
    write_examples(file, [{IMAGE: [jpeg], "thumbnail": [BROKEN], LABEL: [0]}])


def test_another_image_of_the_same_record_is_checked(jpeg: bytes, tmp_path: Path) -> None:
    for name in ("train", "val"):
        write_features(tmp_path / f"{name}.tfrecord", jpeg)
    given = {"source": "tfrecord", "train": "train.tfrecord", "val": "val.tfrecord"}
    assert len(load_dataset(parse_data(given)).train) == 1
    with pytest.raises(UserError, match="1 of 1 train image cannot be used"):
        load_dataset(parse_data(given | {"image": "thumbnail"}))


def test_a_changed_file_is_checked_again(jpeg: bytes, tmp_path: Path) -> None:
    given = {"source": "tfrecord", "train": "train.tfrecord", "val": "val.tfrecord"}
    for name in ("train", "val"):
        write_features(tmp_path / f"{name}.tfrecord", jpeg)
    assert len(load_dataset(parse_data(given)).train) == 1
    write_features(tmp_path / "train.tfrecord", bytes(len(jpeg)))  # at the same place, as long
    os.utime(tmp_path / "train.tfrecord", ns=(1, 1))
    LOADED.forget()
    with pytest.raises(UserError, match="1 of 1 train image cannot be used"):
        load_dataset(parse_data(given))
