"""What changes a fit, all at once: a run that is interrupted anywhere and gone on with equals one that was not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import CLASSES, assert_same, on, raises
from rich.console import Console

from augment.dataset import Dataset, Split, Target, Task
from trainer import config as trainer_config
from trainer import resume, run
from trainer.callback import CancelFit
from trainer.checkpoint import BEST, LAST, load
from trainer.config import Config, check_config, parse_config
from trainer.recorder import TIMES
from trainer.resume import check_resume

# Two epochs of 8 px in batches of 2, the last of one picture left out, two of 12 px in batches of 3; steps of two
# batches; validation after the second epoch and the fourth.
FIT: dict[str, Any] = {
    "epochs": 4,
    "batch_size": 3,
    "accumulate": 2,
    "validate_every": 2,
    "drop_last": True,
    "threads": 1,
    "device": "cpu",
    "optimizer": "muon",
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


@pytest.fixture
def data(request: pytest.FixtureRequest, pictures: Split, monkeypatch: pytest.MonkeyPatch) -> Task:
    """The pictures that every configuration finds, with targets of the task that is asked for."""
    task: Task = request.param
    split = Split(pictures.files, tuple(TARGETS[task](int(str(kind))) for kind in pictures.targets))
    for module in (run, trainer_config, resume):
        monkeypatch.setattr(module, "load_dataset", lambda _: Dataset(CLASSES, split, split, task))
    return task


def config_of(at: int | None = None, **fit: Any) -> Config:
    """Return the configuration; with `at`, of a run that ends in its batch of that number."""
    aug = {"size": 12, "train": {"random_resized_crop": {}, "rotate": {"p": 0.5}}}
    sections = {"data": {"source": "sample"}, "model": {"kind": "cnn"}, "aug": aug, "callbacks": CALLBACKS}
    config = parse_config({**sections, "fit": FIT | fit})
    stop = [] if at is None else [lambda: on("after_batch", raises(CancelFit, at), 40)]
    return replace(config, callbacks=(*config.callbacks, *stop))


def train(config: Config, folder: Path) -> dict[str, Any]:
    """Return all that two equal runs have in common."""
    check_config(config)
    check_resume(config)
    run.train(config, folder, console=Console(quiet=True))
    last, best = load(folder / LAST), load(folder / BEST) if (folder / BEST).is_file() else {}
    recorder = last["callbacks"]["Recorder"]
    rows = [timeless(row) for row in recorder["rows"]]
    del last["callbacks"]["Recorder"], last["callbacks"]["On"]
    return {
        "last": last,
        "rows": rows,
        "meter": recorder["meter"],
        "best": {**best, "row": timeless(best.get("row", {}))},
    }


def timeless(row: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in row.items() if key not in TIMES}


@pytest.mark.slow
@pytest.mark.parametrize("data", TARGETS, indirect=True)
def test_a_run_that_was_interrupted_anywhere_equals_one_that_was_not(data: Task, tmp_path: Path) -> None:
    whole = train(config_of(10**6), tmp_path / "whole")
    assert [row["epoch"] for row in whole["rows"]] == [0, 1, 2, 3]
    assert ["val_loss" in row for row in whole["rows"]] == [False, True, False, True]
    for at in PLACES[data]:
        train(config_of(at), tmp_path / f"{at}")
        resumed = train(config_of(10**6, resume=str(tmp_path / f"{at}")), tmp_path / f"{at}-resumed")
        assert_same(resumed, whole, f"{data}, interrupted in batch {at}")
