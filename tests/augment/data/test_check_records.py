"""The cache of checks of images in larger files is valid for exactly these images."""

import os
from pathlib import Path

import pytest
from stores import write_tar

from augment.data.sources import LOADED, load_dataset, parse_data
from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture
def jpeg(photos: tuple[Path, ...]) -> bytes:
    return photos[0].read_bytes()


def test_a_changed_file_is_checked_again(jpeg: bytes) -> None:
    given = {"source": "webdataset", "train": "train.tar", "val": "val.tar"}
    for name in ("train", "val"):
        write_tar(Path(f"{name}.tar"), {"0.jpg": jpeg, "0.cls": b"0"})
    assert len(load_dataset(parse_data(given)).train) == 1
    write_tar(Path("train.tar"), {"0.jpg": bytes(len(jpeg)), "0.cls": b"0"})  # at the same place, as long
    os.utime("train.tar", ns=(1, 1))
    LOADED.clear()
    with pytest.raises(UserError, match="1 of 1 train image cannot be used"):
        load_dataset(parse_data(given))
