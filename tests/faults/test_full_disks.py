"""A disk that becomes full at 20 points: one sentence, nothing lost, and the run resumes once there is room."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from full_disk import CREATE, FSYNC, RENAME, WRITE, operations
from rank_runs import environment
from runs import draw_classes, rows_of

from trainer.cli.main import main
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load
from trainer.run.folder.summary import SUMMARY_FILE

pytestmark = pytest.mark.faults

TRAIN = [
    "+aug=imagenette", "data=folder", "data.root=../DATA", "aug.size=16", "fit.batch_size=4", "fit.epochs=3",
    "fit.device=cpu", "fit.threads=1",
]  # fmt: skip
ONE = [*TRAIN, "hydra.run.dir=outputs/run"]
BARE = [*ONE, "callbacks.plots=null", "callbacks.report=null"]
COMMANDS = {
    "train": ONE,
    "bare": BARE,
    "saving": [*BARE, "callbacks.checkpoint.every_batches=2"],
    "sweep": ["-m", *TRAIN, "fit.lr=0.01,0.02", "hydra.sweep.dir=outputs/sweep"],
    "evaluate": ["evaluate", "outputs/run"],
}
RUNS = ("train", "bare", "saving")
# Command, kind of the operation, its file below outputs/, and which one of these operations finds the disk full.
POINTS = [
    ("train", CREATE, "run/.lock", 0),
    ("train", CREATE, "run/trainer.log", 0),
    ("train", WRITE, "run/.hydra/overrides.yaml", 0),
    ("train", WRITE, "run/summary.json", 0),
    ("train", FSYNC, "run/config.yaml", 0),
    ("train", RENAME, "run/environment.json", 0),
    ("train", CREATE, "run/metrics.jsonl", 0),
    ("train", WRITE, "run/batch.png", 1),
    ("train", WRITE, "run/metrics.jsonl", 1),
    ("bare", FSYNC, "run/steps.jsonl", 2),
    ("train", WRITE, "run/best.pt", 0),
    ("train", WRITE, "run/last.pt", 1),
    ("bare", RENAME, "run/last.1.pt", 1),
    ("saving", FSYNC, "run/last.pt", 3),
    ("train", WRITE, "run/confusion.png", 0),
    ("train", WRITE, "run/report.html", 0),
    ("evaluate", WRITE, "run/evaluation.json", 0),
    ("evaluate", WRITE, "run/evaluations.jsonl", 0),
    ("sweep", WRITE, "sweep/sweep.md", 0),
]
SAMPLE = (POINTS[13],)


def run(given: Sequence[str], folder: Path, number: int = -1) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder whose outputs/ are on a disk that is full from an operation on."""
    return subprocess.run(
        [sys.executable, "-m", "full_disk", "outputs", str(number), "trace", "trainer", *given],
        cwd=folder,
        env=environment() | {"COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )


def run_here(given: Sequence[str], folder: Path, patch: pytest.MonkeyPatch) -> int:
    """Run a command in a folder with room, in this process, which has imported PyTorch already; return its code."""
    patch.chdir(folder)
    patch.setattr(sys, "argv", ["trainer"])
    try:
        return main(list(given))
    except SystemExit as ended:
        return int(str(ended.code))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with DATA, and beside it one for each command that ran with room."""
    folder = tmp_path_factory.mktemp("disks")
    draw_classes(folder / "DATA", count=6, val=3)
    return folder


def undisturbed(name: str, data: Path) -> Path:
    """Run a command with room, unless it was before; return where."""
    folder = data / name
    if not folder.exists():
        prepare(name, folder, data)
        ended = run(COMMANDS[name], folder)
        assert ended.returncode == 0, ended.stdout
    return folder


def prepare(name: str, folder: Path, data: Path) -> None:
    """Make a folder in which a command can run: a finished run is there for what evaluates one."""
    folder.mkdir()
    if name == "evaluate":
        shutil.copytree(undisturbed("train", data) / "outputs", folder / "outputs")


def results(run: Path) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Return the rows of a finished run, and its last weights."""
    assert json.loads((run / SUMMARY_FILE).read_text())["status"] == "finished"
    rows = rows_of(run)
    return rows, load(run / LAST, FitState).model


def check_same(run: Path, expected: Path) -> None:
    """Check that two runs have the same rows and weights."""
    (rows, weights), (expected_rows, expected_weights) = results(run), results(expected)
    assert rows == expected_rows
    assert all(torch.equal(weight, expected_weights[name]) for name, weight in weights.items())


@pytest.mark.parametrize(
    ("name", "kind", "file", "which"),
    [pytest.param(*point, marks=[pytest.mark.sample] * (point in SAMPLE)) for point in POINTS],
)
def test_a_full_disk_loses_nothing(
    name: str, kind: str, file: str, which: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, folder = undisturbed(name, data), data / tmp_path.name
    done = operations(expected / "trace", expected / "outputs")
    number = [index for index, operation in enumerate(done) if operation == (kind, file)][which]
    prepare(name, folder, data)
    ended = run(COMMANDS[name], folder, number)
    assert len((folder / "trace").read_text().splitlines()) > number, ended.stdout
    assert "Traceback" not in ended.stdout, ended.stdout
    assert "Exception ignored" not in ended.stdout, ended.stdout
    assert "No space left on device" in ended.stdout
    assert ended.stdout.count("error: ") == 1, ended.stdout
    assert "full_disk.py" not in ended.stdout, ended.stdout  # which would be a line of code
    assert ended.returncode in (1, 2), ended
    for job in {found.parent for found in folder.glob(f"outputs/**/{SUMMARY_FILE}")}:
        status = json.loads((job / SUMMARY_FILE).read_text())["status"]
        assert status == ("running" if name in RUNS else "finished"), ended.stdout
        for checkpoint, of in ((LAST, FitState), (BEST, BestModel)):
            if (job / checkpoint).exists():
                load(job / checkpoint, of)
    if name == "sweep":  # only its table is missing
        jobs = [file.parent.name for file in (expected / "outputs" / "sweep").glob("*/job.json")]
        assert len(jobs) == 2
        for job in jobs:
            check_same(folder / "outputs" / "sweep" / job, expected / "outputs" / "sweep" / job)
        return
    assert run_here([*COMMANDS[name], *["fit.resume=auto"] * (name in RUNS)], folder, monkeypatch) == 0
    check_same(folder / "outputs" / "run", expected / "outputs" / "run")
    assert not list(folder.rglob("*.part"))
