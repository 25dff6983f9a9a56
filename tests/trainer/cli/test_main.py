"""The command line end to end, as a user runs it: in a process of its own where that is what is tested."""

import json
import os
import pstats
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs import read_metrics

from trainer.cli.main import main
from trainer.sweeps.ledger import read_ledger

pytestmark = pytest.mark.slow

SMALL = ["+aug=imagenette", "aug.size=16", "fit.batch_size=8", "fit.epochs=2", "fit.device=cpu", "fit.threads=1"]
LEAN = [*SMALL, "callbacks.plots=null", "callbacks.report=null"]  # a second and a half less


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes that differ in their color, 20 + 10 images of various sizes."""
    root = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for split, count in (("train", 20), ("val", 10)):
        for name, channel in (("red", 0), ("blue", 2)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count // 2):
                pixels = random.integers(0, 120, (random.integers(20, 40), random.integers(20, 40), 3), np.uint8)
                pixels[..., channel] += 120
                Image.fromarray(pixels).save(folder / f"{i}.jpg")
    return root


def start(folder, *arguments, python=(), **variables):
    environment = os.environ | {"COLUMNS": "200", "PYTHONPATH": str(Path(__file__).parents[3])} | variables
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, *python, "-m", "trainer", *arguments], cwd=folder, env=environment, **pipes
    )


@pytest.fixture
def call(monkeypatch, capsys):
    """Run the command line in this process, which has PyTorch and DALI imported already."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["trainer"])

    def call(folder, *arguments):
        monkeypatch.chdir(folder)
        capsys.readouterr()
        try:
            code = main([*map(str, arguments)])
        except SystemExit as stopped:
            code = stopped.code
        return subprocess.CompletedProcess(arguments, code or 0, *capsys.readouterr())

    return call


def runs(folder):
    return sorted(path.parent for path in folder.glob("outputs/*/*/config.yaml"))


def data(photos):
    return ["data=folder", f"data.root={photos}"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, photos):
    """A run of two epochs under a profiler; returns what it printed and its folder."""
    folder = tmp_path_factory.mktemp("finished")
    process = start(folder, *SMALL, *data(photos), python=["-X", "importtime", "-m", "cProfile", "-o", "prof"])
    result = subprocess.CompletedProcess(process.args, 0, *process.communicate(timeout=300))
    assert process.returncode == 0, result.stderr
    (only,) = runs(folder)
    return result, only


def test_a_run_imports_nothing_slow_that_it_does_not_need(finished):
    result, _ = finished
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines() if line[:11] == "import time"}
    assert {"torch", "nvidia.dali", "matplotlib"} <= imported
    slow = {"torch._dynamo", "torch._inductor", "sympy", "scipy", "timm", "torchvision", "torchmetrics", "wandb"}
    assert not imported & slow


def test_a_run_can_be_profiled(finished):
    """Its process ends as any other, so that tools that write at its end see it."""
    profile = finished[1].parents[2] / "prof"
    assert any(name == "_train_batches" for _, _, name in pstats.Stats(str(profile)).stats)


def test_a_run_prints_plan_epochs_and_summary(finished):
    result, folder = finished
    assert "3 steps in one warp, border reflect_101" in result.stdout
    assert "1/2" in result.stdout
    assert "2/2" in result.stdout
    assert f"in {folder.relative_to(folder.parents[2])}" in result.stdout.replace(str(folder.parents[2]) + "/", "")
    assert "finished after 2 epochs: best val_accuracy" in result.stdout


def test_a_run_writes_everything(finished):
    _, folder = finished
    names = {path.name for path in folder.iterdir()}
    image_files = {"batch.png", "confusion.png"}
    texts = {
        "config.yaml",
        "plan.txt",
        "environment.json",
        "run.json",
        "mistakes.json",
        "left_out.json",
        "metrics.jsonl",
        "steps.jsonl",
        "summary.json",
        "trainer.log",
    }
    assert names == image_files | texts | {"last.pt", "last.1.pt", "best.pt", "report.html", ".hydra", ".lock"}
    rows = read_metrics(folder)
    assert [row["epoch"] for row in rows] == [0, 1]
    assert {"train_loss", "val_loss", "val_accuracy"} <= rows[0].keys()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["best"]["val_accuracy"] == max(row["val_accuracy"] for row in rows)
    assert summary["last"] == rows[-1]
    assert json.loads((folder / "environment.json").read_text())["packages"]["torch"]


def wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.long
def test_a_signal_ends_a_sweep_and_no_further_job_starts(tmp_path, photos):
    process = start(tmp_path, "-m", *LEAN, *data(photos), "fit.epochs=500", "seed=0,1,2")
    wait_for(lambda: any(tmp_path.glob("outputs/*/*-sweep/*/last.pt")), process)
    process.send_signal(signal.SIGHUP)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "")
    (sweep,) = tmp_path.glob("outputs/*/*-sweep")
    stopped = "stopped; no further job was started; python -m trainer sweep resume"
    assert output.endswith(f"{stopped} {sweep.relative_to(tmp_path)} continues it\n")
    assert [job.status() for job in read_ledger(sweep)] == ["interrupted", "planned", "planned"]


def test_resume_of_a_finished_run_is_refused(finished, call):
    _, folder = finished
    before = len(runs(folder.parents[2]))
    result = call(folder.parents[2], f"fit.resume={folder}")
    assert result.returncode == 2
    assert "has finished its 2 epochs. Allowed: a larger fit.epochs" in result.stderr
    assert len(runs(folder.parents[2])) == before


def test_a_run_that_failed_after_its_last_epoch_is_completed(finished, call, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished[1], run)
    rows = (run / "metrics.jsonl").read_text()
    (run / "report.html").unlink()
    (run / "summary.json").write_text((run / "summary.json").read_text().replace('"finished"', '"failed"'))
    result = call(finished[1].parents[2], f"fit.resume={run}", f"hydra.run.dir={run}", "callbacks.plots=null")
    assert result.returncode == 0, result.stderr
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert (run / "metrics.jsonl").read_text() == rows
    assert (run / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model=xresnet", "model.depth=18"], "its model had other weights (0.0.weight). Allowed: the model and the"),
        (["fit.optimizer=adamw"], "error: fit.optimizer: adamw, but the run to resume had sgd."),
        (["data.fraction=0.5"], "error: data.fraction: 0.5, but the run to resume had 1. Allowed: the same."),
        (["data.balance=weights"], "error: data.balance: weights, but the run to resume had none."),
        (["data.folds=2", "data.fold=1"], "error: data.folds: 2, but the run to resume had null."),
        (["fit.layer_decay=0.5"], "its optimizer had other groups of parameters. Allowed: weight_decay,"),
    ],
)
def test_a_run_is_resumed_only_as_it_was(finished, arguments, message, monkeypatch, capsys):
    _, folder = finished
    monkeypatch.chdir(folder.parents[2])
    before = len(runs(folder.parents[2]))
    with pytest.raises(SystemExit, match="2"):
        main([f"fit.resume={folder}", "fit.epochs=5", *arguments])
    assert message in capsys.readouterr().err
    assert len(runs(folder.parents[2])) == before
