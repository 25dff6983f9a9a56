"""What is saved when, and which epoch counts as the best."""

import math
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from fakes import (
    assert_same,
    make_learner,
    on,
    raises,
)

from trainer.callback import Callback, CancelFit
from trainer.callbacks import Checkpoint
from trainer.checkpoint import BEST, LAST, load
from trainer.learner import Learner
from trainer.recorder import Recorder


def scores(values: list[float], key: str = "val_accuracy") -> Callback:
    """Make a callback that replaces what the recorder measured, before the checkpoint sees it."""
    given = iter(values)

    def replace(learner: Learner) -> None:
        learner.find(Recorder).rows[-1][key] = next(given)

    return on("after_epoch", replace)


NAN = math.nan


@pytest.mark.parametrize(
    ("monitor", "values", "best"),
    [
        ("val_accuracy", [0.1, 0.3, 0.2], 1),
        ("val_accuracy", [0.3, 0.2, 0.1], 0),
        ("val_accuracy", [0.1, 0.2, 0.3], 2),
        ("val_accuracy", [0.2, 0.3, 0.3], 1),
        ("val_accuracy", [0.0, 0.0, 0.0], 0),
        ("train_accuracy", [0.1, 0.3, 0.2], 1),
        ("val_loss", [0.3, 0.1, 0.2], 1),
        ("val_loss", [0.2, 0.1, 0.1], 1),
        ("val_loss", [0.1, 0.2, 0.3], 0),
        ("train_loss", [0.3, 0.1, 0.2], 1),
        ("val_loss", [NAN, 0.2, 0.3], 1),
        ("val_loss", [0.3, NAN, 0.4], 0),
        ("val_loss", [0.3, NAN, 0.2], 2),
        ("val_accuracy", [NAN, 0.1, NAN], 1),
        ("val_accuracy", [NAN, NAN, NAN], 0),
    ],
)
def test_best_is_the_first_of_the_best(monitor: str, values: list[float], best: int, tmp_path: Path) -> None:
    weights: list[dict[str, torch.Tensor]] = []
    copy = on("after_epoch", lambda learner: weights.append(deepcopy(learner.model.state_dict())))
    checkpoint = Checkpoint(monitor=monitor)
    learner = make_learner(Recorder(), scores(values, monitor), checkpoint, copy, folder=tmp_path, epochs=3)
    learner.fit()
    assert checkpoint.best_epoch == best
    assert_same(checkpoint.best, values[best])
    saved = load(tmp_path / BEST)
    assert_same(saved["model"], weights[best])
    assert_same(saved["row"], learner.find(Recorder).rows[best])


def test_best_has_what_evaluation_needs(tmp_path: Path) -> None:
    learner = make_learner(Recorder(), Checkpoint(), folder=tmp_path, epochs=1)
    learner.fit()
    saved = load(tmp_path / BEST)
    assert saved.keys() == {"model", "row", "confusion", "samples", "classes", "task"}
    assert saved["classes"] == ["ant", "bee", "cat"]
    assert saved["row"] == learner.find(Recorder).rows[0]
    assert_same(saved["confusion"], learner.find(Recorder).confusion)
    samples = learner.find(Recorder).samples
    assert samples is not None
    assert samples.index.tolist() == [0, 1, 2]
    assert_same(saved["samples"], vars(samples))


def test_last_is_saved_after_every_epoch(tmp_path: Path) -> None:
    positions: list[tuple[int, int]] = []
    look = on("after_epoch", lambda learner: positions.append(load(tmp_path / LAST)["position"]), 100)
    make_learner(Recorder(), scores([0.3, 0.2, 0.1]), Checkpoint(), look, folder=tmp_path, epochs=3).fit()
    assert positions == [(1, 0), (2, 0), (3, 0)]
    assert load(tmp_path / LAST)["position"] == (3, 0)


def test_last_is_saved_once_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[str] = []
    monkeypatch.setattr("trainer.callbacks.save", lambda state, path: saved.append(path.name))
    make_learner(Recorder(), scores([0.3, 0.2]), Checkpoint(), folder=tmp_path).fit()
    assert saved == [BEST, LAST, LAST]


def test_an_interrupted_epoch_is_saved(tmp_path: Path) -> None:
    stop = on("after_batch", raises(CancelFit, at=6))  # three batches and two, then the second of the second epoch
    learner = make_learner(Recorder(), Checkpoint(), stop, folder=tmp_path)
    learner.fit()
    saved = load(tmp_path / LAST)
    assert saved["position"] == (1, 2)
    assert_same(saved["model"], learner.model.state_dict())
    assert saved["callbacks"]["Recorder"]["meter"]["samples"] == 4


def test_an_interrupted_first_epoch_is_saved_too(tmp_path: Path) -> None:
    make_learner(Recorder(), Checkpoint(), on("after_batch", raises(CancelFit)), folder=tmp_path).fit()
    assert load(tmp_path / LAST)["position"] == (0, 1)
    assert not (tmp_path / BEST).exists()


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_what_failed_is_not_saved(error: BaseException, tmp_path: Path) -> None:
    learner = make_learner(Recorder(), Checkpoint(), on("after_step", raises(error, at=4)), folder=tmp_path)
    with pytest.raises(type(error)):
        learner.fit()
    assert load(tmp_path / LAST)["position"] == (1, 0)


def test_a_failed_first_epoch_leaves_nothing(tmp_path: Path) -> None:
    learner = make_learner(Recorder(), Checkpoint(), on("after_step", raises(RuntimeError("boom"))), folder=tmp_path)
    with pytest.raises(RuntimeError, match="boom"):
        learner.fit()
    assert not list(tmp_path.glob("*.pt"))


def test_the_last_state_every_so_many_epochs_and_at_the_end(tmp_path: Path) -> None:
    saved: list[int] = []

    class Watching(Checkpoint):
        def _save_last(self, learner: Learner) -> None:
            saved.append(learner.epoch)
            super()._save_last(learner)

    make_learner(Recorder(), Watching(every=2), folder=tmp_path, epochs=5).fit()
    assert saved == [1, 3, 4]
    assert load(tmp_path / LAST)["position"] == (5, 0)


def test_the_best_value_is_remembered_by_a_resumed_run(tmp_path: Path) -> None:
    first = make_learner(Recorder(), scores([0.9]), Checkpoint(), folder=tmp_path, epochs=1)
    first.fit()
    checkpoint = Checkpoint()
    second = make_learner(Recorder(), scores([0.8, 0.9]), checkpoint, folder=tmp_path, epochs=3)
    second.fit(second.load_state_dict(load(tmp_path / LAST)))
    assert (checkpoint.best, checkpoint.best_epoch) == (0.9, 0)
    assert load(tmp_path / BEST)["row"]["epoch"] == 0


def test_a_resumed_run_that_goes_by_another_value_seeks_the_best_anew(tmp_path: Path) -> None:
    """A loss that is compared with an accuracy would be the best in no epoch."""
    first = make_learner(Recorder(), scores([0.1]), Checkpoint(), folder=tmp_path, epochs=1)
    first.fit()
    checkpoint = Checkpoint(monitor="val_loss")
    second = make_learner(Recorder(), scores([0.8, 0.7], "val_loss"), checkpoint, folder=tmp_path, epochs=3)
    second.fit(second.load_state_dict(load(tmp_path / LAST)))
    assert (checkpoint.best, checkpoint.best_epoch) == (0.7, 2)
    assert load(tmp_path / BEST)["row"]["epoch"] == 2
