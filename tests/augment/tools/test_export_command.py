"""python -m augment export: what it writes and prints, and what it refuses."""

import json
from pathlib import Path

import pytest

from augment.tools._photos import find_photos
from augment.tools.export.command import main


def test_the_command_line_exports_a_recipe(
    own_folder: Path, photos: tuple[Path, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    image_files = str(photos[0].parent)
    assert main(["+aug=imagenette", "--out", "here", "aug.size=40", "--photos", image_files, "--limit", "2"]) == 0
    out = capsys.readouterr().out
    assert "center_crop  scale 0.9" in out
    assert "transform_cpu.dali" in out
    assert "Compared on 2 images; written to here" in out
    assert "Mean and std are ImageNet's" in out
    assert "SIZE = (40, 40)  # height, width\n" in Path("here/transform.py").read_text()
    report = json.loads(Path("here/parity.json").read_text())
    assert {row["images"] for row in report["results"]} == {2}


def test_the_images_to_compare_on_are_spread_evenly(photos: tuple[Path, ...]) -> None:
    for limit, numbers in ((2, (1, 4)), (4, (0, 2, 3, 5)), (9, range(6))):
        found = find_photos(photos[0].parent, list, limit)
        assert found == [photos[number] for number in numbers]


def test_a_run_is_exported_with_its_own_normalization(
    own_folder: Path, photos: tuple[Path, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run").mkdir()
    Path("run/config.yaml").write_text(
        "aug: {size: 24, mean: [0.5, 0.5, 0.25], std: [0.5, 0.5, 0.125], val: {center_crop: {scale: 0.5}}}"
    )
    assert main(["--run", "run", "--out", "here", "--photos", str(photos[0].parent), "--limit", "1"]) == 0
    assert "ImageNet" not in capsys.readouterr().out
    source = Path("here/transform.py").read_text()
    assert "MEAN = (0.5, 0.5, 0.25)\nSTD = (0.5, 0.5, 0.125)\n" in source
    assert "SIZE, scale=0.5)" in source


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["aug.val.flip.p=0.5"], "aug.val.flip: is random"),
        (["--run", "nothing"], "--run nothing: contains no config.yaml"),
        (["--run", "nothing", "+aug=none"], "cannot be combined"),
        (["--photos", "nothing"], "--photos nothing: there is no such folder"),
        (["--photos", "."], "--photos .: the folder contains no images"),
        (["--photos", "bad"], "bad/it.png is empty"),
    ],
)
def test_mistakes_give_one_message(
    arguments: list[str], message: str, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "bad" in arguments:
        Path("bad").mkdir()
        Path("bad/it.png").touch()
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert not Path("outputs/export").exists()
