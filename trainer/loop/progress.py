"""The progress of a fit: its position, and its numbers of epochs, training batches and steps."""

import sys
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from augment.support.errors import UserError
from trainer.loop.settings import LoopSettings


class Position(NamedTuple):
    """Where a resumed fit continues: the epoch, and the number of its training batches that were fetched."""

    epoch: int = 0
    batch: int = 0


class Group(NamedTuple):
    """The training batches of one optimizer step: the index of the first one in the epoch, and their number."""

    first: int
    batches: int


class FitProgress:
    """Counts the epochs, training batches and steps of a fit. All ranks have the same counts.

    Attributes:
        position: advances with each training batch, and at the end of an epoch to the next one.
        epoch: the current epoch, from 0. It stays the same until the next epoch starts.
    """

    def __init__(self, settings: LoopSettings, train_loader: Any) -> None:
        self._settings, self.train_loader = settings, train_loader
        self.position = Position()
        self.epoch = 0

    def advance(self, position: Position) -> None:
        """Move to a position."""
        self.position = position
        if not position.batch:
            self.__dict__.pop("_batches_before", None)  # a pass over an iterable may have shown its length

    @property
    def epochs(self) -> int:
        """Number of epochs in the fit."""
        return self._settings.epochs

    @property
    def is_complete(self) -> bool:
        """Whether no epoch is left."""
        return self.position.epoch >= self.epochs

    def batches_in(self, epoch: int) -> int:
        """Return the number of training batches in an epoch, subject to the limit."""
        return self._settings.limited(self.train_loader.batches_in(epoch))

    def validates(self, epoch: int) -> bool:
        """Return whether an epoch ends with a validation."""
        return (epoch + 1) % self._settings.validate_every == 0 or epoch + 1 == self.epochs

    @property
    def batches_done(self) -> int:
        """Number of training batches since the start of the fit, including the current one."""
        return self._batches_before[self.position.epoch] + self.position.batch

    @property
    def total_batches(self) -> int:
        """Number of training batches in the fit.

        Raises:
            UserError: the loader has no length.
        """
        if (total := self._batches_before[self.epochs]) >= sys.maxsize:
            raise UserError("train_loader: its length is unknown. Set limit_batches, the batches in an epoch.")
        return total

    def __str__(self) -> str:
        return f"batch {self.batches_done} (epoch {self.epoch + 1})"

    @cached_property
    def _batches_before(self) -> tuple[int, ...]:
        """Number of training batches before each epoch, and finally of the whole fit."""
        return tuple(accumulate(map(self.batches_in, range(self.epochs)), initial=0))

    @property
    def group(self) -> Group:
        """The batches whose step the current training batch belongs to. An epoch's last step may have fewer."""
        size = self._settings.accumulate
        first = (self.position.batch - 1) // size * size
        return Group(first, min(size, self.batches_in(self.position.epoch) - first))

    @property
    def ends_step(self) -> bool:
        """Whether the current training batch is the last one of its step."""
        return self.position.batch == sum(self.group)

    @property
    def share(self) -> float:
        """The current training batch's share of the images in its step, over all ranks."""
        if self._settings.accumulate == 1:
            return 1.0
        epoch, batch = self.position
        images: int = self.train_loader.images_in(epoch, batch - 1, 1)
        return images / self.train_loader.images_in(epoch, *self.group)
