"""The benchmark of training: its command line, its rows, and the verdict."""

import json
from pathlib import Path

import pytest
from fakes import needs_gpu

from augment.cli.benchmark import Result, Row, Timing
from augment.cli.compose import compose
from trainer.run.config.schema import parse_config
from trainer.tools.bench.command import main
from trainer.tools.bench.training import verdict

TINY = ["aug.size=16", "fit.batch_size=4", "fit.device=cpu", "fit.threads=1", "--rounds", "2", "--seconds", "0.02"]


def result(name: str, *speeds: int) -> Result:
    return Result(Row(name, name, lambda: len), [Timing(speed, 1, 1.0, 1.0) for speed in speeds])


@pytest.mark.parametrize(
    ("loader", "fed", "sentence"),
    [
        (500, 99, "Bound by the model: waiting for data costs 1.0% of the speed."),
        (500, 101, "Bound by the model: waiting for data costs nothing."),
        (80, 75, "Bound by the input pipeline: waiting for data costs 25.0% of the speed. Try "),
        (500, 75, "Bound by loader and model together: waiting for data costs 25.0% of the speed. Try "),
    ],
)
def test_the_verdict_says_what_limits_the_speed(loader: int, fed: int, sentence: str) -> None:
    config = parse_config(compose(["+aug=imagenette", "fit.device=cpu"]))
    # In the second round, the machine was slow; its ratio counts like the others.
    found = verdict(config, result("loader", loader), result("fixed", 100, 10, 100), result("fed", fed, fed // 10, fed))
    assert found.startswith(sentence)
    assert ("a GPU" in found) == ("Try" in found)
    assert "aug." not in found.replace("aug.size", ""), "the cache and the decoder are the GPU's"


@pytest.mark.usefixtures("no_settling", "sample_drawn")
def test_all_rows_run_and_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stages = ["fit.epochs=2", "fit.stages={a: {epochs: 1, size: 16}, b: {epochs: 1}}"]  # which do not count
    assert main(["+aug=imagenette", *TINY, *stages, "fit.accumulate=2", "--out", "made"]) == 0
    printed, said = capsys.readouterr()
    assert said.startswith("This takes about 0 s after loaders and model have started.\n")
    assert "Bound by " in printed
    found = json.loads(Path("made/bench.json").read_text())
    assert found["fit"]["accumulate"] == 2
    rows = {row["name"]: row for row in found["rows"] if not row["left_out"]}
    assert list(rows) == ["loader", "fixed", "fed"]
    for row in rows.values():
        assert row["title"] in printed
        assert len(row["rounds"]) == 2
        assert all(timing["images"] == 4 * timing["batches"] for timing in row["rounds"])


@needs_gpu
@pytest.mark.parametrize("graph", ["true", "false"])
def test_all_rows_run_on_the_gpu(
    graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    sizes = ["aug.size=32", "fit.batch_size=16", "fit.precision=bf16", f"fit.graph={graph}"]
    flags = ["--rounds", "2", "--seconds", "0.1", "--out", str(tmp_path)]
    assert main(["+aug=imagenette", "fit.device=cuda", *sizes, *flags]) == 0
    assert "Bound by " in capsys.readouterr().out
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["loader", "fixed", "fed"]
    assert all(row["images_per_second"] > 0 and row["of_fixed"] > 0 for row in rows)
