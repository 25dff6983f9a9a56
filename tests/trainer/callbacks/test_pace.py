"""The remaining time of a fit, with a clock that stands still unless a batch is made."""

from pathlib import Path

import pytest
from fakes import make_learner, on, raises

from trainer.callbacks import pace
from trainer.callbacks.pace import Pace
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import CancelFit, RunDescription
from trainer.loop.learner import Learner
from trainer.loop.stages import FitStage


class Clock:
    """Seconds that pass in batches of training and validation, and between epochs."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, train: float = 2.0, val: float = 0.5, rest: float = 3.0
    ) -> None:
        self.now, self.seconds, self.rest = 0.0, {True: train, False: val}, rest
        monkeypatch.setattr(pace, "monotonic", lambda: self.now)

    def batch(self, learner: Learner) -> None:
        unit = 1.0
        for stage in learner.run.stages:
            if stage.start <= learner.epoch < stage.start + stage.epochs:
                unit = stage.batch_size * stage.size**2 / 100
        self.now += self.seconds[learner.training] * (unit if learner.training else 1)

    def epoch(self, learner: Learner) -> None:
        self.now += self.rest


def fit(clock: Clock, left: list[float | None], *others: object, epochs: int = 3, **options: object) -> Learner:
    """Fit three batches and two of validation in each epoch; add what is left after each of them and each epoch."""
    return make_learner(
        *(Recorder(), Pace(), on("before_batch", clock.batch), on("before_epoch", clock.epoch)),
        on("after_batch", lambda learner: left.append(learner.find(Pace).left(learner))),
        on("after_epoch", lambda learner: left.append(learner.find(Pace).left(learner))),
        *others,  # type: ignore[arg-type]
        epochs=epochs,
        **options,
    )


def test_what_is_left_after_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float | None] = []
    fit(Clock(monkeypatch), left).fit()
    # Until a pass was measured, a batch of validation counts as a third of one of training.
    assert left[:3] == [None, *(pytest.approx(seconds) for seconds in (14 + 3 * 2 * 2 / 3, 12 + 3 * 2 * 2 / 3))]
    # 3 s before an epoch, and its first batch, of 2 s, are overhead; the other two give 2 s for a batch.
    epoch = 3 * 2 + 2 * 0.5 + 5
    assert left[5] == pytest.approx(2 * epoch)
    assert left[11] == pytest.approx(epoch)
    assert left[-1] == 0


def test_before_one_was_measured_a_validation_counts_by_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float | None] = []
    fit(Clock(monkeypatch), left, run=RunDescription(val_files=[Path(f"{number}.png") for number in range(9)])).fit()
    # Training batches have two images; how many the loader puts into one of validation does not matter.
    assert left[1] == pytest.approx(14 + 3 * 4.5 * 2 / 3)


def test_a_stage_with_larger_images_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = (
        FitStage(name="small", start=0, epochs=2, size=10, batch_size=1),
        FitStage(name="large", start=2, epochs=1, size=20, batch_size=1),
    )
    left: list[float | None] = []
    fit(Clock(monkeypatch, rest=0.0), left, run=RunDescription(stages=stages)).fit()
    # After the first epoch: one as it was, one of four times the pixels, each after 2 s of overhead.
    assert left[5] == pytest.approx((6 + 1 + 2) + (24 + 1 + 2))
    assert left[12:15] == [pytest.approx(seconds) for seconds in (2 * 8 + 1, 8 + 1, 1)]
    assert left[-1] == 0


def test_a_resumed_run_counts_what_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float | None] = []
    first = fit(Clock(monkeypatch), [], on("after_batch", raises(CancelFit(), 6), 100))
    first.fit()  # to the second batch of the second epoch
    second = fit(Clock(monkeypatch), left)
    second.fit(second.restore(first.state()))
    # The first batch of a pass is not measured, and is all that is left of the epoch.
    assert left[:5] == [None] * 5
    assert left[5] == pytest.approx(1 * 2 + 2 * 0.5)
    assert left[-1] == 0
