"""The remaining time of a fit, with a clock that stands still unless a batch is made."""

import pytest
from fakes import make_learner, on, raises

from trainer.callbacks import pace
from trainer.callbacks.progress import Pace
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import CancelFit, Phase, RunDescription
from trainer.loop.learner import Learner
from trainer.loop.stages import FitStage


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds on the clock."""
    now = [0.0]
    monkeypatch.setattr(pace, "monotonic", lambda: now[0])
    return now


def learner_of(clock: list[float], left: list[float | None], *others: object, **options: object) -> Learner:
    """Make a learner of three batches of 3 s in each epoch, or of one a pixel in stages, and two of validation of 1 s.

    What is left after each batch is added to `left`.
    """

    def pass_time(learner: Learner) -> None:
        pixels = [stage.size**2 for stage in learner.run.stages if stage.start <= learner.epoch] or [1]
        clock[0] += pixels[-1] * (3 if learner.training else 1)

    note = on("after_batch", lambda learner: left.append(learner.find(Pace).left(learner)), Phase.LAST)
    return make_learner(
        *(Recorder(), Pace(), on("before_batch", pass_time), note, *others),  # type: ignore[arg-type]
        epochs=3,
        **options,
    )


# Seconds after the first batch, at the end of each other one.
SPENT = [3, 6, 7, 8, 11, 14, 17, 18, 19, 22, 25, 28, 29, 30]


def test_what_is_left_follows_from_what_was_done(clock: list[float]) -> None:
    left: list[float | None] = []
    learner_of(clock, left).fit()
    assert left[0] is None
    assert left[1:] == [
        pytest.approx(33 - 3 - seconds) for seconds in [3, 6, 7, 8, 11, 14, 17, *range(18, 20), 22, 25, 28, 29, 30]
    ]


def test_a_stage_with_larger_images_takes_longer(clock: list[float]) -> None:
    stages = (
        FitStage(name="small", start=0, epochs=2, size=1, batch_size=2),
        FitStage(name="large", start=2, epochs=1, size=2, batch_size=2),
    )
    left: list[float | None] = []
    learner_of(clock, left, run=RunDescription(stages=stages)).fit()
    assert left[4] == pytest.approx(11 + 4 * 11)
    assert left[-1] == 0


def test_a_resumed_run_counts_what_it_has_left(clock: list[float]) -> None:
    left: list[float | None] = []
    first = learner_of(clock, [], on("after_batch", raises(CancelFit(), 6), Phase.LAST))
    first.fit()  # to the second batch of the second epoch
    second = learner_of(clock, left)
    second.fit(second.restore(first.state()))
    assert left[:2] == [None, pytest.approx(1 + 11)]
