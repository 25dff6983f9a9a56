"""The benchmarks that are run by hand still run, on a few images."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from documented import photos_folder

__all__ = ["photos_folder"]

BRIEF = ["--rounds", "1", "--seconds", "0.01"]
LOADING = ["+aug=imagenette", "aug.size=32", "data=folder", "data.root=DIR", "--batch-size", "4", "--workers", "1"]
SMALL_RUN = ["--model", "test_resnet", "--epochs=1", "--size=32", "--batch-size=4", "--workers=0", "--rounds=1"]
TRAINING = ["+aug=imagenette", "aug.size=16", "data=folder", "data.root=DIR", "fit.batch_size=4", "fit.device=cpu"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "arguments", "rows"),
    [
        ("peers", [*LOADING, *BRIEF, "--model", "test_resnet"], ["one fixed batch", "timm's loader", "PIL", "CPU ms"]),
        ("sources", [*LOADING, *BRIEF], ["folder", "lmdb", "numpy", "own, "]),
        ("bare_loop", [*TRAINING, *BRIEF], ["training, fed", "bare loop, fed"]),
        (
            "targets",
            ["+aug=segment", "aug.size=32", "--photos", "DIR/train", "--batch-size", "4", "--workers", "1", *BRIEF],
            ["with a mask", "with 5 boxes", "with 14 points", "torchvision v2, mask"],
        ),
        ("check", ["DIR", "--rounds", "1"], ["12 files: the first check takes"]),
        ("many_images", ["1000"], [" s of CPU, "]),
        ("whole_runs", ["--photos", "DIR", *SMALL_RUN, "--rows", "this project,Lightning"], ["Lightning"]),
    ],
)
def test_a_script_measures_its_rows(
    script: str, arguments: list[str], rows: list[str], photos_folder: Path, tmp_path: Path
) -> None:
    file = Path(__file__).parent / "benchmarks" / f"{script}.py"
    given = [token.replace("DIR", str(photos_folder)) for token in arguments]
    wide = {**os.environ, "COLUMNS": "200"}
    ran = subprocess.run([sys.executable, file, *given], cwd=tmp_path, env=wide, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert [row for row in rows if row not in ran.stdout] == []
