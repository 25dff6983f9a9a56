"""The preview command: what it writes, and mistakes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from augment.tools.preview.command import main

ROOT = Path(__file__).parents[3]


def test_the_program_writes_a_png(
    photos: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["+aug=imagenette", "aug.size=32", "aug.train.hue.p=0.5"]
    assert main([*overrides, "--photos", str(photos[0].parent), "--count", "2", "--out", "new/recipe.png"]) == 0
    assert capsys.readouterr() == ("new/recipe.png\n", "")
    with Image.open("new/recipe.png") as image:
        width, height = image.size
    assert width > 2 * 4 * 160
    assert height > (4 + 2) * 160  # seven steps in two panels, and two photos
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "rotat"], "--op: unknown op 'rotat'. Did you mean 'rotate'?"),
        ([], "aug.train: no steps. Allowed: +aug=NAME for a recipe, or --op NAME for an op."),
        (
            ["--op", "flip", "--count", "0"],
            "argument --count: '0' is not allowed. Allowed: a whole number from 1 to 64",
        ),
        (["--op", "flip", "--out", "a.jpg"], "'a.jpg' is not allowed. Allowed: the name of a file that ends in .png"),
        (["--op", "flip", "--seed", "-1"], "argument --seed: "),
        (["--op", "flip", "--photos", "nowhere"], "--photos nowhere: there is no such folder"),
        (["--op", "flip", "--photos", "."], "--photos .: the folder contains no images"),
    ],
)
def test_mistakes_give_one_message(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    captured = capsys.readouterr()
    assert stopped.value.code == 2
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.out == ""
    assert not list(tmp_path.iterdir())


def test_mistakes_are_found_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    code = """
import sys
from augment.tools.preview.command import main
try:
    main(["+aug=imagenette", "--op", "rotat"])
except SystemExit as stopped:
    assert stopped.code == 2
heavy = {"torch", "nvidia", "trainer", "matplotlib", "PIL"}
print("loaded:", *sorted({name.split(".")[0] for name in sys.modules} & heavy))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.stdout == "loaded:\n"
