"""A new task is one module: it trains, reports, evaluates and predicts without a change anywhere else."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from PIL import Image
from reports import Page
from runs import read_metrics

from augment.cli.compose import compose
from augment.data.dataset import Dataset, Split
from augment.data.sources.registry import _SOURCES, Source, source
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.run.config.checks import check_config
from trainer.run.config.schema import parse_config
from trainer.run.train import train
from trainer.tasks import registry
from trainer.tasks.metric import METRICS
from trainer.tools import evaluate, predict

# Ordered classes, as grades of ripeness: to be off by one is better than by two.
MODULE = '''
    import torch
    from torch.nn import functional as F

    from trainer import metric
    from trainer.tasks.display import Finding, WrongSample
    from trainer.tasks.registry import register
    from trainer.tasks.task import Task


    def expected(outputs):
        """Return the mean grade, (N,)."""
        return outputs.float().softmax(dim=1) @ torch.arange(outputs.shape[1], device=outputs.device).float()


    @metric("grade", smaller=True)
    def off(outputs, targets):
        return (expected(outputs) - targets).abs()


    @register
    class Grade(Task):
        name, unit, units = "grade", "grade", "grades"
        monitor, score, score_title = "val_off", "off", "Mean distance in grades"
        mistakes_title = "Furthest off"

        def make_losses(self, fit, network, device, weights=None):
            loss = lambda outputs, targets: F.mse_loss(expected(outputs), targets.float())
            return loss, loss

        def activate(self, outputs):
            return outputs.softmax(dim=1)

        def caption(self, target, names):
            return names[target]

        def per_class(self, samples, names):
            found = off(samples.output, samples.target)
            return {name: {"off": found[samples.target == i].mean().item()} for i, name in enumerate(names)}

        def findings(self, samples, names):
            yield Finding(f"The mean grade is {expected(samples.output).mean():.2f}.")

        def mistakes(self, samples, names):
            for i in off(samples.output, samples.target).argsort(descending=True).tolist():
                yield WrongSample(i, names[samples.target[i]], f"grade {expected(samples.output)[i]:.2f}")
'''
NAMES = ("unripe", "ripe", "rotten")


@pytest.fixture
def fruit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, ...]]:
    """A module `grades.py` with the task, and a source `fruit` of nine images with three grades."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("grades.py").write_text(dedent(MODULE))
    files = tuple(tmp_path / f"{number}.png" for number in range(9))
    for number, file in enumerate(files):
        Image.fromarray(np.full((20, 20, 3), 40 + 80 * (number % 3), np.uint8)).save(file)

    @source("fruit")
    @dataclass(frozen=True, kw_only=True)
    class Fruit(Source):
        """Gray squares, the lighter the riper."""

        def load(self) -> Dataset:
            split = Split(files, tuple(number % 3 for number in range(9)))
            return Dataset(NAMES, split, split, "grade")

    yield files
    del _SOURCES["fruit"]
    registry._TASKS.pop("grade", None)
    METRICS.pop(("grade", "off"), None)
    sys.modules.pop("grades", None)


def test_a_task_of_one_module_is_complete(fruit: tuple[Path, ...], capsys: pytest.CaptureFixture[str]) -> None:
    given = compose(["aug.size=16", "fit.batch_size=3", "fit.epochs=2", "fit.device=cpu", "fit.threads=1"])
    given |= {"data": {"source": "fruit"}, "plugins": ["grades"]}
    given["callbacks"] |= {"early_stopping": {"monitor": "val_off"}}
    config = parse_config(given)
    check_config(config)
    run = train(config, Path("run")).folder

    # A fit: its own loss and metrics, by which the best epoch is chosen, the smaller the better.
    rows = read_metrics(run)
    best = load(run / BEST, BestModel)
    assert best.row == min(rows, key=lambda row: row["val_off"])
    assert best.task == "grade"
    grades = best.samples["output"].softmax(1) @ torch.arange(3.0)
    off = (grades - best.samples["target"]).abs().mean().item()
    assert best.row["val_off"] == pytest.approx(off, rel=1e-5)

    # The report.
    text = Page((run / "report.html").read_text()).text
    said = (
        "best validation mean distance in grades",
        f"The mean grade is {grades.mean():.2f}.",
        "3 grades",
        "train off",
    )
    for part in (*said, f"{best.row['val_off']:.4g}", "Furthest off", "true: rotten"):
        assert part in text, part

    # Evaluation.
    assert evaluate.main([str(run), "plugins=[grades]"]) == 0
    written = json.loads((run / "evaluation.json").read_text())
    assert written["val_off"] == pytest.approx(best.row["val_off"], rel=1e-4)
    assert list(written["per_class"]) == list(NAMES)

    # Prediction.
    assert predict.main([str(run), str(fruit[0]), "plugins=[grades]", "--tta", "flip"]) == 0
    assert "grade" in capsys.readouterr().out
