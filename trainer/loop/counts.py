"""Where a fit is, and how many batches and steps it has."""

import sys
from collections.abc import Callable
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from augment.support.errors import UserError
from trainer.loop.settings import LoopSettings

if TYPE_CHECKING:
    from augment.pipeline.loader import Loader
    from trainer.loop.progressive_resizing import StagedLoader


def make_optimizer(optimizer: Callable[[nn.Module], Optimizer], model: nn.Module) -> Optimizer:
    """Make the optimizer of a model."""
    given: object = optimizer
    if isinstance(given, Optimizer):
        name = type(given).__name__
        allowed = f"a function that makes it, such as lambda model: {name}(model.parameters(), lr=0.1)"
        raise UserError(f"optimizer: {name}(...) is not allowed, as the model is moved first. Allowed: {allowed}.")
    return optimizer(model)


def check_outputs(outputs: Tensor, loss_function: object, loader: object) -> None:
    """Check that a model has an output for each class that cross entropy, where it is the loss, may ask for."""
    classes = len(getattr(loader, "classes", ()))
    if loss_function is nn.functional.cross_entropy and outputs.ndim == 2 and outputs.shape[1] < classes:
        given = f"its outputs are of shape {tuple(outputs.shape)}, the data have {classes} classes"
        raise UserError(f"model: {given}. Allowed: an output for each class, such as nn.Linear(..., {classes}).")


class Position(NamedTuple):
    """Progress of a fit: the epoch, and how many of its training batches have been fetched."""

    epoch: int = 0
    batch: int = 0


class Group(NamedTuple):
    """The batches whose gradients make one step: the number of the first one in the epoch, from 0, and their count."""

    first: int
    batches: int


class Counts:
    """The counts of a fit, the same on all ranks."""

    settings: LoopSettings
    train_loader: "Loader | StagedLoader"
    val_loader: "Loader | None"
    position: Position = Position()

    def batches(self, loader: "Loader | None") -> int:
        """Return the number of batches in a pass over the loader, subject to the limit; 0 for none."""
        return 0 if loader is None else self._limited(len(loader))

    def batches_in(self, epoch: int) -> int:
        """Return the number of training batches in an epoch, subject to the limit."""
        return self._limited(self.train_loader.batches_in(epoch))

    def validates(self, epoch: int) -> bool:
        """Return whether an epoch ends with a validation."""
        if self.val_loader is None:
            return False
        return (epoch + 1) % self.settings.validate_every == 0 or epoch + 1 == self.epochs

    @property
    def epochs(self) -> int:
        """Number of epochs of the whole fit."""
        return self.settings.epochs

    @property
    def accumulate(self) -> int:
        """Number of batches whose images make one step; an epoch's last step may have fewer."""
        return self.settings.accumulate

    @property
    def total_steps(self) -> int:
        """Number of training batches in the whole fit."""
        if (total := self._steps_before[self.epochs]) >= sys.maxsize:
            raise UserError("train_loader: its length is unknown. Set limit_batches, the batches in an epoch.")
        return total

    @property
    def step(self) -> int:
        """Number of the current training batch in the whole fit, from 0."""
        epoch, batch = self.position
        return self._steps_before[epoch] + batch - 1

    @cached_property
    def _steps_before(self) -> tuple[int, ...]:
        """Number of training batches before each epoch, and finally of the whole fit."""
        return tuple(accumulate(map(self.batches_in, range(self.epochs)), initial=0))

    def recount(self) -> None:
        """Count the batches again: a pass over an iterable may have shown its length."""
        self.__dict__.pop("_steps_before", None)

    def _limited(self, batches: int) -> int:
        limit = self.settings.limit_batches
        return batches if limit is None else min(limit, batches)

    @property
    def group(self) -> Group:
        """The batches that make one step with the current training batch."""
        first = (self.position.batch - 1) // self.accumulate * self.accumulate
        return Group(first, min(self.accumulate, self.batches_in(self.position.epoch) - first))

    @property
    def share(self) -> float:
        """The share of the current training batch, that of all ranks, in the images of its step."""
        if self.accumulate == 1:
            return 1.0
        epoch, batch = self.position
        of_batch = self.train_loader.images_in(epoch, batch - 1, 1)
        return of_batch / self.train_loader.images_in(epoch, *self.group)
