"""Which images a pipeline reads: those of a shard, in batches, of each epoch.

Those that are stored in larger files are fed to DALI's external_source, in the order of DALI's file reader.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from augment.data.image_refs import ImageError, ImageRef, as_paths, kinds_of
from augment.data.images import are_decoded, are_paths, is_decoded, read_encoded
from augment.pipeline.graph.shard_prefetch import Stream
from augment.pipeline.unreadable_images import UnreadableImageError
from augment.support.errors import UserError
from augment.support.seeds import derive_seed


@dataclass(frozen=True)
class RankShard:
    """Which part of an epoch this process reads."""

    rank: int = 0
    world_size: int = 1

    def part(self, total: int) -> slice:
        """Return the positions of this process's samples among `total` of an epoch."""
        return slice(self.rank * total // self.world_size, (self.rank + 1) * total // self.world_size)

    def samples(self, total: int) -> int:
        """Return how many of `total` samples this process reads."""
        return len(range(total)[self.part(total)])

    def counts(self, total: int, start: int, most: int) -> list[int]:
        """Return how many of an epoch's `total` samples each process has from `start` in its shard on, up to `most`."""
        shards = [RankShard(rank, self.world_size).samples(total) for rank in range(self.world_size)]
        return [min(max(count - start, 0), most) for count in shards]


@dataclass(frozen=True)
class Order:
    """In which batches and order a loader reads samples."""

    batch_size: int  # samples of this rank in a batch; the last one of an epoch may be smaller
    seed: int  # the run's
    shard: RankShard = RankShard()
    drop_last: bool = False  # leave out the smaller last batch, unless it is the only one


@dataclass(frozen=True)
class Reading:
    """Which images a pipeline reads, and in which order."""

    files: Sequence[ImageRef]  # a sample's index is its position here
    batch_size: int  # samples in a batch; the last one of an epoch is padded
    seed: int  # the run's seed; shuffle, crop and steps each derive their own from it
    epoch: int = 0  # the first epoch that is read
    shard: RankShard = RankShard()  # which part of each epoch
    stand_ins: Mapping[int, int] = field(default_factory=dict)  # which sample is read instead
    announce: Callable[[NDArray[np.int32]], None] | None = None  # gets the indices of coming batches
    stream: Stream | None = None  # of larger files that are shuffled by windows

    @property
    def batches(self) -> int:
        """Batches of an epoch, the same number for each shard: the largest one's, the others are padded."""
        largest = -(-len(self.files) // self.shard.world_size)
        return -(-largest // self.batch_size)

    def dali_seed(self, *parts: int | str) -> int:
        """Return a seed for DALI."""
        return derive_seed(self.seed, *parts) % 2**31

    @property
    def stood_in(self) -> NDArray[np.int32]:
        """The index of the image that is read in place of each image."""
        read = np.arange(len(self.files), dtype=np.int32)
        read[list(self.stand_ins)] = list(self.stand_ins.values())
        return read


# Number of batches between the announcement of an image and its use.
_AHEAD = 2

# Some of a batch's images, by their indices in the split.
_Begun = Future[dict[int, NDArray[np.uint8] | bytes]]


class ImageFeed:
    """The images of every batch, for DALI's external_source: a pure function of the batch's number.

    DALI takes them without a copy (`no_copy`), which it would make in the thread that trains: at 224 px that took 32 to
    48 us an image on two cores of an AMD EPYC, and takes 7 without. It holds a reference to each array until the last
    operator has read it, so nothing has to be kept here; but the arrays must not change.

    The order is that of DALI's own file reader: a new permutation in each epoch, cut into as many shards as there are
    ranks. The last batch of an epoch is padded with the shard's last image, and so is a smaller shard. Permutations are
    derived from the names and numbers of `shuffle`; None: in order.

    Attributes:
        by_path: whether it returns paths in place of images, which DALI then reads.
    """

    def __init__(self, reading: Reading, shuffle: tuple[int | str, ...] | None = None) -> None:
        self._reading, self._images, self._batches = reading, reading.files, reading.batches
        self._raw, self.by_path = are_decoded(reading.files), are_paths(reading.files)
        paths = as_paths(reading.files) if self.by_path else None
        self._names = None if paths is None else paths.names
        # The form in which DALI receives an image: bytes or pixels.
        self.ndim, self.layout = (3, "HWC") if self._raw else (1, "")
        kinds = kinds_of(reading.files)
        self._expects = all(hasattr(kind, "expect") for kind in kinds)
        kind = kinds.pop() if len(kinds) == 1 else None
        self._begin: Any = getattr(kind, "begin", None)  # see `StoredImage`
        self._read_together: Any = getattr(kind, "read_together", None)
        self._begun: dict[int, list[_Begun]] = {}
        # Cancel what an interrupted pass left: the next reader would wait for it.
        finalize(self, _cancel, self._begun)
        # Batches are announced across the end of an epoch.
        self._order_of = lru_cache(2)(partial(_order, reading, shuffle))
        if reading.stream is not None:
            self._uses_of = lru_cache(2)(partial(reading.stream.uses, self._order_of))

    def __call__(self, info: Any) -> tuple[list[NDArray[np.uint8]], NDArray[np.int32]]:
        """Return the images of batch `info.iteration`, see `load`, and their indices, (batch_size, 1)."""
        indices = self.indices(info.iteration)
        if self._reading.announce is not None:
            self._reading.announce(indices)
        if self._reading.stream is not None:
            epoch, start = self._position(info.iteration)
            self._reading.stream.move(self._uses_of, epoch, start, start + (_AHEAD + 1) * self._reading.batch_size)
        if self._expects:
            # Otherwise this thread, which trains, would wait for the disk, image by image.
            for index in self.indices(info.iteration + _AHEAD).tolist():
                with suppress(OSError, ValueError):  # reported when the image is used
                    self._images[index].expect()
        return self._load_all(info.iteration, indices.tolist()), indices[:, None]

    def indices(self, iteration: int) -> NDArray[np.int32]:
        """Return the indices of the images in a batch, (batch_size,)."""
        epoch, start = self._position(iteration)
        order = self._order_of(epoch)
        return order[np.minimum(np.arange(start, start + self._reading.batch_size), len(order) - 1)]

    def _position(self, iteration: int) -> tuple[int, int]:
        """Return the epoch of a batch, and the position of its first image in it."""
        passed, batch = divmod(iteration, self._batches)
        return self._reading.epoch + passed, batch * self._reading.batch_size

    def load(self, index: int) -> NDArray[np.uint8]:
        """Return an image: its bytes, (length,), or, if all are stored decoded, its pixels, (height, width, 3)."""
        image = self._images[index]
        try:
            if self._raw:
                assert is_decoded(image)
                pixels = np.ascontiguousarray(image.read_pixels())
                if pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3:
                    return pixels
                given = f"{pixels.shape} {pixels.dtype}"
                raise UserError(f"data: {image.name} has {given} pixels. Allowed: (height, width, 3) uint8.")
            return np.frombuffer(read_encoded(image), np.uint8)
        except (OSError, UserError) as error:
            raise UnreadableImageError(image, error) from error

    def _load_all(self, iteration: int, indices: list[int]) -> list[NDArray[np.uint8]]:
        if self._names is not None:
            return [np.frombuffer(self._names[index], np.uint8) for index in indices]
        if self._begin:
            found = self._wait(iteration)
            return [found[index] for index in indices]
        if self._read_together:
            with suppress(OSError):  # `load` says which image it is
                return list(map(np.ascontiguousarray, self._read_together([self._images[index] for index in indices])))
        return list(map(self.load, indices))

    def _wait(self, iteration: int) -> dict[int, NDArray[np.uint8]]:
        """Return the images of a batch that are read in the background, by index; start reading the next batches."""
        try:
            for number in range(iteration, iteration + _AHEAD + 1):
                if number not in self._begun:
                    indices = dict.fromkeys(self.indices(number).tolist())
                    self._begun[number] = self._begin({index: self._images[index] for index in indices})
            found = [future.result() for future in self._begun.pop(iteration)]
        except BrokenExecutor:
            raise UserError(
                "data.workers: a process that reads images was killed, most likely for want of memory. Allowed: fewer."
            ) from None
        except ImageError as error:
            raise UnreadableImageError(self._images[error.key], error) from error
        return {n: np.frombuffer(f, np.uint8) if isinstance(f, bytes) else f for some in found for n, f in some.items()}


def _order(reading: Reading, shuffle: tuple[int | str, ...] | None, epoch: int) -> NDArray[np.int32]:
    """Return the indices of this rank's images in an epoch, in order."""
    order = np.arange(len(reading.files), dtype=np.int32)
    if shuffle is not None:
        # All ranks must shuffle alike, so the rank is not part of this seed.
        random = np.random.Generator(np.random.Philox(key=derive_seed(*shuffle, epoch)))
        random.shuffle(order)
        if (stream := reading.stream) is not None:
            windows = random.permutation(stream.numbers.max() + 1) // stream.window
            order = order[np.argsort(windows[stream.numbers[order]], kind="stable")]
    return reading.stood_in[order[reading.shard.part(len(order))]]


def _cancel(begun: Mapping[int, Sequence[_Begun]]) -> None:
    for futures in begun.values():
        for future in futures:
            future.cancel()
