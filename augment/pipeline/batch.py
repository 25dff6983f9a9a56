"""What a loader hands out."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor


@dataclass  # not frozen: Lightning moves batches between devices by assigning to their fields
class Batch:
    """What the model is fed; unpacks to `images, targets`.

    Attributes:
        images: (N, 3, size, size) float32 or float16, normalized, in channels_last memory.
        targets: (N,) int64 class indices; if samples were mixed, (N, classes) float32, the share of each class. Labels
            and numbers are (N, K) float32.
        indices: (N,) int64, each sample's position in the split's files.
        views: all views of each sample, each in the form of `images`, which is the first one.
        share: the part of the samples that all ranks have in batches of this number, in [0, 1]. 0: this rank has none
            left in the epoch and repeats its last one, alone, so that all make the same number of batches; scores leave
            it out.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor
    views: tuple[Tensor, ...] = ()
    share: float = 1.0

    def __len__(self) -> int:
        return len(self.targets)

    def __iter__(self) -> Iterator[Tensor]:
        yield self.images
        yield self.targets
