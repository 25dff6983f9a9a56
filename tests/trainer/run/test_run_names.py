"""Names of runs: last, best, SWEEP:last and SWEEP:best, in each tool that takes a run."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from photos import draw_photo
from PIL import Image
from sweeps import write_run

from augment.cli.overrides import key_of, parse
from augment.support.errors import UserError
from trainer.predictions.trained_model import load_model
from trainer.report.command import main as report
from trainer.run.best_model import LoadedModel
from trainer.run.folder.run_names import named_run
from trainer.run.jobs import resumed_in, start_of
from trainer.sweeps.compare.command import main as compare
from trainer.sweeps.comparison import report_sweep
from trainer.tools.evaluate import main as evaluate
from trainer.tools.export.command import main as export
from trainer.tools.predict import main as predict


def write(folder: str, score: float | None, started: int, order: int | None = None, **summary: Any) -> Path:
    """Write a run that started at a time, as a job of a sweep if it has an order."""
    run = write_run(Path(folder), score, {"fit.lr": started}, **summary)
    if order is not None:
        job = {"id": run.name, "order": order, "overrides": [f"fit.lr={started}"], "trial": None, "finalist": False}
        (run / "job.json").write_text(json.dumps(job))
    os.utime(run / "config.yaml", (started, started))
    return run


@pytest.fixture
def runs(own_folder: Path) -> Path:
    """Two sweeps and two runs. Their best and newest runs differ."""
    write("outputs/day/alone", 0.99, 10)
    write("outputs/day/old", 0.6, 20, order=0)
    write("outputs/day/sweep/a", 0.5, 30, order=0)
    write("outputs/day/sweep/b", 0.8, 40, order=1)
    write("outputs/day/sweep/c", 0.9, 60, order=2, status="failed")
    write("outputs/day/newest", 0.1, 50)
    return own_folder


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("last", "outputs/day/sweep/c"),
        ("best", "outputs/day/sweep/b"),
        ("outputs/day/sweep:best", "outputs/day/sweep/b"),
        ("outputs/day/sweep/:last", "outputs/day/sweep/c"),
        ("outputs/day/sweep:other", "outputs/day/sweep:other"),
        ("outputs/day/newest", "outputs/day/newest"),
    ],
)
def test_names(name: str, folder: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert named_run(Path(name)) == Path(folder)
    # Standard output stays empty, because predict may write CSV there.
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"{Path(name)}: {folder}\n" if name != folder else "")


def test_the_best_job_is_first_in_the_table(runs: Path) -> None:
    from rich.console import Console

    report_sweep(Path("outputs/day/sweep"), Console(quiet=True))
    jobs = json.loads(Path("outputs/day/sweep/sweep.json").read_text())["jobs"]
    finished = [job["name"] for job in jobs if job["status"] == "finished"]
    assert named_run(Path("outputs/day/sweep:best")).name == finished[0]


def test_a_folder_with_such_a_name_wins(runs: Path) -> None:
    for name in ("last", "best", "outputs:best"):
        Path(name).mkdir()
        assert named_run(Path(name)) == Path(name)


def test_names_without_a_run(own_folder: Path) -> None:
    for name in ("last", "best"):
        with pytest.raises(UserError, match=f"^{name}: no .* has started in outputs"):
            named_run(Path(name))
    with pytest.raises(UserError, match="nowhere"):
        named_run(Path("nowhere:best"))
    write("outputs/alone", 0.5, 10)
    for name in ("best", "outputs:best"):  # runs outside of a sweep may have other data
        with pytest.raises(UserError, match=f"^{name}: no job of a sweep"):
            named_run(Path(name))
    write("outputs/sweep/a", 0.5, 10, order=0, status="failed")
    with pytest.raises(UserError, match="no run has finished with val_accuracy"):
        named_run(Path("outputs/sweep:best"))
    write("outputs/sweep/b", None, 10, order=1)
    with pytest.raises(UserError, match="no run has finished with val_accuracy"):
        named_run(Path("best"))


def test_each_tool_takes_names(
    finished_run: Path, own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trainer.tools.export.comparison.export", lambda trained, *_, **__: exported.append(trained))
    exported: list[LoadedModel] = []
    run = Path(shutil.copytree(finished_run, own_folder / "outputs" / "run"))
    for name in ("red", "green"):
        (own_folder / "photos" / name).mkdir(parents=True)
        Image.fromarray(draw_photo(40, 30, 1)).save(own_folder / "photos" / name / "1.png")
    (own_folder / "last.png").write_bytes((own_folder / "photos" / "red" / "1.png").read_bytes())
    before = {file.name for file in run.iterdir()}
    assert predict(["last", "photos", "last.png", "--csv", "-"]) == 0
    assert capsys.readouterr().out.count(".png") == 3
    assert evaluate(["outputs:last", "photos"]) == 0
    assert report(["last", "outputs/run"]) == 0
    assert load_model("last", device="cpu").folder == Path("outputs/run")
    assert compare(["last"]) == 0
    assert export(["last", "--unchecked", "--out", "onnx"]) == 0
    assert [trained.run for trained in exported] == [Path("outputs/run")]
    assert {file.name for file in run.iterdir()} - before >= {"evaluation-photos.json"}
    assert capsys.readouterr().err.count("outputs/run\n") == 5
    with pytest.raises(SystemExit):
        predict(["last", "last"])  # the second path names images
    assert "last" in capsys.readouterr().err


def test_the_newest_run_is_resumed(finished_run: Path, own_folder: Path) -> None:
    run = Path(shutil.copytree(finished_run, own_folder / "outputs" / "a 'run\" of mine"))
    tokens, start, _ = start_of(["fit.epochs=4", "fit.resume=last", "fit.lr=0.1"])
    assert start.saved
    assert start.saved.where.parent.resolve() == run
    assert [key_of(parse(token)) for token in tokens] == ["fit.epochs", "fit.resume", "fit.lr"]
    assert Path(str(resumed_in(tokens))) == run.relative_to(own_folder)
    assert resumed_in(start_of(["fit.resume=outputs:last"])[0]) == resumed_in(tokens)


def test_settings_that_name_a_run_accept_its_name(finished_run: Path, own_folder: Path) -> None:
    shutil.copytree(finished_run, own_folder / "outputs" / "run")
    given = ["fit.teacher=last", "model.weights=outputs:last", "run.name=last", "fit.resume=auto", "seed=1,2"]
    values = {key_of(parse(token)): parse(token).value() for token in start_of(given)[0][:4]}
    assert values == {
        "fit.teacher": "outputs/run", "model.weights": "outputs/run", "run.name": "last", "fit.resume": "auto",
    }  # fmt: skip
