"""The command line end to end, as a user runs it: in a process of its own where that is what is tested."""

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest
from red_and_blue import write_folder
from runs import BARE, read_metrics

import trainer
from trainer.cli.main import main

pytestmark = pytest.mark.slow

SMALL = ["+aug=imagenette", "aug.size=16", "fit.batch_size=8", "fit.epochs=2", "fit.device=cpu", "fit.threads=1"]


def test_a_run_prints_and_writes_everything_and_imports_nothing_slow_that_it_does_not_need(tmp_path):
    (tmp_path / "ends.py").write_text("import atexit, gc\natexit.register(lambda: print('collects', gc.isenabled()))")
    command = [sys.executable, "-X", "importtime", "-m", "cProfile", "-o", "prof", "-m", "trainer", *SMALL]
    command += ["data=folder", f"data.root={write_folder(tmp_path / 'photos')}", "plugins=[ends]"]
    environment = os.environ | {"COLUMNS": "200", "PYTHONPATH": str(Path(__file__).parents[3])}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    (folder,) = (path.parent for path in tmp_path.glob("outputs/*/*/config.yaml"))
    for part in ("3 steps in one warp", "1/2", "2/2", "finished after 2 epochs: best val_accuracy", "collects True"):
        assert part in result.stdout
    assert (tmp_path / "prof").is_file()
    assert f"in {folder.relative_to(tmp_path)}" in result.stdout.replace(f"{tmp_path}/", "")

    texts = {"config.yaml", "plan.txt", "environment.json", "run.json", "mistakes.json"}
    texts |= {"metrics.jsonl", "steps.jsonl", "summary.json", "trainer.log", "report.html", ".hydra", ".lock"}
    names = {path.name for path in folder.iterdir()}
    labels = {"labels.csv", "labels.html", "labels.json"}
    assert names == texts | labels | {"batch.png", "confusion.png", "last.pt", "last.1.pt", "best.pt"}
    rows = read_metrics(folder)
    assert [row["epoch"] for row in rows] == [0, 1]
    assert {"train_loss", "val_loss", "val_accuracy"} <= rows[0].keys()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["last"]) == ("finished", rows[-1])
    assert summary["best"]["val_accuracy"] == max(row["val_accuracy"] for row in rows)
    assert json.loads((folder / "environment.json").read_text())["packages"]["torch"]

    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines() if line[:11] == "import time"}
    assert {"torch", "nvidia.dali", "matplotlib"} <= imported
    slow = {"torch._dynamo", "torch._inductor", "sympy", "scipy", "timm", "torchvision", "torchmetrics", "wandb"}
    assert not imported & slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of two epochs."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        given = (*SMALL, *BARE, "fit.momentum=0.9", "fit.momentum_low=0.8")
        trainer.train(*given, "data=folder", f"data.root={write_folder(folder / 'photos')}", folder="run")
    return folder / "run"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit.epochs=2"], "has finished 2 epochs. To continue, raise fit.epochs"),
        (["fit.steps=1"], "has finished 2 epochs. To continue, raise fit.steps"),
        (["model=xresnet", "model.depth=18"], "do not fit this model (0.0.weight). Use the same model"),
        (["fit.optimizer=adamw"], "error: fit.optimizer: adamw, but the resumed run had sgd."),
        (["data.fraction=0.5"], "error: data.fraction: 0.5, but the resumed run had 1. Use the same value."),
        (["data.balance=weights"], "error: data.balance: weights, but the resumed run had none."),
        (["data.folds=2", "data.fold=1"], "error: data.folds: 2, but the resumed run had null."),
        (["fit.lr=1", "fit.weight_decay=0.5"], "error: fit.weight_decay: 0.5, but the resumed run had 0.0005."),
        (["fit.momentum_low=null"], "error: fit.momentum_low: null, but the resumed run had 0.8. Use the same value."),
    ],
)
def test_a_run_is_resumed_only_as_it_was_and_if_epochs_are_left(finished, arguments, message, monkeypatch, capsys):
    monkeypatch.chdir(finished.parent)
    with pytest.raises(SystemExit, match="2"):
        main([f"fit.resume={finished}", "fit.epochs=5", *arguments])
    assert message in capsys.readouterr().err
    assert not list(finished.parent.glob("outputs/*/*/config.yaml"))


def test_a_damaged_setting_of_a_resumed_run_is_named(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    copytree(finished, "run")
    file = Path("run/config.yaml")
    file.write_text(file.read_text().replace("weight_decay: 0.0005", "weight_decay: x"))
    with pytest.raises(SystemExit, match="2"):
        main(["fit.resume=run", "fit.epochs=5", "fit.weight_decay=0.1"])
    assert "fit.weight_decay of the resumed run: 'x' is not allowed" in capsys.readouterr().err


def test_a_run_that_failed_after_its_last_epoch_is_completed(finished, monkeypatch):
    monkeypatch.chdir(finished.parent)
    rows = (finished / "metrics.jsonl").read_text()
    (finished / "summary.json").write_text((finished / "summary.json").read_text().replace('"finished"', '"failed"'))
    assert main([f"fit.resume={finished}", f"hydra.run.dir={finished}", "callbacks.report={}"]) == 0
    assert json.loads((finished / "summary.json").read_text())["status"] == "finished"
    assert (finished / "metrics.jsonl").read_text() == rows
    assert (finished / "report.html").is_file()
