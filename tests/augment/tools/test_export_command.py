"""python -m augment export: what it writes and prints."""

from pathlib import Path

import pytest

from augment.tools.export import main


def test_the_command_line_exports_a_recipe(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+aug=imagenette", "--out", "here", "aug.size=40"]) == 0
    out = capsys.readouterr().out
    assert "center_crop  scale 0.9" in out
    assert "Written to here" in out
    assert "Mean and std are from ImageNet" in out
    assert "SIZE = (40, 40)  # height, width\n" in Path("here/transform.py").read_text()


def test_a_run_is_exported_with_its_own_normalization(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    Path("run/config.yaml").write_text(
        "aug: {size: 24, mean: [0.5, 0.5, 0.25], std: [0.5, 0.5, 0.125], val: {center_crop: {scale: 0.5}}}"
    )
    assert main(["--run", "run", "--out", "here"]) == 0
    assert "ImageNet" not in capsys.readouterr().out
    source = Path("here/transform.py").read_text()
    assert "MEAN = (0.5, 0.5, 0.25)\nSTD = (0.5, 0.5, 0.125)\n" in source
    assert "SIZE, scale=0.5)" in source


def test_values_that_only_the_model_has_are_exported_by_the_trainer(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run").mkdir()
    Path("run/config.yaml").write_text("aug: {size: 24, std: auto, val: {resize: {}}}")
    with pytest.raises(SystemExit, match="2"):
        main(["--run", "run", "--out", "here"])
    assert "python -m trainer export run --preprocessing beside" in capsys.readouterr().err
