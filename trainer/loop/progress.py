"""The progress of a fit: its position, and its numbers of epochs, training batches and steps."""

import sys
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from augment.support.errors import UserError
from trainer.loop.settings import MAX_EPOCHS, LoopSettings


class Position(NamedTuple):
    """Where a resumed fit continues: the epoch, and the number of its training batches that were fetched."""

    epoch: int = 0
    batch: int = 0


class StepBatches(NamedTuple):
    """The training batches of one optimizer step: the index of the first one in the epoch, and their number."""

    first: int
    batches: int


class FitProgress:
    """Counts the epochs, training batches and optimizer steps of a fit. All ranks have the same counts.

    Attributes:
        position: advances with each training batch. At the end of an epoch, it moves to the next epoch.
        epoch: the current epoch, from 0. It stays the same until the next epoch starts.
        steps: length of the fit in optimizer steps. None: `LoopSettings.epochs` sets the length.
    """

    def __init__(self, settings: LoopSettings, train_loader: Any) -> None:
        self._settings, self.train_loader = settings, train_loader
        self.position = Position()
        self.epoch = 0
        self.steps = settings.steps

    def start(self, position: Position, steps: int | None = None) -> None:
        """Move to the position where a fit starts or resumes. Set its steps. None: the steps in the settings."""
        self.steps = self._settings.steps if steps is None else steps
        self.move_to(position)

    def move_to(self, position: Position) -> None:
        """Move to a position. Count batches again, because the length of an iterable may be known now."""
        self.position = position
        self.__dict__.pop("_batches_before", None)

    @property
    def epochs(self) -> int:
        """Number of epochs in the fit. The last one is partial if the steps end within it."""
        if self.steps is None:
            return self._settings.epochs
        return -(-self.steps // self._steps_in(0))

    @property
    def is_complete(self) -> bool:
        """Whether no epoch is left."""
        return self.position.epoch >= self.epochs

    def batches_in(self, epoch: int) -> int:
        """Return the number of training batches in an epoch, up to `limit_batches` and the last step of the fit."""
        batches = self._full_epoch(epoch)
        if self.steps is None:
            return batches
        steps_left = max(0, self.steps - epoch * self._steps_in(epoch))
        return min(batches, steps_left * self._settings.accumulate)

    def batches_before(self, position: Position) -> int:
        """Return the number of training batches between the start of the fit and a position."""
        return self._batches_before[position.epoch] + position.batch

    def validates(self, epoch: int) -> bool:
        """Return whether an epoch ends with a validation."""
        return (epoch + 1) % self._settings.validate_every == 0 or epoch + 1 == self.epochs

    @property
    def batches_done(self) -> int:
        """Number of training batches since the start of the fit, including the current one."""
        return self.batches_before(self.position)

    @property
    def total_batches(self) -> int:
        """Number of training batches in the fit.

        Raises:
            UserError: the loader has no length, or the steps need too many epochs.
        """
        if (total := self._batches_before[-1]) >= sys.maxsize:
            raise UserError("train_loader: its length is unknown. Set steps or limit_batches.")
        return total

    @property
    def step_batches(self) -> StepBatches:
        """The batches of the step that the current training batch belongs to. An epoch's last step may be smaller."""
        size = self._settings.accumulate
        first = (self.position.batch - 1) // size * size
        return StepBatches(first, min(size, self.batches_in(self.position.epoch) - first))

    @property
    def ends_step(self) -> bool:
        """Whether the current training batch is the last one of its step."""
        return self.position.batch == sum(self.step_batches)

    @property
    def share(self) -> float:
        """The current training batch's share of the images in its step, over all ranks."""
        if self._settings.accumulate == 1:
            return 1.0
        epoch, batch = self.position
        images = self.train_loader.images_in(epoch, batch - 1, 1)
        images_in_step = self.train_loader.images_in(epoch, *self.step_batches)
        return float(images / images_in_step)

    def __str__(self) -> str:
        return f"batch {self.batches_done} (epoch {self.epoch + 1})"

    @cached_property
    def _batches_before(self) -> tuple[int, ...]:
        """Number of training batches before each epoch. The last entry is the number in the whole fit."""
        if self.epochs > MAX_EPOCHS:
            raise UserError(
                f"fit.steps={self.steps} needs {self.epochs:,} epochs. The limit is {MAX_EPOCHS:,}. Use fewer steps."
            )
        return tuple(accumulate(map(self.batches_in, range(self.epochs)), initial=0))

    def _full_epoch(self, epoch: int) -> int:
        """Return the number of batches in a whole epoch."""
        return self._settings.limited(self.train_loader.batches_in(epoch))

    def _steps_in(self, epoch: int) -> int:
        """Return the number of steps in a whole epoch. If `steps` is set, all epochs have the same number."""
        return -(-self._full_epoch(epoch) // self._settings.accumulate)
