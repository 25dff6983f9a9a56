"""Everything that changes a fit, combined: a run that is interrupted anywhere and resumed equals a whole one."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import CLASSES, assert_same, on, raises
from rich.console import Console
from runs import timeless

from augment.data.dataset import Dataset, Split, Target, Task
from trainer.loop.callback import CancelFit
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load
from trainer.run import train as run
from trainer.run.check import check_config
from trainer.run.config import Config, parse_config
from trainer.run.resume import check_resume

# Two epochs of 8 x 10 px in batches of 2, the last of one image left out, two of 12 x 15 px in batches of 3; steps of
# two batches; validation after the second epoch and the fourth.
FIT: dict[str, Any] = {
    "epochs": 4,
    "batch_size": 3,
    "accumulate": 2,
    "validate_every": 2,
    "drop_last": True,
    "threads": 1,
    "device": "cpu",
    "optimizer": "muon",
    "momentum": 0.9,
    "momentum_low": 0.8,
    "label_smoothing": 0.1,
    "tta": "flip",
    "stages": {"small": {"epochs": 2, "size": 8, "batch_size": 2}, "large": {}},
}
CALLBACKS: dict[str, Any] = {
    "ema": {"decay": 0.8, "every": 2},
    "freeze": {"unfreeze": "gradually", "layers": "6"},
    "grad_clip": {},
    "early_stopping": {"patience": 9},
    "checkpoint": {},
}

# Batches, counted through training and validation, after which runs are interrupted, of all 16; epochs have 3, 3 and
# 3, 2, 2 and 3: in a group and behind it, at the end of a pass and of a stage, and in both validations.
PLACES: dict[Task, tuple[int, ...]] = {"classify": (1, 9), "multilabel": (7, 12), "regress": (5, 14)}
TARGETS: dict[Task, Callable[[int], Target]] = {
    "classify": int,
    "multilabel": lambda kind: (float(kind != 0), float(kind != 1), 1.0),
    "regress": lambda kind: (100.0 * kind, 7.0, -float(kind)),
}


class Killed(BaseException):
    """Ends a run without another save, so that the last one within the epoch counts."""


@pytest.fixture
def data(request: pytest.FixtureRequest, image_files: Split, monkeypatch: pytest.MonkeyPatch) -> Task:
    """The images that every configuration finds, with targets of the task that is asked for."""
    task: Task = request.param
    split = Split(image_files.files, tuple(TARGETS[task](int(str(kind))) for kind in image_files.targets))
    monkeypatch.setattr("trainer.run.config.load_dataset", lambda *_: Dataset(CLASSES, split, split, task))
    return task


def config_of(at: int | None = None, error: type[BaseException] = CancelFit, **fit: Any) -> Config:
    """Return the configuration; with `at`, of a run that ends in its batch of that number."""
    aug = {"size": [12, 15], "train": {"random_resized_crop": {}, "rotate": {"p": 0.5}}}
    sections = {"data": {"source": "sample"}, "model": {"kind": "cnn"}, "aug": aug, "callbacks": CALLBACKS}
    config = parse_config({**sections, "fit": FIT | fit})
    stop = [] if at is None else [lambda: on("after_batch", raises(error, at), 40)]
    return replace(config, callbacks=(*config.callbacks, *stop))


def train(config: Config, folder: Path) -> dict[str, Any]:
    """Return all that two equal runs have in common."""
    check_config(config)
    check_resume(config)
    run.train(config, folder, console=Console(quiet=True))
    last = load(folder / LAST, FitState)
    best = vars(load(folder / BEST, BestModel)) if (folder / BEST).is_file() else {}
    recorder = last.callbacks["Recorder"]
    rows = [timeless(row) for row in recorder["rows"]]
    del last.callbacks["Recorder"], last.callbacks["On"]
    return {
        "last": vars(last),
        "rows": rows,
        "meter": recorder["meter"],
        "best": {**best, "row": timeless(best.get("row", {}))},
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [task if task == "classify" else pytest.param(task, marks=pytest.mark.long) for task in TARGETS],
    indirect=True,
)
def test_a_run_that_was_interrupted_or_killed_anywhere_equals_one_that_was_not(
    data: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config_of(10**6), tmp_path / "whole")
    assert [row["epoch"] for row in whole["rows"]] == [0, 1, 2, 3]
    assert ["val_loss" in row for row in whole["rows"]] == [False, True, False, True]
    monkeypatch.setitem(CALLBACKS, "checkpoint", {"every_batches": 1})
    for at, error in zip(PLACES[data], (CancelFit, Killed), strict=True):
        with suppress(Killed):
            train(config_of(at, error), tmp_path / f"{at}")
        resumed = train(config_of(10**6, resume=str(tmp_path / f"{at}")), tmp_path / f"{at}-resumed")
        assert_same(resumed, whole, f"{data}, interrupted in batch {at}")
