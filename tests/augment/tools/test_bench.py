"""The benchmark of loading: its rows on a few images."""

import json
from pathlib import Path

import pytest
import torch

from augment.tools.bench.command import main

ALL = ["read", "decode", "crop", "fused", "steps", "cached"]
BRIEF = ["--batch-size", "4", "--rounds", "2", "--seconds", "0.02", "--threads", "1"]


@pytest.mark.usefixtures("no_settling")
@pytest.mark.long
def test_every_row_on_a_few_images(
    photos: tuple[Path, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["+aug=imagenette", "aug.size=32", "--photos", str(photos[0].parent), *BRIEF]
    assert main([*given, "--also", "trivial_augment", "--out", str(tmp_path)]) == 0
    rows = {row["name"]: row for row in json.loads((tmp_path / "bench.json").read_text())["rows"]}
    assert list(rows) == [*ALL, "trivial_augment"]
    for row in rows.values():
        assert row["left_out"] == ("no GPU" if row["name"] == "cached" and not torch.cuda.is_available() else None)
        assert row["left_out"] or (len(row["rounds"]) == 2 and row["of_decode"] > 0 and row["of_crop"] > 0)
    printed = capsys.readouterr().out
    assert "imagenette at 32 px" in printed
    assert "6 images of" in " ".join(printed.split())
