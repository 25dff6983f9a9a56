"""The order in which a pipeline reads images: shards, batches and epochs.

Images that DALI's file reader cannot read are fed to external_source. They are shuffled and sharded in the same way.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from augment.data.images import (
    ImageError,
    ImageRef,
    are_decoded,
    are_paths,
    as_paths,
    is_decoded,
    kinds_of,
    read_encoded,
)
from augment.params.pixel_format import RGB, PixelFormat
from augment.pipeline.graph.shard_prefetch import Stream
from augment.pipeline.unreadable_images import unreadable_error
from augment.support.errors import UserError
from augment.support.seeds import derive_seed


@dataclass(frozen=True)
class RankShard:
    """The shard of an epoch's samples that one process reads."""

    rank: int = 0
    world_size: int = 1

    def part(self, total: int) -> slice:
        """Return the positions of this process's samples among the `total` samples of an epoch."""
        return slice(self.rank * total // self.world_size, (self.rank + 1) * total // self.world_size)

    def samples(self, total: int) -> int:
        return len(range(total)[self.part(total)])

    def counts(self, total: int, start: int, most: int) -> list[int]:
        """Return how many samples each process has from position `start` of its shard, at most `most` each."""
        shards = [RankShard(rank, self.world_size).samples(total) for rank in range(self.world_size)]
        return [min(max(count - start, 0), most) for count in shards]


@dataclass(frozen=True)
class Order:
    """The batch size and the order of a loader's samples."""

    batch_size: int  # samples of this rank per batch. The last batch of an epoch may be smaller
    seed: int  # the seed of the run
    shard: RankShard = RankShard()
    drop_last: bool = False  # leave out a smaller last batch, unless it is the only batch


@dataclass(frozen=True)
class Reading:
    """The images that a pipeline reads, and their order."""

    files: Sequence[ImageRef]  # a sample's index is its position here
    batch_size: int  # samples per batch. The last batch of an epoch is padded
    seed: int  # the seed of the run, from which shuffle, crop and steps derive their own seeds
    epoch: int = 0  # the first epoch
    shard: RankShard = RankShard()
    announce: Callable[[NDArray[np.int32]], None] | None = None  # called with the indices of upcoming batches
    stream: Stream | None = None  # prefetches files of many images, shuffled in windows
    pixels: PixelFormat = RGB  # the pixel format of images that are stored decoded

    @property
    def batches(self) -> int:
        """Batches per epoch, the same number for all ranks. Smaller shards are padded to the size of the largest."""
        largest = -(-len(self.files) // self.shard.world_size)
        return -(-largest // self.batch_size)

    def dali_seed(self, *parts: int | str) -> int:
        return derive_seed(self.seed, *parts) % 2**31


# How many batches before its use an image is prefetched.
_AHEAD = 2

# A read in the background, which returns some images of a batch by their indices in the split.
_Begun = Future[dict[int, NDArray[Any] | bytes]]


class ImageFeed:
    """Feeds the images of each batch to DALI's external_source. These depend only on the number of the batch.

    DALI takes the images without a copy (`no_copy`), because it would copy them in the training thread. At 224 px, an
    image took 32 to 48 us with a copy and 7 us without, on two cores of an AMD EPYC. DALI holds a reference to each
    array until its last operator has read the array, which must not change until then.

    As with DALI's file reader, each epoch has a new permutation, cut into one shard per rank. With a stream, images are
    shuffled within random groups of files. The last batch of an epoch and smaller shards are padded with the shard's
    last image. The names and numbers in `shuffle` seed the permutations. Without them, images are in the order of the
    split.

    Attributes:
        by_path: whether the feed returns paths, which DALI reads, instead of images.
        dtype: the data type of the arrays.
    """

    def __init__(self, reading: Reading, shuffle: tuple[int | str, ...] | None = None) -> None:
        self._reading, self._images, self._batches = reading, reading.files, reading.batches
        self._is_decoded, self.by_path = are_decoded(reading.files), are_paths(reading.files)
        paths = as_paths(reading.files) if self.by_path else None
        self._names = None if paths is None else paths.names
        # DALI gets an image as pixels or as bytes.
        self.ndim, self.layout = (3, "HWC") if self._is_decoded else (1, "")
        self.dtype = reading.pixels.dtype if self._is_decoded else "uint8"
        kinds = kinds_of(reading.files)
        self._expects = all(hasattr(kind, "expect") for kind in kinds)
        kind = kinds.pop() if len(kinds) == 1 else None
        self._begin: Any = getattr(kind, "begin", None)  # see `StoredImage`
        self._read_together: Any = getattr(kind, "read_together", None)
        self._begun: dict[int, list[_Begun]] = {}
        # If a pass is interrupted, cancel the reads that it has begun. Otherwise the next reader would wait for them.
        finalize(self, _cancel, self._begun)
        # Keep the orders of two epochs, because batches of the next epoch are read ahead.
        self._order_of = lru_cache(2)(partial(_order, reading, shuffle))
        if reading.stream is not None:
            self._files_of = lru_cache(2)(partial(reading.stream.epoch_files, self._order_of))

    def __call__(self, info: Any) -> tuple[list[NDArray[Any]], NDArray[np.int32]]:
        """Return the images of batch `info.iteration`, in the form of `load`, and their indices, (batch_size, 1)."""
        indices = self.indices(info.iteration)
        if self._reading.announce is not None:
            self._reading.announce(indices)
        if self._reading.stream is not None:
            epoch, start = self._position(info.iteration)
            self._reading.stream.move(self._files_of, epoch, start, start + (_AHEAD + 1) * self._reading.batch_size)
        if self._expects:
            # Prefetch later images. Otherwise this thread, which also trains, would wait for the disk for each image.
            for index in self.indices(info.iteration + _AHEAD).tolist():
                with suppress(OSError, ValueError):  # an error is reported when the image is used
                    self._images[index].prefetch()
        return self._load_all(info.iteration, indices.tolist()), indices[:, None]

    def indices(self, iteration: int) -> NDArray[np.int32]:
        """Return the indices of the images in a batch, (batch_size,)."""
        epoch, start = self._position(iteration)
        order = self._order_of(epoch)
        return order[np.minimum(np.arange(start, start + self._reading.batch_size), len(order) - 1)]

    def _position(self, iteration: int) -> tuple[int, int]:
        """Return the epoch of a batch, and the position of the batch's first image in this rank's epoch."""
        passed, batch = divmod(iteration, self._batches)
        return self._reading.epoch + passed, batch * self._reading.batch_size

    def load(self, index: int) -> NDArray[Any]:
        """Return the bytes of an image, (length,).

        If images are stored decoded, return (height, width, channels) pixels.
        """
        image = self._images[index]
        try:
            if not self._is_decoded:
                return np.frombuffer(read_encoded(image), np.uint8)
            assert is_decoded(image)
            pixels = np.ascontiguousarray(image.read_pixels())
            channels = self._reading.pixels.channels
            if pixels.dtype == self.dtype and pixels.ndim == 3 and pixels.shape[2] == channels:
                return pixels
            given, allowed = f"{pixels.shape} {pixels.dtype}", f"(height, width, {channels}) {self.dtype}"
            raise UserError(f"data: {image.name} has {given} pixels. Allowed: {allowed}.")
        except (OSError, UserError) as error:
            raise unreadable_error(image, error) from error

    def _load_all(self, iteration: int, indices: list[int]) -> list[NDArray[Any]]:
        if self._names is not None:
            return [np.frombuffer(self._names[index], np.uint8) for index in indices]
        if self._begin:
            found = self._wait(iteration)
            return [found[index] for index in indices]
        if self._read_together:
            with suppress(OSError):  # `load` raises an error that names the image
                images = self._read_together([self._images[index] for index in indices])
                return list(map(np.ascontiguousarray, images))
        return list(map(self.load, indices))

    def _wait(self, iteration: int) -> dict[int, NDArray[Any]]:
        """Return the images of a batch, by index, after background processes have read them. Begin the next reads."""
        try:
            for number in range(iteration, iteration + _AHEAD + 1):
                if number not in self._begun:
                    indices = dict.fromkeys(self.indices(number).tolist())
                    self._begun[number] = self._begin({index: self._images[index] for index in indices})
            found = [future.result() for future in self._begun.pop(iteration)]
        except BrokenExecutor:
            raise UserError(
                "data.workers: a process that reads images was killed, probably because memory ran out. "
                "Use fewer workers."
            ) from None
        except ImageError as error:
            raise unreadable_error(self._images[error.key], error) from error
        images = {index: image for some in found for index, image in some.items()}
        return {n: np.frombuffer(i, np.uint8) if isinstance(i, bytes) else i for n, i in images.items()}


def _order(reading: Reading, shuffle: tuple[int | str, ...] | None, epoch: int) -> NDArray[np.int32]:
    """Return the indices of this rank's images in an epoch, in order."""
    order = np.arange(len(reading.files), dtype=np.int32)
    if shuffle is not None:
        # All ranks must use the same order, so this seed does not depend on the rank.
        random = np.random.Generator(np.random.Philox(key=derive_seed(*shuffle, epoch)))
        random.shuffle(order)
        if (stream := reading.stream) is not None:
            windows = random.permutation(stream.numbers.max() + 1) // stream.window
            order = order[np.argsort(windows[stream.numbers[order]], kind="stable")]
    return order[reading.shard.part(len(order))]


def _cancel(begun: Mapping[int, Sequence[_Begun]]) -> None:
    for futures in begun.values():
        for future in futures:
            future.cancel()
