"""How long the rest of a fit will take."""

from __future__ import annotations

from itertools import accumulate
from time import monotonic
from typing import TYPE_CHECKING, ClassVar

from trainer.loop.callback import Callback

if TYPE_CHECKING:
    from trainer.loop.learner import Learner

# A pass without gradients, in comparison to one with them over as many images, until one was measured.
_FORWARD = 1 / 3


class Pace(Callback):
    """Estimates the remaining time of the whole fit from the passes that this process has made.

    Work is counted in batches; with progressive resizing in pixels of batches, as its stages differ in what a batch
    costs. The first batch of a pass, which waits for its pipeline, counts as overhead of its epoch.
    """

    order: ClassVar[int] = -9

    def __init__(self) -> None:
        self._units: list[float] = []  # work in a training batch of each epoch
        self._after: list[float] = []  # work in all epochs after an epoch
        self._forget()

    def _forget(self) -> None:
        self._stage = (0.0, 0.0, 0.0)  # unit, seconds and work of the epochs of one kind
        self._rate: float | None = None  # seconds for a unit of work
        self._begun = self._epoch_begun = self._measured = 0.0
        self._from: int | None = None  # batch of the pass at which measuring began
        self._images = 0  # in a training batch, of all ranks
        self._validation: float | None = None  # seconds of the last pass
        self._overhead = 0.0  # seconds of the last epoch outside both passes
        self._validated = False

    def before_fit(self, learner: Learner) -> None:
        """Count the work of each epoch."""
        self._forget()
        self._units = [1.0] * learner.epochs
        for stage in learner.run.stages:
            units = [float(stage.batch_size * stage.size**2)] * stage.epochs
            self._units[stage.start : stage.start + stage.epochs] = units
        work = [learner.batches_in(epoch) * unit for epoch, unit in enumerate(self._units)]
        self._after = list(accumulate(reversed(work), initial=0.0))[-2::-1]

    def before_epoch(self, learner: Learner) -> None:
        """Start the epoch's clock."""
        self._epoch_begun, self._measured, self._validated, self._from = monotonic(), 0.0, False, None

    def after_batch(self, learner: Learner) -> None:
        """Start the clock of the training pass after its first batch; keep the rate up to date."""
        if not learner.training:
            return
        now = monotonic()
        if self._from is None:
            self._begun, self._from = now, learner.position.batch
            self._images = len(learner.batch.images) * learner.ranks.size
            if self._stage[0] != self._units[learner.epoch]:
                self._stage = (self._units[learner.epoch], 0.0, 0.0)
            return
        unit, seconds, work = self._stage
        seconds += now - self._begun
        work += (learner.position.batch - self._from) * unit
        self._rate = seconds / work

    def after_train(self, learner: Learner) -> None:
        """Add up the pass."""
        if self._from is not None:
            unit, seconds, work = self._stage
            took = monotonic() - self._begun
            self._stage = (unit, seconds + took, work + (learner.position.batch - self._from) * unit)
            self._measured += took

    def before_validate(self, learner: Learner) -> None:
        """Start the clock of the pass."""
        self._begun = monotonic()

    def after_validate(self, learner: Learner) -> None:
        """Keep how long the pass took."""
        self._validation, self._validated = monotonic() - self._begun, True
        self._measured += self._validation

    def after_epoch(self, learner: Learner) -> None:
        """Keep how long everything else took."""
        self._overhead = max(0.0, monotonic() - self._epoch_begun - self._measured)

    def left(self, learner: Learner) -> float | None:
        """Return the seconds until the end of the fit; None if it is too early to say."""
        if self._rate is None:
            return None
        epoch, batch = learner.position  # of an epoch that is over: the next one, and 0
        if epoch >= learner.epochs:
            return 0.0
        over = epoch > learner.epoch  # the epoch that the learner has worked on last
        units = self._units[epoch]
        work = self._after[epoch] + (learner.batches_in(epoch) - batch) * units
        every = learner.settings.validate_every
        passes = sum((e + 1) % every == 0 or e + 1 == learner.epochs for e in range(epoch, learner.epochs))
        passes -= self._validated and not over
        validation = self._validation
        if validation is None:
            images = len(learner.run.val_files)  # whose batches may be larger than those of training
            batches = images / self._images if images else learner.batches(learner.val_loader)
            validation = batches * units * self._rate * _FORWARD
        return work * self._rate + passes * validation + (learner.epochs - epoch - 1 + over) * self._overhead
