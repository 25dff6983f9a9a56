"""What a source hands over is loaded once, and belongs to the folder that its relative paths begin at."""

from pathlib import Path

import pytest
from PIL import Image

from augment.sources import Folder, load_dataset


def test_a_relative_path_is_another_one_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Folder(root="mine")
    for place, names in (("a", ("ant", "bee")), ("b", ("cat", "dog"))):
        for name in names:
            for split in ("train", "val"):
                folder = tmp_path / place / "mine" / split / name
                folder.mkdir(parents=True)
                Image.new("RGB", (8, 8)).save(folder / "0.png")
        monkeypatch.chdir(tmp_path / place)
        assert load_dataset(source).classes == names
        assert load_dataset(source) is load_dataset(source)
