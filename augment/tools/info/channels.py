"""Statistics of each channel of images that are not ordinary RGB."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.image_refs import DecodedImage
from augment.params.pixel_format import PixelFormat
from augment.support.background import in_threads
from augment.support.process import cores

_IMAGES, _VALUES = 1000, 10_000_000  # largest number of images, and of values of all channels


@dataclass(frozen=True)
class ChannelValues:
    """The stored values of each channel."""

    pixels: PixelFormat
    values: NDArray[Any]  # (M, channels)
    notices: tuple[str, ...] = ()  # of `augment.data.rasters.find_format`

    @cached_property
    def ends(self) -> NDArray[np.float64]:
        """The values that become black and white, (2, channels)."""
        count = self.pixels.channels
        return np.array([self.pixels.low or [0] * count, self.pixels.high or [255] * count], np.float64)

    @cached_property
    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Statistics of each channel, (channels,), by name. "clipped" is the share of values beyond the ends."""
        percentiles = np.percentile(self.values, (0, 1, 50, 99, 100), axis=0)
        low, high = self.ends
        return {
            **dict(zip(("min", "1%", "50%", "99%", "max"), percentiles, strict=True)),
            "mean": self.values.mean(axis=0, dtype=np.float64),
            "std": self.values.std(axis=0, dtype=np.float64),
            "clipped": ((self.values < low) | (self.values > high)).mean(axis=0),
        }


def read_values(images: Sequence[DecodedImage], pixels: PixelFormat, notices: tuple[str, ...] = ()) -> ChannelValues:
    """Read the values of at most 1,000 images. Many values are sampled."""
    some = images[:: -(-len(images) // _IMAGES)]
    most = _VALUES // (len(some) * pixels.channels)

    def read(image: DecodedImage) -> NDArray[Any]:
        rows = image.read_pixels().reshape(-1, pixels.channels)
        if pixels.nodata is not None:
            rows = rows[pixels.levels(rows).any(axis=1)]
        return rows if len(rows) <= most else rows[np.random.default_rng(0).integers(len(rows), size=most)]

    with in_threads(read, some, cores()) as rows:
        return ChannelValues(pixels, np.concatenate([*rows]), notices)
