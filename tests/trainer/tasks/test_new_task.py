"""A new task is one module: it trains, reports, evaluates and predicts without a change anywhere else."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from PIL import Image
from reports import Page, counted, record, row
from runs import read_metrics

from augment.cli.compose import compose
from augment.data.dataset import Dataset, Split
from augment.data.sources.registry import _SOURCES, Source, source
from augment.support.errors import UserError
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.report.page import render
from trainer.run.check import check_config
from trainer.run.config import parse_config
from trainer.run.train import train
from trainer.tasks import registry
from trainer.tasks.classify import Classify
from trainer.tasks.task import Task
from trainer.tools import evaluate, predict

# Ordered classes, as grades of ripeness: to be off by one is better than by two.
MODULE = '''
    from dataclasses import dataclass

    import torch
    from torch import Tensor
    from torch.nn import functional as F

    from trainer.tasks.display import TRAIN_LOSS, VAL_LOSS, Column, Finding, WrongSample
    from trainer.tasks.metrics import Meter, Samples
    from trainer.tasks.registry import register
    from trainer.tasks.task import Task


    def expected(outputs):
        """Return the mean grade, (N,)."""
        return outputs.float().softmax(dim=1) @ torch.arange(outputs.shape[1], device=outputs.device).float()


    @dataclass(frozen=True, eq=False)
    class GradeSamples(Samples):
        grade: Tensor


    class GradeMeter(Meter):
        sums = 1

        def _measure(self, outputs, targets):
            grades = expected(outputs)
            self._more[0].add_((grades - targets).abs().sum())
            return targets, grades

        def _keep(self, outputs, *measured):
            return tuple(part.clone() for part in measured)

        def _named(self, means):
            return {"off": means[0]}

        def _nothing(self):
            return GradeSamples(torch.zeros(0).long(), torch.zeros(0).long(), torch.zeros(0))


    @register
    class Grade(Task):
        name, unit, units = "grade", "grade", "grades"
        monitor, score, score_title, share = "val_off", "off", "Mean distance in grades", False
        metrics = (
            TRAIN_LOSS, Column("train_off", "train off", smaller=True),
            VAL_LOSS, Column("val_off", "val off", smaller=True),
        )
        meter, samples = GradeMeter, GradeSamples
        mistakes_title = "Furthest off"

        def make_losses(self, fit, network, device, weights=None):
            loss = lambda outputs, targets: F.mse_loss(expected(outputs), targets.float())
            return loss, loss

        def activate(self, outputs):
            return outputs.softmax(dim=1)

        def caption(self, target, names):
            return names[target]

        def per_class(self, samples, names):
            off = (samples.grade - samples.target).abs()
            return {name: {"off": off[samples.target == i].mean().item()} for i, name in enumerate(names)}

        def findings(self, samples, names):
            yield Finding(f"The mean grade is {samples.grade.mean():.2f}.")

        def mistakes(self, samples, names):
            for i in (samples.grade - samples.target).abs().argsort(descending=True).tolist():
                yield WrongSample(i, names[samples.target[i]], f"grade {samples.grade[i]:.2f}")
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
    off = (best.samples["grade"] - best.samples["target"]).abs().mean().item()
    assert best.row["val_off"] == pytest.approx(off, rel=1e-5)

    # The progress line.
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["epoch", "train", "loss", "train", "off", "val", "loss", "val", "off"] in [line[:9] for line in lines]
    assert any(line[:5] == ["2/2", *(f"{rows[1][key]:.4f}" for key in KEYS)] for line in lines)

    # The report.
    text = Page((run / "report.html").read_text()).text
    for part in (
        "best validation mean distance in grades",
        f"{best.row['val_off']:.4g}",
        f"The mean grade is {best.samples['grade'].mean():.2f}.",
        "3 grades",
        "Grades",
        "train off",
        "Furthest off",
        "true: rotten",
    ):
        assert part in text, part

    # Evaluation.
    assert evaluate.main([str(run), "plugins=[grades]"]) == 0
    written = json.loads((run / "evaluation.json").read_text())
    assert written["val_off"] == pytest.approx(best.row["val_off"], rel=1e-4)
    assert list(written["per_class"]) == list(NAMES)
    assert "rotten" in capsys.readouterr().out

    # Prediction.
    (found,) = predict.predict(run, fruit[:1], overrides=["plugins=[grades]"], tta="flip")
    assert {name for name, _ in found.classes} == set(NAMES)
    assert sum(share for _, share in found.classes) == pytest.approx(1, abs=1e-4)
    assert predict.main([str(run), str(fruit[0]), "plugins=[grades]"]) == 0
    assert "grade" in capsys.readouterr().out


KEYS = ("train_loss", "train_off", "val_loss", "val_off")


def test_without_scores_of_single_units_the_report_has_no_section_of_them(tmp_path: Path) -> None:
    class Plain(Classify):
        evaluate, section = Task.evaluate, Task.section

    samples = counted([[2, 0], [1, 1]])
    made = record([row(0, 1, 1)], tmp_path, task=Plain(), samples=samples, classes=("ant", "bee"))
    assert "classes" not in Page(render(made)).sections
    made.samples = None
    assert "nothing is known about single classes" in Page(render(made)).text


def test_only_its_own_values_can_be_monitored(fruit: tuple[Path, ...]) -> None:
    given = compose(["aug.size=16", "fit.device=cpu", "callbacks.checkpoint.monitor=val_accuracy"])
    given |= {"data": {"source": "fruit"}, "plugins": ["grades"]}
    with pytest.raises(
        UserError, match=r"measured for the task grade with 3 grades\. Allowed: auto, val_loss, val_off"
    ):
        check_config(parse_config(given))


def test_an_unregistered_task_is_named(fruit: tuple[Path, ...]) -> None:
    given = compose(["aug.size=16", "fit.device=cpu"]) | {"data": {"source": "fruit"}}
    with pytest.raises(UserError, match=r"^unknown task 'grade'\."):
        check_config(parse_config(given))
