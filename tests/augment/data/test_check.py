"""The check of images: files that cannot be read, limits, order, and settings of Pillow."""

import os
import socket
import warnings
from pathlib import Path

import pytest
from image_bytes import encoded, half, with_scans, write
from PIL import Image, ImageFile

from augment.data import image_faults
from augment.data.check import check_files


@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_what_never_ends_is_rejected_at_once(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "a.jpg"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(str(file))
    (reason,) = check_files([file]).values()
    assert reason.startswith("cannot be read: ")


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "link.jpg").symlink_to(tmp_path / "gone.jpg")
    names = ("missing.jpg", "folder.jpg", "link.jpg")
    reasons = list(check_files([tmp_path / name for name in names]).values())
    assert [reason.split(": ")[1] for reason in reasons] == [
        "No such file or directory",
        "Is a directory",
        "No such file or directory",
    ]


def test_size_limit_is_inclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "a.png", encoded("PNG"))
    monkeypatch.setattr(image_faults, "MAX_PIXELS", 60 * 40)
    assert check_files([file]) == {}
    monkeypatch.setattr(image_faults, "MAX_PIXELS", 60 * 40 - 1)
    assert check_files([file]) == {file: "claims more than the limit of 2,399 pixels"}


def test_a_jpeg_that_takes_minutes_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jpeg = encoded("JPEG", progressive=True)
    file = write(tmp_path, "a.jpg", with_scans(jpeg, 20))
    assert check_files([file]) == {}
    monkeypatch.setattr(image_faults, "MAX_PIXELS", 60 * 40)
    (reason,) = check_files([write(tmp_path, "b.jpg", jpeg), file]).values()
    assert reason.startswith("has 30 scans")


def test_global_settings_of_pillow_are_ignored_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    good = write(tmp_path, "good.jpg", encoded("JPEG"))
    cut = write(tmp_path, "cut.jpg", half(encoded("JPEG")))
    filters = list(warnings.filters)
    assert list(check_files([good, cut])) == [cut]
    assert (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS) == (True, 100)
    assert list(warnings.filters) == filters
