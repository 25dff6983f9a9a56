"""Displayable 8-bit RGB images of pixels in any format."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.params.pixel_format import PixelFormat


def displayable(levels: NDArray[Any], pixels: PixelFormat) -> NDArray[np.uint8]:
    """Show the channels `data.rgb`, or the first channel in gray. Ordinary RGB images stay unchanged.

    Args:
        levels: (..., height, width, channels), see `PixelFormat.levels`.
        pixels: the format of the images.

    Returns:
        (..., height, width, 3) uint8 RGB. Each channel of each image is stretched, see `stretch`.
    """
    if pixels.is_rgb:
        return levels
    if levels.ndim > 3:
        return np.stack([displayable(image, pixels) for image in levels])
    shown = stretch(levels)[..., list(pixels.rgb or (0,))]
    return np.broadcast_to(shown, (*shown.shape[:2], 3)).copy()


def stretch(levels: NDArray[Any]) -> NDArray[np.uint8]:
    """Stretch each channel of an image, (height, width, channels), from percentiles 2 and 98 to 0 and 255.

    Pixels at level 0 in all channels stay black and do not count. They have no data or are beyond the edges of the
    image. If most values of a channel are equal, its minimum and maximum are the ends. A constant channel stays as it
    is.
    """
    with_data = levels.any(axis=-1)
    values = levels[with_data] if with_data.any() else levels.reshape(-1, levels.shape[-1])
    low, high = np.percentile(values, (2, 98), axis=0)
    low, high = np.where(low < high, (low, high), (values.min(axis=0), values.max(axis=0)))
    low, high = np.where(low < high, (low, high), ([[0.0], [255.0]]))
    stretched = ((levels - low) * (255 / (high - low))).clip(0, 255).round()
    return np.asarray(stretched * with_data[..., None], np.uint8)


def channel_names(pixels: PixelFormat) -> list[str]:
    """Return the number of each channel, and its color if it is red, green or blue: "3, red"."""
    colors = dict(zip(pixels.rgb or (), ("red", "green", "blue"), strict=False))
    return [f"{number}, {colors[number]}" if number in colors else f"{number}" for number in range(pixels.channels)]
