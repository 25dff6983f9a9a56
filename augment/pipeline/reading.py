"""Which images a pipeline reads: those of a shard, in batches, of each epoch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import ImageRef
from augment.support.seeds import derive_seed


@dataclass(frozen=True)
class Shard:
    """Which part of an epoch this process reads."""

    rank: int = 0
    world_size: int = 1

    def samples(self, total: int) -> int:
        """Return how many of `total` samples this process reads."""
        return (self.rank + 1) * total // self.world_size - self.rank * total // self.world_size

    def counts(self, total: int, start: int, most: int) -> list[int]:
        """Return how many of an epoch's `total` samples each process has from `start` in its shard on, up to `most`."""
        shards = [Shard(rank, self.world_size).samples(total) for rank in range(self.world_size)]
        return [min(max(count - start, 0), most) for count in shards]


@dataclass(frozen=True)
class Order:
    """In which batches and order a loader reads samples."""

    batch_size: int  # samples of this rank in a batch; the last one of an epoch may be smaller
    seed: int  # the run's
    shard: Shard = Shard()
    drop_last: bool = False  # leave out the smaller last batch, unless it is the only one


@dataclass(frozen=True)
class Reading:
    """Which images a pipeline reads, and in which order."""

    files: Sequence[ImageRef]  # a sample's index is its position here
    batch_size: int  # samples in a batch; the last one of an epoch is padded
    seed: int  # the run's seed; shuffle, crop and steps each derive their own from it
    epoch: int = 0  # the first epoch that is read
    shard: Shard = Shard()  # which part of each epoch
    stand_ins: Mapping[int, int] = field(default_factory=dict)  # which sample is read instead
    announce: Callable[[NDArray[np.int32]], None] | None = None  # gets the indices of coming batches

    @property
    def batches(self) -> int:
        """Batches of an epoch, the same number for each shard: the largest one's, the others are padded."""
        largest = -(-len(self.files) // self.shard.world_size)
        return -(-largest // self.batch_size)

    def dali_seed(self, *parts: int | str) -> int:
        """Return a seed for DALI."""
        return derive_seed(self.seed, *parts) % 2**31

    @property
    def shard_of_epoch(self) -> slice:
        """The positions of this process's samples in an epoch."""
        rank, world_size, count = self.shard.rank, self.shard.world_size, len(self.files)
        return slice(rank * count // world_size, (rank + 1) * count // world_size)

    @property
    def stood_in(self) -> NDArray[np.int32]:
        """The index of the image that is read in place of each image."""
        read = np.arange(len(self.files), dtype=np.int32)
        read[list(self.stand_ins)] = list(self.stand_ins.values())
        return read
