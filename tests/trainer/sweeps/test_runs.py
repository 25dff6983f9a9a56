"""Runs are read from their folders, whoever wrote them."""

import json
import math
import os
from pathlib import Path

import pytest
from sweeps import write_run

from augment.support.errors import UserError
from trainer.run.folder.locks import LOCK_FILE, release, reserve
from trainer.run.folder.reader import RunFolder, find_runs
from trainer.run.folder.summary import SUMMARY_FILE


def plan(folder: Path, order: int, *overrides: str) -> Path:
    """Write what a ledger writes of a job before it begins."""
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"id": folder.name, "order": order, "overrides": overrides}))
    return folder


def test_a_run_is_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", 0.5, {"fit.lr": 0.2})
    (folder / "environment.json").write_text('{"python": "3.11"}')
    run = RunFolder(folder)
    assert (run.name, run.status, run.score, run.sweep) == ("one", "finished", "val_accuracy", None)
    assert (run.last["val_accuracy"], run.summary.best["val_accuracy"], len(run.rows)) == (0.5, 0.52, 2)
    assert run.config["fit"]["lr"] == 0.2
    assert run.versions() == {"Python": "3.11"}
    assert run.notes == {}


def test_sweeps_runs_and_folders_above_them_are_searched(tmp_path: Path) -> None:
    sweep = tmp_path / "day" / "sweep"
    for number in (10, 9):
        plan(sweep / f"{number:x}0", number, "+seed=1")
    single = write_run(tmp_path / "day" / "zebra", 0.5, {"run": {"name": "mine"}})
    write_run(single / "wandb" / "files", 0.1)  # what a tracker keeps in a run is none
    write_run(tmp_path / ".hidden", 0.1)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yaml").touch()
    (tmp_path / "day" / "linked").symlink_to(single)
    runs = find_runs([tmp_path])
    assert [(run.name, run.job and run.job["order"], run.status) for run in runs] == [
        ("90", 9, "planned"),
        ("a0", 10, "planned"),
        ("mine", None, "finished"),
    ]
    assert [run.sweep for run in runs] == [sweep, sweep, None]
    assert runs[0].overrides == ("seed=1",)
    job = {"id": "90", "order": 9, "overrides": ["++fit.lr=1", "++seed=1"], "varied": ["++fit.lr=1", "++seed=1"]}
    (sweep / "90" / "job.json").write_text(json.dumps(job))
    assert RunFolder(sweep / "90").name == "fit.lr=1 seed=1"
    twice = find_runs([single, sweep / "a0", tmp_path, tmp_path / "day" / "linked"])
    assert [run.folder.name for run in twice] == ["zebra", "a0", "90"]


def test_a_run_that_somebody_works_on_is_running(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 0.5, status="running")
    reserve(folder, again=True)
    try:
        assert RunFolder(folder).status == "running"
    finally:
        release()
    assert RunFolder(folder).status == "killed"
    (folder / LOCK_FILE).write_text("process 17 on another-host\n")
    assert RunFolder(folder).status == "running"


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"status": "fin', "[" * 100_000, '{"last": {"val_accuracy": "0.9"}}', '{"seconds": 1e999}', "\0"],
)
def test_damaged_files_cost_what_they_hold(text: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 0.5)
    for name in (SUMMARY_FILE, "environment.json", "config.yaml", "job.json"):
        (folder / name).write_text(text)
    (folder / "metrics.jsonl").write_text('{"epoch": 0, "val_accuracy": 0.25, "n": "x", "big": 1' + "0" * 18 + "}\n{")
    (run,) = find_runs([tmp_path])
    assert run.status == "killed"
    assert run.last == {"epoch": 0, "val_accuracy": 0.25}


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    """A run folder could otherwise show a file from elsewhere to whoever sees its page."""
    folder = write_run(tmp_path / "run", 0.5)
    secret = tmp_path / "secret.yaml"
    secret.write_text("seed: 17\n")
    (folder / "config.yaml").unlink()
    (folder / "config.yaml").symlink_to(secret)
    (folder / "summary.json").unlink()
    os.mkfifo(folder / "summary.json")
    os.mkfifo(folder / ".lock")
    run = RunFolder(folder)
    assert (run.config, run.summary.status) == ({}, "")
    assert set(run.notes) == {"config.yaml", "summary.json"}


def test_a_score_of_a_task_that_is_not_known_here(tmp_path: Path) -> None:
    row = {"epoch": 0, "val_loss": 0.5, "val_iou": 0.7, "val_x": None}
    folder = write_run(tmp_path / "run", None, last=row, best=row, monitor="val_iou")
    assert RunFolder(folder).score == "val_iou"
    assert math.isnan(RunFolder(folder).last["val_x"])
    write_run(tmp_path / "other", None, last=row, best=row)
    assert RunFolder(tmp_path / "other").score == "val_loss"


def test_a_path_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match=r"run: no such folder.* Did you mean .*runs\?"):
        find_runs([tmp_path / "run"])
