"""Unused files of class names next to the data, and data with a single class."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from augment.data.dataset import Split
from augment.data.sources import load_dataset, parse_data


@pytest.mark.parametrize(
    ("targets", "names", "asked", "noted"),
    [
        ([0, 1, 2, 1], "ant\nbee\ncow\n", False, True),
        ([0, 1, 2, 1], "ant\nbee\ncow\n", True, False),
        ([0, 1, 2, 1], "0\n1\n2\n", False, False),
        ([0, 1, 2, 1], None, False, False),
        ([0.5, 1, 2, 1], "ant\nbee\ncow\n", False, False),
    ],
    ids=["noted", "asked for", "no others", "no file", "numbers to predict"],
)
def test_class_names_next_to_the_data_are_reported(
    targets: list[float],
    names: str | None,
    asked: bool,
    noted: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = {}
    for split in ("train", "val"):
        files |= {split: str(tmp_path / f"{split}.npy"), f"{split}_targets": str(tmp_path / f"{split}_y.npy")}
        np.save(files[split], np.zeros((4, 8, 8, 3), np.uint8))
        np.save(files[f"{split}_targets"], np.array(targets))
    if names is not None:
        (tmp_path / "classes.txt").write_text(names)
    more = {"classes": str(tmp_path / "classes.txt")} if asked else {}
    load_dataset(parse_data({"source": "numpy", **files, **more}))
    assert "only one class" not in caplog.text
    assert (f"data.classes={tmp_path / 'classes.txt'} reads them" in caplog.text) is noted


def test_a_single_class_is_reported(tmp_path: Path, image_files: Split, caplog: pytest.LogCaptureFixture) -> None:
    for split in ("train", "val"):
        (tmp_path / f"{split}.txt").write_text(f"{image_files.files[0]} dog\n")
    source = parse_data({"source": "filelist", **{split: str(tmp_path / f"{split}.txt") for split in ("train", "val")}})
    load_dataset(source)
    assert caplog.messages[0].endswith("there is only one class, dog: nothing to learn from labels")


def test_a_root_above_the_right_one_is_reported(
    tmp_path: Path, image_files: Split, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index, name in enumerate(("cat", "dog")):
        (tmp_path / "photos/all" / name).mkdir(parents=True)
        shutil.copy(image_files.files[index], tmp_path / "photos/all" / name)
    monkeypatch.chdir(tmp_path)
    load_dataset(parse_data({"source": "folder", "root": "photos", "val_fraction": 0.5}))
    expected = "one class, all: nothing to learn from labels; if the folders in photos/all are the classes: "
    assert f"{expected}data.root=photos/all" in caplog.messages[0]
