"""The loader interface that a fit needs, and checks of what else it is given."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from augment.pipeline.batch import Batch
from augment.recipe.plan import Plan
from augment.support.errors import UserError


class BatchLoader(Protocol):
    """A loader of exact length that yields one epoch per pass; `augment.pipeline.loader.Loader` is one.

    The methods for its state are only called on the train loader of a fit that is saved or resumed.
    """

    @property
    def plan(self) -> Plan | None:
        """What is done to the images; None: unknown."""
        ...

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Batch]: ...

    def batches_in(self, epoch: int) -> int:
        """Return the number of batches in an epoch."""
        ...

    def images_in(self, epoch: int, first: int, batches: int) -> int:
        """Return the number of images in consecutive batches of an epoch, those of all ranks.

        Args:
            epoch: the epoch.
            first: number of the first batch in the epoch, from 0.
            batches: number of batches.
        """
        ...

    def prepare(self) -> None:
        """Get ready for the next pass in the background, if that takes time."""

    def end_pass(self) -> None:
        """Make the next pass start with the next epoch's first batch."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to the position that `state_dict` returned."""


def checked_loaders(
    train_loader: BatchLoader, val_loader: BatchLoader | None
) -> tuple[BatchLoader, BatchLoader | None]:
    """Return the loaders of a fit, having checked that none is a `DataLoader` of PyTorch."""
    for name, loader in (("train_loader", train_loader), ("val_loader", val_loader)):
        if not hasattr(loader, "batches_in") and (loader is not None or name == "train_loader"):
            allowed = "a loader of augment.make_loader; of a Dataset, make_loader(recipe, data='own', train=DATASET)"
            raise UserError(f"{name}: {type(loader).__name__} is not allowed. Allowed: {allowed}.")
    return train_loader, val_loader


def make_optimizer(optimizer: Callable[[nn.Module], Optimizer], model: nn.Module) -> Optimizer:
    """Make the optimizer of a model."""
    given: object = optimizer
    if isinstance(given, Optimizer):
        name = type(given).__name__
        allowed = f"a function that makes it, such as lambda model: {name}(model.parameters(), lr=0.1)"
        raise UserError(f"optimizer: {name}(...) is not allowed, as the model is moved first. Allowed: {allowed}.")
    return optimizer(model)


def check_outputs(outputs: Tensor, loss_function: object, loader: BatchLoader) -> None:
    """Check that a model has an output for each class that cross entropy, where it is the loss, may ask for."""
    classes = len(getattr(loader, "classes", ()))
    if loss_function is nn.functional.cross_entropy and outputs.ndim == 2 and outputs.shape[1] < classes:
        given = f"its outputs are of shape {tuple(outputs.shape)}, the data have {classes} classes"
        raise UserError(f"model: {given}. Allowed: an output for each class, such as nn.Linear(..., {classes}).")
