"""Findings of a report: sentences about a run."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from reports import Page, counted, ended, folder_of_a_run, record, row, said  # noqa: F401  (a fixture)

from augment.support.formatting import percent
from trainer.report.charts import charts
from trainer.report.page import render
from trainer.report.run_content import read_record
from trainer.run.folder.summary import Summary
from trainer.tasks.classify import wilson_interval
from trainer.tasks.metric import MetricsRow, OutputSamples


def test_the_interval_of_nothing_is_everything() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 20)[0] == 0.0


@pytest.mark.parametrize(("share", "text"), [(1.0, "100.0%"), (0.9999, "99.9%"), (0.816, "81.6%"), (0.0, "0.0%")])
def test_only_1_is_100_percent(share: float, text: str) -> None:
    assert percent(share, 1) == text


OVER = [row(i, 2.0 - i / 10, 1.0 + 0.1 * abs(i - 3), accuracy=0.6 - 0.01 * abs(i - 3)) for i in range(9)]


def test_overfitting_is_reported_with_its_epoch() -> None:
    text = said(record(OVER))
    assert "! Training loss still falls, but validation loss has risen since epoch 4 (1 to 1.5): overfitting" in text


@pytest.mark.parametrize(
    "rows",
    [
        [row(i, 2.0 - i / 10, 2.0 - i / 10) for i in range(9)],  # both fall
        OVER[:5],  # one epoch is chance
        [r | {"train_loss": 1.0} for r in OVER],  # training does not fall
        [r | {"val_loss": 1.0 + 0.002 * i} for i, r in enumerate(OVER)],  # too little
        [row(i, 2.0 - i / 10, loss) for i, loss in enumerate([1.44, 3.2, 1.75, 1.46])],  # a high learning rate
        [],
    ],
)
def test_overfitting_is_not_reported_without_reason(rows: list[MetricsRow]) -> None:
    assert "overfitting" not in said(record(rows))


def test_still_improving() -> None:
    rows = [row(i, 1.0, 1.0, accuracy=0.5 + i / 10) for i in range(4)]
    assert "more epochs may help" in said(record(rows))
    assert "more epochs may" not in said(record([*rows, row(4, 1, 1, accuracy=0.8)]))
    assert "more epochs may" not in said(record(rows, ending=ended("interrupted", 1)))


def unscored(rows: list[MetricsRow], which: list[int]) -> list[MetricsRow]:
    """Rows of which some are those of epochs without validation."""
    return [{k: v for k, v in r.items() if i not in which or not k.startswith("val_")} for i, r in enumerate(rows)]


def test_epochs_without_validation_are_skipped() -> None:
    rare = unscored([*OVER, row(9, 0.5, 9.9)], [0, 2, 9])
    text = said(record(rare, ending=ended("interrupted", 1), best=rare[3]))
    assert "has risen since epoch 4 (1 to 1.5): overfitting" in text
    rising = [row(i, 1.0, 1.0, accuracy=0.5 + i / 20) for i in range(9)]
    rare = unscored(rising, [0, 1, 3, 4, 6, 7])
    assert "more epochs may help" in said(record(rare, best=rare[-1]))
    assert charts(record(rare, best=rare[-1]))


def test_a_gap_between_training_and_validation() -> None:
    assert "25 points higher in training" in said(record([row(0, 1, 1, accuracy=0.5, train_accuracy=0.75)]))
    assert "points" not in said(record([row(0, 1, 1, accuracy=0.5, train_accuracy=0.55)]))
    rows = [row(i, 2 - i / 10, 1, accuracy=0.6, train_accuracy=0.6 + i / 40) for i in range(9)]
    text = "In epoch 9, accuracy is 20 points higher in training than in validation, a sign of overfitting."
    assert text in said(record(rows, best=rows[2]))
    assert text in said(record(unscored([*rows, row(9, 1, 1)], [9]), best=rows[2]))


def test_waiting_for_data() -> None:
    rows = [row(0, 1, 1, waiting=0.9), row(1, 1, 1, waiting=0.3), row(2, 1, 1, waiting=0.3)]
    assert "! The model waited 30% of the training time for data. Try more fit.threads or smaller" in said(record(rows))
    few = said(record([r | {"waiting": 0.02} for r in rows]))
    assert "The model waited 2%" in few
    assert "! The model" not in few
    assert "waited" not in said(record([row(0, 1, 1)]))


def test_the_worst_class() -> None:
    counts = np.array([[20, 0, 0], [5, 10, 5], [1, 0, 19]])
    text = said(record([row(0, 1, 1)], samples=counted(counts.tolist()), classes=("a", "b", "c")))
    assert "Worst class: b at 50% (10 of 20), most often mistaken for a (5 times)." in text
    assert "All validation images are classified correctly" in said(
        record([row(0, 1, 1)], samples=counted((np.eye(3, dtype=int) * 9).tolist()), classes=("a", "b", "c"))
    )


def test_guessing() -> None:
    for counts, guesses in (([[90, 0], [10, 0]], True), ([[9, 0], [0, 9]], False)):
        text = said(record([row(0, 1, 1)], samples=counted(counts), classes=("a", "b")))
        warning = "! The best accuracy is not significantly better than always predicting the largest class"
        assert (warning in text) is guesses


def test_no_better_than_the_mean() -> None:
    targets = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    predicted = OutputSamples(torch.arange(3), targets, targets * torch.tensor([1.1, 0.0]))
    text = said(record([], classes=("age", "height"), task="regress", samples=predicted))
    assert text == "! The model predicts height no better than its mean (R² -6.00)."


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (ended("failed", 1, "RuntimeError: <b>"), "! The run failed after 1 epoch: RuntimeError: <b>"),
        (ended("interrupted", 1), "! The run was interrupted after 1 epoch. Continue it with fit.resume"),
        (ended("killed", math.nan), "! The run was killed after 1 epoch."),
    ],
)
def test_other_ends(ending: Summary, text: str) -> None:
    assert text in said(record([row(0, 1, 1)], ending=ending))


def test_an_early_end_says_why(run: Path) -> None:
    read = read_record(run)
    read.run.summary = ended("finished", 1, stopped="no better val_loss in 2 epochs")
    read.run.rows = read.run.rows[:3]
    assert "The run ended early, after 3 of 4 epochs: no better val_loss in 2 epochs." in said(read)
    assert "by val_accuracy, last epoch: 40.0%" in render(read)


def test_a_loss_that_exploded() -> None:
    text = "! The validation loss was 160 in epoch 1, so training was unstable. Try a smaller fit.lr"
    rows = [row(0, 2.4, 160), row(1, 2.1, 2.2)]
    assert text in said(record(rows))
    assert "unstable" not in said(record([row(0, 2.4, 9), row(1, 0.1, 8)]))
    assert "unstable" not in said(record([row(0, 60, 50), row(1, 40, 45)]))  # a sum instead of a mean
    assert "unstable" not in said(record(rows, classes=("age",), task="regress"))  # the unit is unknown


def test_a_loss_that_is_not_finite() -> None:
    rows = [row(0, 1, 1), row(1, float("nan"), 1)]
    assert "! The training loss is not finite in epoch 2." in said(record(rows))
    assert charts(record(rows))
