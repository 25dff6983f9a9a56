"""What a learner saves: a fit that is resumed equals one that was never interrupted."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import assert_same, make_learner, noise_loader, on, raises, tiny_model
from runs import read_metrics, rows_of, timeless

from trainer.callbacks.checkpoint import Checkpoint, best_of
from trainer.callbacks.ema import EMA
from trainer.callbacks.optimizer_steps import EarlyStopping, ParamScheduler
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, CancelFit, CancelStep
from trainer.loop.checkpoint import LAST, FitState, load
from trainer.loop.learner import Learner
from trainer.loop.progress import Position
from trainer.optim.schedules import one_cycle

EPOCHS = 3


def resumable(folder: Path | None, *callbacks: Callback, seed: int = 0, **options: Any) -> Learner:
    """Three epochs of 3 + 2 batches with dropout, momentum, a schedule and checkpoints."""
    schedule = one_cycle(0.2, start=0.01, end=0.0)
    return make_learner(
        Recorder(),
        ParamScheduler({"lr": schedule}),
        Checkpoint(monitor="val_loss"),
        *callbacks,
        model=tiny_model(dropout=0.5, seed=seed),
        folder=folder,
        **({"epochs": EPOCHS} | options),
    )


def outcome(learner: Learner) -> dict[str, Any]:
    """Return all that two equal fits have in common."""
    recorder = learner.find(Recorder)
    assert learner.folder is not None
    return {
        "model": learner.model.state_dict(),
        "optimizer": learner.optimizer.state_dict(),
        "loader": learner.train_loader.state_dict(),
        "random": torch.get_rng_state(),
        "rows": [timeless(row) for row in recorder.rows],
        "file": rows_of(learner.folder),
        "samples": dict(vars(recorder.samples)),
        "best": timeless(best_of(learner)[1]),
    }


def interrupt(folder: Path, event: str, at: int, start: Path | None = None) -> Learner:
    """Fit until an event is reached for the time number `at`, in a folder of its own."""
    folder.mkdir()
    learner = resumable(folder, on(event, raises(CancelFit, at), 100))
    learner.fit(Position() if start is None else learner.restore(load(start / LAST, FitState)))
    return learner


def resume(run: Path, folder: Path, **options: Any) -> Learner:
    """Go on with what a folder holds, by a learner that knows nothing of the one before."""
    folder.mkdir()
    learner = resumable(folder, seed=99, **options)
    torch.manual_seed(1234)
    learner.fit(learner.restore(load(run / LAST, FitState)))
    return learner


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    learner = resumable(tmp_path_factory.mktemp("uninterrupted"))
    learner.fit()
    assert [row["epoch"] for row in learner.find(Recorder).rows] == [0, 1, 2]
    return outcome(learner)


@pytest.mark.parametrize("batch", range(EPOCHS * 5))
def test_a_fit_interrupted_in_any_batch_equals_one_that_was_not(
    batch: int, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    learner = interrupt(tmp_path / "first", "after_batch", batch)
    assert learner.progress.position == (batch // 5, min(batch % 5 + 1, 3))
    assert_same(outcome(resume(tmp_path / "first", tmp_path / "second")), uninterrupted)


@pytest.mark.parametrize(
    "event", ["before_epoch", "before_train", "after_train", "before_validate", "after_validate", "after_epoch"]
)
def test_a_fit_stopped_in_any_event_equals_one_that_was_not(
    event: str, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    interrupt(tmp_path / "first", event, 1)
    assert_same(outcome(resume(tmp_path / "first", tmp_path / "second")), uninterrupted)


class Late(Callback):
    """Counts batches, after all other callbacks."""

    order = 99
    saves = ("count",)
    count = 0

    def after_batch(self, learner: Learner) -> None:
        self.count += learner.training


class KilledAt(Callback):
    """Fails before a training batch, so that nothing more is saved."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def before_batch(self, learner: Learner) -> None:
        if learner.training and learner.progress.batches_done - 1 == self.batch:
            raise RuntimeError("killed")


def within(folder: Path, *callbacks: Callback, seed: int = 0) -> tuple[Learner, Late]:
    """Return a learner that saves after every batch, with all that has a state between two batches, and one of it."""
    folder.mkdir()
    train, late = noise_loader(9), Late()  # 5 batches, of which the last makes a step on its own
    learner = make_learner(
        *(Recorder(), ParamScheduler({"lr": one_cycle(0.2, start=0.01, end=0.0)})),
        *(Checkpoint(every_batches=1, monitor="val_loss"), EMA(decay=0.5), EarlyStopping(patience=2), late, *callbacks),
        model=tiny_model(dropout=0.5, seed=seed),
        train=train,
        folder=folder,
        accumulate=2,
    )
    return learner, late


def test_a_fit_killed_after_any_save_within_an_epoch_equals_one_that_was_not(tmp_path: Path) -> None:
    whole, counted = within(tmp_path / "whole")
    whole.fit()
    expected = outcome(whole) | {"late": counted.count}
    assert counted.count == 10
    for batch in (1, 3, 4, 5, 8):
        first, _ = within(tmp_path / f"{batch}a", KilledAt(batch))
        with pytest.raises(RuntimeError, match="killed"):
            first.fit()
        second, late = within(tmp_path / f"{batch}b", seed=99)
        start = second.restore(load(tmp_path / f"{batch}a" / LAST, FitState))
        second.fit(start)
        assert_same(outcome(second) | {"late": late.count}, expected)


def test_a_limited_fit_interrupted_at_its_limit_continues_with_the_next_epoch(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    first = resumable(tmp_path / "first", on("after_batch", raises(CancelFit, 1)), limit_batches=2)
    first.fit()
    assert first.progress.position == (0, 2)
    learner = resume(tmp_path / "first", tmp_path / "second", limit_batches=2)
    assert learner.train_loader.fetched == [(1, 0), (1, 1), (2, 0), (2, 1)]  # type: ignore[attr-defined]
    assert [row["epoch"] for row in read_metrics(tmp_path / "second")] == [0, 1, 2]


class EveryOther(Callback):
    """Leaves out every other step, whose gradients go into the next one."""

    def before_step(self, learner: Learner) -> None:
        if learner.progress.batches_done % 2:
            raise CancelStep


@pytest.mark.parametrize(
    ("event", "at"), [("after_batch", 0), ("after_batch", 1), ("after_batch", 7), ("after_epoch", 0)]
)
def test_the_gradients_of_a_step_that_was_left_out_are_saved(event: str, at: int) -> None:
    whole = make_learner(EveryOther())
    whole.fit()
    first = make_learner(EveryOther(), on(event, raises(CancelFit, at)))
    first.fit()
    assert bool(first.state().gradients) == (first.progress.batches_done % 2 == 1)
    second = make_learner(EveryOther())
    second.fit(second.restore(deepcopy(first.state())))
    assert_same(second.model.state_dict(), whole.model.state_dict())


def test_a_callback_that_the_saved_run_did_not_have_starts_fresh() -> None:
    saved = make_learner()
    saved.fit()
    late = Late()
    make_learner(late).restore(saved.state())
    assert late.count == 0
