"""Small images with any number of channels, as .npy files in folders."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def draw_raster(channels: int, seed: int) -> NDArray[np.uint16]:
    """Return (20, 24, channels), where channel c has values from 1000 (c + 1) to 1000 (c + 1) + 500."""
    values = np.random.default_rng(seed).integers(0, 501, (20, 24, channels))
    values[0, 0], values[0, 1] = 0, 500
    return (values + 1000 * np.arange(1, channels + 1)).astype(np.uint16)


def write_rasters(root: Path, channels: int, *, count: int = 6) -> Path:
    """Write images of two classes for training, with seeds from 0 on, and half as many for validation."""
    seeds = iter(range(3 * count))
    for split, images in (("train", count), ("val", count // 2)):
        for name in ("ant", "bee"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(images):
                np.save(folder / f"{number}.npy", draw_raster(channels, next(seeds)))
    return root
