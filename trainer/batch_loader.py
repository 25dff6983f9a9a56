"""What a fit needs of a loader."""

from collections.abc import Iterator
from typing import Any, Protocol

from augment.loader import Batch


class BatchLoader(Protocol):
    """What the loop needs of a loader: its exact length, and an epoch a pass."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Batch]: ...


class ResumableLoader(BatchLoader, Protocol):
    """What saving and resuming a fit need besides; see `augment.loader.Loader`."""

    def batches_in(self, epoch: int) -> int:
        """Return the batches of an epoch."""
        ...

    def end_pass(self) -> None:
        """Make the next pass start with the next epoch's first batch."""

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
