"""Unused files of class names next to the data."""

from pathlib import Path

import numpy as np
import pytest

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
    assert (f"data.classes={tmp_path / 'classes.txt'} reads them" in caplog.text) is noted
