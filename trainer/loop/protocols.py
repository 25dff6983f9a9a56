"""The loader interface that a fit needs."""

from collections.abc import Iterator
from typing import Any, Protocol

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


def checked_loaders(train_loader: BatchLoader, val_loader: BatchLoader) -> tuple[BatchLoader, BatchLoader]:
    """Return the loaders of a fit, having checked that none is a `DataLoader` of PyTorch.

    Raises:
        UserError: one lacks the methods of a `BatchLoader`.
    """
    for name, loader in (("train_loader", train_loader), ("val_loader", val_loader)):
        if not hasattr(loader, "batches_in"):
            allowed = "a loader of augment.make_loader; of a Dataset, make_loader(recipe, data='own', train=DATASET)"
            raise UserError(f"{name}: {type(loader).__name__} is not allowed. Allowed: {allowed}.")
    return train_loader, val_loader
