"""Pictures from larger files as DALI's external_source asks for them, in the order of DALI's own reader of files."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from augment.dataset import Picture
from augment.errors import UserError
from augment.lost import lost
from augment.sampler import derive_seed
from augment.stored import are_raw, is_raw, read_encoded

# Batches between the announcement of a picture and its use.
_AHEAD = 2

# Some of a batch's pictures, by their places in the split.
_Begun = Future[dict[int, NDArray[np.uint8] | bytes]]
_Begin = Callable[[Mapping[int, Picture]], list[_Begun]]


class PictureFeed:
    """The pictures of every batch, for DALI's external_source: a pure function of the batch's number.

    The order is that of DALI's own reader of files: a new permutation in each epoch, cut into as many shards as there
    are ranks, the last batch of an epoch padded with the shard's last picture, as are those of a smaller shard.

    Args:
        pictures: of the split.
        batch_size: pictures in a batch.
        batches: batches in an epoch, the same for all ranks.
        epoch: epoch of batch 0.
        shuffle: names and numbers that the permutations are derived from; None: in order.
        rank: which shard to read.
        world_size: how many shards there are.
    """

    def __init__(
        self,
        pictures: Sequence[Picture],
        *,
        batch_size: int,
        batches: int,
        epoch: int = 0,
        shuffle: tuple[int | str, ...] | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._pictures = pictures
        self._batch_size = batch_size
        self._batches = batches
        self._epoch = epoch
        self._shuffle = shuffle
        self._shard = slice(rank * len(pictures) // world_size, (rank + 1) * len(pictures) // world_size)
        self._raw = are_raw(pictures)
        # As DALI is to take a picture: bytes or pixels.
        self.ndim, self.layout = (3, "HWC") if self._raw else (1, "")
        kinds = set(map(type, pictures))
        self._expects = all(hasattr(kind, "expect") for kind in kinds)
        self._begin: _Begin | None = None
        if len(kinds) == 1:
            self._begin = getattr(kinds.pop(), "begin", None)
        self._begun: dict[int, list[_Begun]] = {}
        # Of a pass that was cut short, or of one that nobody makes: who reads next would wait for these.
        finalize(self, _cancel, self._begun)
        self._orders: dict[int, NDArray[np.int32]] = {}

    def __call__(self, info: Any) -> tuple[list[NDArray[np.uint8]], NDArray[np.int32]]:
        """Return the pictures of batch `info.iteration`, see `load`, and their indices, (batch_size, 1)."""
        indices = self.indices(info.iteration)
        if self._expects:
            # Else this thread, which is that of training, waits for the disk, picture by picture.
            for index in self.indices(info.iteration + _AHEAD).tolist():
                with suppress(OSError, ValueError):  # said when it is used
                    self._pictures[index].expect()
        load = self._wait(info.iteration, self._begin).__getitem__ if self._begin else self.load
        return [load(index) for index in indices.tolist()], indices[:, None]

    def indices(self, iteration: int) -> NDArray[np.int32]:
        """Return which pictures are in the batch of that number, (batch_size,)."""
        passed, batch = divmod(iteration, self._batches)
        order = self._order_of(self._epoch + passed)
        start = batch * self._batch_size
        return order[np.minimum(np.arange(start, start + self._batch_size), len(order) - 1)]

    def load(self, index: int) -> NDArray[np.uint8]:
        """Return a picture: its bytes, (length,), or, if all are stored decoded, its pixels, (height, width, 3).

        Raises:
            UserError: it cannot be read.
        """
        picture = self._pictures[index]
        try:
            if self._raw:
                assert is_raw(picture)
                return np.ascontiguousarray(picture.read_pixels())
            return np.frombuffer(read_encoded(picture), np.uint8)
        except OSError as error:
            raise lost(picture, error) from error

    def _wait(self, iteration: int, begin: _Begin) -> dict[int, NDArray[np.uint8]]:
        """Return the pictures of a batch that are read in the background, by their places; begin the next batches.

        Raises:
            UserError: a process that reads them was killed.
        """
        try:
            for number in range(iteration, iteration + _AHEAD + 1):
                if number not in self._begun:
                    places = dict.fromkeys(self.indices(number).tolist())
                    self._begun[number] = begin({place: self._pictures[place] for place in places})
            found = [future.result() for future in self._begun.pop(iteration)]
        except BrokenExecutor:
            raise UserError(
                "data.workers: a process that reads pictures was killed, most likely for want of memory. "
                "Allowed: fewer."
            ) from None
        return {n: np.frombuffer(f, np.uint8) if isinstance(f, bytes) else f for some in found for n, f in some.items()}

    def _order_of(self, epoch: int) -> NDArray[np.int32]:
        """Return the indices of this rank's pictures in an epoch, in order."""
        if epoch not in self._orders:
            order = np.arange(len(self._pictures), dtype=np.int32)
            if self._shuffle is not None:
                # All ranks must shuffle alike, so the rank has no part in this seed.
                key = derive_seed(*self._shuffle, epoch)
                np.random.Generator(np.random.Philox(key=key)).shuffle(order)
            # That of the epoch before is still in use: batches are announced across the end of an epoch.
            before = {number: kept for number, kept in self._orders.items() if number == epoch - 1}
            self._orders = {**before, epoch: order[self._shard]}
        return self._orders[epoch]


def _cancel(begun: Mapping[int, Sequence[_Begun]]) -> None:
    for futures in begun.values():
        for future in futures:
            future.cancel()
