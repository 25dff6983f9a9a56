"""Everything that changes a fit, combined: a run that is interrupted anywhere and resumed equals a whole one."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import CLASSES, assert_same, on, raises
from rich.console import Console
from runs import timeless

from augment.data.dataset import Dataset, Split
from augment.support.errors import UserError
from trainer.loop.callback import CancelFit
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load
from trainer.run import train as run
from trainer.run.config.checks import check_config, check_resume
from trainer.run.config.schema import Config, parse_config

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


class Killed(BaseException):
    """Ends a run without another save, so that the last one within the epoch counts."""


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
def test_a_run_that_was_interrupted_or_killed_equals_one_that_was_not(
    image_files: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a group of batches, and after the first batch of the second stage."""
    monkeypatch.setattr("trainer.run.config.schema.load_dataset", lambda *_: Dataset(CLASSES, image_files, image_files))
    whole = train(config_of(10**6), tmp_path / "whole")
    assert [row["epoch"] for row in whole["rows"]] == [0, 1, 2, 3]
    assert ["val_loss" in row for row in whole["rows"]] == [False, True, False, True]
    monkeypatch.setitem(CALLBACKS, "checkpoint", {"every_batches": 1})
    for at, error in ((1, CancelFit), (9, Killed)):
        with suppress(Killed):
            train(config_of(at, error), tmp_path / f"{at}")
        resumed = train(config_of(10**6, resume=str(tmp_path / f"{at}")), tmp_path / f"{at}-resumed")
        assert_same(resumed, whole, f"interrupted in batch {at}")
    with pytest.raises(UserError, match=r"^fit\.accumulate: 1, but the resumed run had 2\. Use the same value"):
        check_resume(config_of(resume=str(tmp_path / "1"), accumulate=1))
