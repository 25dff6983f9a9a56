"""The preview command: what it writes, and mistakes."""

from pathlib import Path

import pytest
from PIL import Image

from augment.tools._photos import find_photos
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


def test_ops_of_plugins_are_known(
    photos: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin: str
) -> None:
    (tmp_path / "my_preview_ops.py").write_text(
        '"""Ops."""\nfrom augment.recipe.op import color\nimport numpy as np\n@color()\ndef blacken():\n'
        '    """Black."""\n    return np.zeros((3, 4))\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["aug.plugins=[my_preview_ops]", "aug.size=32", "--op", "blacken", "--photos", str(photos[0].parent)]
    assert main(arguments) == 0
    assert (tmp_path / "outputs" / "preview.png").stat().st_size > 1000


def test_photos_are_spread_evenly(photos: tuple[Path, ...]) -> None:
    for limit, numbers in ((2, (1, 4)), (4, (0, 2, 3, 5)), (9, range(6))):
        found = find_photos(photos[0].parent, list, limit)
        assert found == [photos[number] for number in numbers]
