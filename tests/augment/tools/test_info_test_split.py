"""The test split in `python -m augment info`: its size, and its images that are also in other splits."""

import shutil
from pathlib import Path

import pytest
from files_of_sources import drawn, put

from augment.tools.info.command import main


@pytest.fixture
def images(own_folder: Path) -> Path:
    """Nine training and three validation images."""
    put("folder", "train", drawn(9))
    put("folder", "val", drawn(12)[9:])
    return own_folder / "set"


def shown(capsys: pytest.CaptureFixture[str], *settings: str) -> str:
    assert main(["data=folder", "data.root=set", *settings]) == 0
    return capsys.readouterr().out


def test_copies_in_the_test_split_are_found(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "test" not in shown(capsys)
    put("folder", "final", drawn(16)[12:])
    for split, number in (("train", 0), ("val", 0)):
        shutil.copy(images / split / "class 0" / f"{number}.jpg", images / "final" / "class 0" / f"{split}.jpg")
    text = shown(capsys, "data.test_dir=final")
    assert "9 in train and 3 in val (25%), 6 more in test" in text
    assert "2 of 6 test images (33%) are also in train or val, byte for byte" in text
    assert "val image" not in text
    # Without a setting, the usual folder counts.
    (images / "final").rename(images / "test")
    assert "6 more in test" in shown(capsys)


def test_held_out_images_are_not_in_train(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "6 in train and 3 in val (33%), 3 more in test" in shown(capsys, "data.test_fraction=0.3")
    text = shown(capsys, "data.root=set/train", "data.test_fraction=0.3", "data.val_fraction=0.3")
    assert "3 in train and 3 in val (50%), 3 more in test" in text


def test_a_test_split_that_is_missing(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        shown(capsys, "data.test_dir=misspelled")
    assert ended.value.code == 2
    assert "misspelled" in capsys.readouterr().err
