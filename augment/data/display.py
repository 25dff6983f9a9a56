"""Convert pixels in any format to 8-bit RGB images for display."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.params.pixel_format import PixelFormat

Limits = NDArray[np.float64]  # the levels that become black and white, (2, channels)


def displayable(levels: NDArray[Any], pixels: PixelFormat, limits: Limits | None = None) -> NDArray[np.uint8]:
    """Show the channels that `data.rgb` selects, or the first channel in gray or in the colors of `data.colormap`.

    Ordinary RGB images stay unchanged.

    Args:
        levels: (..., height, width, channels), see `PixelFormat.levels`.
        pixels: the format of the images.
        limits: the levels that become black and white. Default: each image's own limits, see `stretch_limits`.

    Returns:
        (..., height, width, 3) uint8 RGB. Pixels at level 0 in all channels are black.
    """
    if pixels.is_rgb:
        return levels
    if levels.ndim > 3:
        return np.stack([displayable(image, pixels, limits) for image in levels])
    shown = stretch(levels, limits)[..., list(pixels.rgb or (0,))]
    if pixels.colormap is not None:
        from matplotlib import colormaps  # slow to import

        colors = colormaps[pixels.colormap](shown[..., 0] / 255, bytes=True)[..., :3]
        return np.asarray(colors * levels.any(axis=-1, keepdims=True), np.uint8)
    return np.broadcast_to(shown, (*shown.shape[:2], 3)).copy()


def stretch(levels: NDArray[Any], limits: Limits | None = None) -> NDArray[np.uint8]:
    """Stretch each channel of an image, (height, width, channels), to 0..255. See `displayable`."""
    low, high = stretch_limits(levels) if limits is None else limits
    stretched = ((levels - low) * (255 / (high - low))).clip(0, 255).round()
    return np.asarray(stretched * levels.any(axis=-1, keepdims=True), np.uint8)


def stretch_limits(levels: NDArray[Any]) -> Limits:
    """Return the 2nd and 98th percentile of each channel of an image, (height, width, channels).

    Pixels at level 0 in all channels do not count, because they have no data or lie outside the image. If most
    values of a channel are equal, its minimum and maximum are the limits. A constant channel is not stretched.
    """
    values = levels[np.asarray(levels.any(axis=-1))]
    if not len(values):
        values = np.zeros((1, levels.shape[-1]))
    low, high = np.percentile(values, (2, 98), axis=0)
    low, high = np.where(low < high, (low, high), (values.min(axis=0), values.max(axis=0)))
    return np.where(low < high, (low, high), [[0.0], [255.0]])


def channel_names(pixels: PixelFormat) -> list[str]:
    """Return the number of each channel, and its color if it is red, green or blue: "3, red"."""
    colors = dict(zip(pixels.rgb or (), ("red", "green", "blue"), strict=False))
    return [f"{number}, {colors[number]}" if number in colors else f"{number}" for number in range(pixels.channels)]
