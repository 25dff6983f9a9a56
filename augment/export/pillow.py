"""The transform of validation in Pillow and NumPy: what `augment.export` writes out as a file of its own.

So every function here uses nothing but Pillow, NumPy, `math` and the others, and is written for a reader of that file.
A crop is a function of its op's name: `(image, size, **the op's parameters) -> Image`; only `resize` is that of side
both, its other sides being other crops. `to_rgb` of `augment.stored` goes into that file too.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def resample(image: Image.Image, sides: tuple[int, int], box: tuple[float, float, float, float]) -> Image.Image:
    """Resize the part of an RGB picture within box (left, top, right, bottom) to (width, height), with antialiasing.

    DALI repeats the pixels of the edge where the filter reaches beyond the picture; Pillow would end the filter there,
    and the outermost pixels would come out some 20 levels apart. So the edge is repeated before Pillow sees it.
    """
    left, top, right, bottom = box
    # As far as the box and half the filter, which is one pixel of the result to either side, lie beyond the picture.
    x = math.ceil(max(-left, right - image.width, 0) + max((right - left) / sides[0], 1))
    y = math.ceil(max(-top, bottom - image.height, 0) + max((bottom - top) / sides[1], 1))
    wide = Image.fromarray(np.pad(np.asarray(image), ((y, y), (x, x), (0, 0)), mode="edge"))
    # reducing_gap=None: not a quick reduction first, which is less exact.
    return wide.resize(sides, Image.Resampling.BILINEAR, (left + x, top + y, right + x, bottom + y), reducing_gap=None)


def resize(image: Image.Image, size: int) -> Image.Image:
    """Resize the whole picture to the square, whatever its aspect ratio."""
    return resample(image, (size, size), (0, 0, image.width, image.height))


def center_crop(image: Image.Image, size: int, scale: float) -> Image.Image:
    """Cut a centered square, `scale` times the picture's short side, to fractions of a pixel, and resize it."""
    side = scale * min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return resample(image, (size, size), (left, top, left + side, top + side))


def letterbox(image: Image.Image, size: int, border: str, fill: int) -> Image.Image:
    """Resize the whole picture so that its long side fits the square, and center it."""
    scale = size / max(image.size)
    width, height = (max(1, math.floor(side * scale + 0.5)) for side in image.size)
    # The scale is exact: where the rounded size is not, the box is a fraction of a pixel off the picture's edge.
    x, y = (image.width - width / scale) / 2, (image.height - height / scale) / 2
    pixels = np.asarray(resample(image, (width, height), (x, y, image.width - x, image.height - y)))
    left, top = (size - width) // 2, (size - height) // 2
    beside = ((top, size - height - top), (left, size - width - left), (0, 0))
    if border == "constant":
        return Image.fromarray(np.pad(pixels, beside, constant_values=fill))
    return Image.fromarray(np.pad(pixels, beside, mode="edge" if border == "replicate" else "reflect"))


def normalize(image: Image.Image, mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float32]:
    """Return (3, height, width) float32: RGB in 0..1, less the mean, over the standard deviation."""
    pixels = np.asarray(image, np.float32) / 255
    pixels = (pixels - np.array(mean, np.float32)) / np.array(std, np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


# Read-only: name of a crop op -> the same in Pillow. A new crop is one function more.
CROPS: Mapping[str, Callable[..., Image.Image]] = MappingProxyType(
    {f.__name__: f for f in (resize, center_crop, letterbox)}
)
