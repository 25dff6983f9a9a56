"""How long the rest of a fit will take."""

from __future__ import annotations

from itertools import accumulate
from time import monotonic
from typing import TYPE_CHECKING

from trainer.loop.callback import Callback, Phase

if TYPE_CHECKING:
    from trainer.loop.learner import Learner

# A batch of validation, in comparison to one of training.
_FORWARD = 1 / 3


class Pace(Callback):
    """Estimates the remaining time of the fit from the time that this process has taken for its work so far.

    Work is counted in batches; with progressive resizing in pixels of batches, as its stages differ in what a batch
    costs. The first batch, which waits for its pipeline, is left out.
    """

    order = Phase.MEASURE

    def __init__(self) -> None:
        self._units: list[float] = []  # work in a training batch of each epoch
        self._before: list[float] = []  # work before each epoch, and in the whole fit
        self._validated = 0  # batches of validation in this epoch
        self._begun: tuple[float, float] | None = None  # when the first batch was done, and the work until then

    def before_fit(self, learner: Learner) -> None:
        """Count the work of each epoch."""
        self._units, self._validated, self._begun = [1.0] * learner.epochs, 0, None
        for stage in learner.run.stages:
            units = [float(stage.batch_size * stage.size**2)] * stage.epochs
            self._units[stage.start : stage.start + stage.epochs] = units
        validation = _FORWARD * learner.batches(learner.val_loader)
        batches = (learner.batches_in(e) + validation * learner.validates(e) for e in range(learner.epochs))
        work = (count * unit for count, unit in zip(batches, self._units, strict=True))
        self._before = list(accumulate(work, initial=0.0))

    def after_batch(self, learner: Learner) -> None:
        """Start the clock after the first batch; count those of validation."""
        self._validated += not learner.training
        if self._begun is None and self._units:  # in a fit
            self._begun = monotonic(), self._done(learner)

    def after_epoch(self, learner: Learner) -> None:
        """Count the next epoch's batches of validation."""
        self._validated = 0

    def left(self, learner: Learner) -> float | None:
        """Return the seconds until the end of the fit; None if it is too early to say."""
        if self._begun is None:
            return None
        (begun, before), done = self._begun, self._done(learner)
        return (monotonic() - begun) / (done - before) * (self._before[-1] - done) if done > before else None

    def _done(self, learner: Learner) -> float:
        epoch, batch = learner.position
        if epoch >= learner.epochs:
            return self._before[-1]
        return self._before[epoch] + (batch + _FORWARD * self._validated) * self._units[epoch]
