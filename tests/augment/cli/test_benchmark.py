"""The report of a benchmark: table and JSON file."""

import json
from argparse import Namespace
from itertools import repeat
from pathlib import Path

import pytest
import torch

from augment.cli.benchmark import LeftOutError, Result, Row, Run, compare, consumer
from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("no_settling")


def missing() -> Run:
    raise LeftOutError("no GPU")


ROWS = [
    Row("decode", "decode all of it", lambda: consumer(repeat("x" * 10)), is_bound=True),
    Row("fused", "a row of a long title, which has to be folded", lambda: consumer(repeat("x" * 10)), ours=True),
    Row("cached", "decoder cache", missing),
]


def run(folder: Path) -> list[Result]:
    flags = Namespace(rounds=2, seconds=0.001, out=folder)
    return compare("mine", ROWS, flags, device=torch.device("cpu"), baselines=["decode", "cached"], settings={"a": 1})


def test_the_table_names_all_rows_and_truncates_no_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    results = run(tmp_path)
    text = capsys.readouterr().out
    assert "2 rounds of 0.001 s" in " ".join(text.split())
    assert "of decode" in text
    assert "of cached" not in text
    assert "left out: decoder cache (no GPU)" in text
    assert f"{min(results[1].speeds):,.0f}..{max(results[1].speeds):,.0f}" in text
    assert "…" not in text


def test_the_file_has_every_round(tmp_path: Path) -> None:
    results = run(tmp_path / "made" / "here")
    plain = json.loads((tmp_path / "made/here/bench.json").read_text())
    assert plain["a"] == 1
    assert plain["versions"]["torch"]
    decode, fused, cached = plain["rows"]
    assert decode["of_decode"] == 1
    assert fused["of_decode"] == results[1].ratio(results[0])
    assert 0 < fused["lowest"] <= fused["images_per_second"] <= fused["highest"]
    assert len(fused["rounds"]) == 2
    assert cached == {"name": "cached", "title": "decoder cache", "left_out": "no GPU", "rounds": []}


def test_the_table_is_printed_even_if_no_file_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--out .*file/out: cannot be written: Not a directory"):
        run(tmp_path / "file" / "out")
    assert "decode all of it" in capsys.readouterr().out
