"""The validation transform in Pillow and NumPy. `transform_source` copies its source into an exported file.

Functions here therefore use only Pillow, NumPy, `math` and each other, and their comments address readers of that file.
Each crop op has a function with its name: `(image, size, **parameters) -> image`, where size is (height, width).
`resize` implements only `side: both`, because `short` equals `center_crop` and `long` equals `letterbox`. The exported
file also contains the image reader from `augment.data.images`.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def resample(image: Image.Image, sides: tuple[int, int], box: tuple[float, float, float, float]) -> Image.Image:
    """Resize the box (left, top, right, bottom) of an RGB image to (width, height), with antialiasing.

    DALI's filter repeats the edge pixels beyond the edges of the image. Pillow cuts its filter off at the edges, which
    would change the outermost pixels by about 20 levels. The image is therefore first padded with its edge pixels.
    """
    left, top, right, bottom = box
    # Pad by the distance that the box and half of the filter (one output pixel) reach beyond the image.
    x = math.ceil(max(-left, right - image.width, 0) + max((right - left) / sides[0], 1))
    y = math.ceil(max(-top, bottom - image.height, 0) + max((bottom - top) / sides[1], 1))
    wide = np.pad(np.asarray(image), ((y, y), (x, x), (0, 0)), mode="edge")
    moved = (left + x, top + y, right + x, bottom + y)
    # Resize in floating point, because 8-bit images are also rounded between the two passes of a resize.
    # reducing_gap=None turns off a fast first reduction, which is less exact.
    pixels = np.empty((sides[1], sides[0], 3), np.float32)
    for channel in range(3):
        plane = Image.fromarray(wide[..., channel].astype(np.float32))
        pixels[..., channel] = np.asarray(plane.resize(sides, Image.Resampling.BILINEAR, moved, reducing_gap=None))
    return Image.fromarray(np.rint(pixels).clip(0, 255).astype(np.uint8))


def resize(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize the whole image to (height, width), ignoring its aspect ratio."""
    return resample(image, size[::-1], (0, 0, image.width, image.height))


def center_crop(image: Image.Image, size: tuple[int, int], scale: float) -> Image.Image:
    """Cut a centered window, with subpixel precision, and resize it to (height, width).

    The window has the aspect ratio of the result. `scale` is the length of its sides, relative to the largest window.
    """
    rows, columns = size[0] / min(size), size[1] / min(size)
    side = scale * min(image.height / rows, image.width / columns)  # the shorter side
    left, top = (image.width - side * columns) / 2, (image.height - side * rows) / 2
    return resample(image, size[::-1], (left, top, left + side * columns, top + side * rows))


def letterbox(image: Image.Image, size: tuple[int, int], fill: int) -> Image.Image:
    """Resize the whole image to fit into (height, width), center it, and pad the rest."""
    scale = min(size[0] / image.height, size[1] / image.width)
    width, height = (max(1, math.floor(side * scale + 0.5)) for side in image.size)
    # Keep the exact scale. If the size was rounded, the box differs from the image by a fraction of a pixel.
    x, y = (image.width - width / scale) / 2, (image.height - height / scale) / 2
    pixels = np.asarray(resample(image, (width, height), (x, y, image.width - x, image.height - y)))
    left, top = (size[1] - width) // 2, (size[0] - height) // 2
    padding = ((top, size[0] - height - top), (left, size[1] - width - left), (0, 0))
    return Image.fromarray(np.pad(pixels, padding, constant_values=fill))


def normalize(image: Image.Image, mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float32]:
    """Return (3, height, width) float32: RGB in 0..1, minus the mean, divided by the standard deviation."""
    pixels = np.asarray(image, np.float32) / 255
    pixels = (pixels - np.array(mean, np.float32)) / np.array(std, np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


# Crop ops by name. To support another crop, add a function.
CROPS: Mapping[str, Callable[..., Image.Image]] = {f.__name__: f for f in (resize, center_crop, letterbox)}
