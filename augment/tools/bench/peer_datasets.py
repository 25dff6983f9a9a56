"""Data sets of the peers that use worker processes, which import this module and, with it, no DALI."""

from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from augment.data.dataset import ImageRef
from augment.data.images import open_image, to_rgb
from augment.tools.bench.baselines import TorchvisionDataset


class Crops(TorchvisionDataset):
    """A data set of crops and their indices, (3, size, size) uint8."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image before normalization."""
        return self.pixels(self._files[index], self._rng), index


class TimmDataset(Dataset[tuple[Any, int]]):
    """What timm's `create_loader` asks of a data set.

    Attributes:
        transform: set by timm.
    """

    transform: Callable[[Image.Image], Any]

    def __init__(self, files: Sequence[ImageRef]) -> None:
        self._files = tuple(files)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return a transformed image and class 0."""
        with open_image(self._files[index]) as image:
            return self.transform(to_rgb(image)), 0
