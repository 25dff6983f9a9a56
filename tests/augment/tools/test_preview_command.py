"""The preview command: what it writes, and mistakes."""

from pathlib import Path

import pytest
from PIL import Image

from augment.tools.preview.command import main


def test_the_program_writes_a_png(
    photos: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["+aug=imagenette", "aug.size=32", "aug.train.hue.p=0.5"]
    assert main([*overrides, "--photos", str(photos[0].parent), "--count", "2", "--out", "new/recipe.png"]) == 0
    assert capsys.readouterr() == ("new/recipe.png\n", "")
    with Image.open("new/recipe.png") as image:
        width, height = image.size
    assert width > 4 * 160
    assert height > (7 + 2) * 160  # seven steps, and two photos
    assert [file.name for file in Path("new").iterdir()] == ["recipe.png"]
