"""Read the targets of coming batches, such as masks in files."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import Split
from augment.data.targets.spatial import SpatialKind
from augment.pipeline.failures import UnreadableError
from augment.support.errors import UserError


class TargetReader:
    """Reads the targets of coming batches in threads, such as masks in files, while the batches before are used.

    Args:
        split: whose targets these are.
        threads: number of threads.
    """

    def __init__(self, split: Split, threads: int) -> None:
        assert isinstance(split.kind, SpatialKind)
        self._split, self._kind = split, split.kind
        self._coming: dict[int, Future[Any]] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="targets") if self.reads else None

    @property
    def reads(self) -> bool:
        """Whether files are read, so that it helps to announce them."""
        return self._kind.loads(self._split.targets)

    def announce(self, indices: NDArray[np.integer[Any]]) -> None:
        """Begin to read the targets of a coming batch."""
        if self._pool is not None:
            for index in dict.fromkeys(indices.tolist()):
                if index not in self._coming:
                    self._coming[index] = self._pool.submit(self._load, index)

    def take(self, indices: Sequence[int]) -> list[Any]:
        """Return what `SpatialKind.load` does for the targets of a batch.

        Raises:
            UnreadableError: a target cannot be read.
        """
        found = {}
        for index in dict.fromkeys(indices):
            coming = self._coming.pop(index, None)
            found[index] = self._load(index) if coming is None else coming.result()
        return [found[index] for index in indices]

    def forget(self) -> None:
        """Forget what was announced for a pass that is over."""
        for future in self._coming.values():
            future.cancel()
        self._coming.clear()

    def _load(self, index: int) -> Any:
        try:
            return self._kind.load(self._split.targets[index])
        except (OSError, UserError) as error:
            raise UnreadableError(self._split.files[index], error) from error
