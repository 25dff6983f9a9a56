"""The pixel format of a dataset's images: channels, data type, and the values of black and white."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.params.param_types import MAX_CHANNELS
from augment.support.errors import UserError, nearest
from augment.support.formatting import amount

# The data types of stored pixels, with the default range of their values.
DTYPES: Mapping[str, tuple[float, float]] = {
    "uint8": (0, 255),
    "uint16": (0, 65535),
    "int16": (-32768, 32767),
    "float32": (0, 1),
}


@dataclass(frozen=True)
class PixelFormat:
    """The pixel format of images. The default is 8-bit RGB.

    Augmentation works on levels from 0 to 255. If `low` and `high` are empty, the stored bytes are levels. Otherwise,
    pixels become float32, which keeps their precision: `low` becomes 0, `high` becomes 255, and values beyond them are
    clipped.

    Attributes:
        channels: number of channels.
        dtype: data type of the stored pixels, a key of `DTYPES`.
        low: stored value of level 0 for each channel. Empty: the stored bytes are levels.
        high: stored value of level 255 for each channel. Empty if `low` is empty.
        rgb: channels that serve as red, green and blue, or None.
        mean: mean level of each channel, scaled to 0..1. Empty: ImageNet's.
        std: standard deviation of each channel's levels, scaled to 0..1. Empty: ImageNet's.
        nodata: stored value of pixels without data, or None. These pixels become level 0.
        colormap: Matplotlib colormap that shows images if `rgb` is None. None: gray.
    """

    channels: int = 3
    dtype: str = "uint8"
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    rgb: tuple[int, ...] | None = (0, 1, 2)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    nodata: float | None = None
    colormap: str | None = field(default=None, repr=False)  # not in the digest of a plan

    @classmethod
    def of(
        cls,
        channels: int,
        dtype: str = "uint8",
        *,
        range: tuple[float, float] | None = None,
        rgb: tuple[int, int, int] | None = None,
    ) -> "PixelFormat":
        """Return the format of images in memory.

        Args:
            channels: number of channels.
            dtype: data type: uint8, uint16, int16 or float32.
            range: values that become black and white. Default: all values of the type, and 0..1 for float32.
            rgb: channels that serve as red, green and blue. Default: 0, 1, 2 if there are three channels.

        Raises:
            UserError: a value is not allowed.
        """
        if channels == 3:
            rgb = rgb or (0, 1, 2)
        given: dict[str, Any] = {"channels": channels, "dtype": dtype, "rgb": rgb}
        if dtype in DTYPES and isinstance(channels, int) and (dtype != "uint8" or range not in (None, DTYPES[dtype])):
            low, high = range or DTYPES[dtype]
            given |= {"low": (low,) * channels, "high": (high,) * channels}
        return parse_format(given, "PixelFormat")

    @property
    def is_bytes(self) -> bool:
        """Whether augmentation works on the stored bytes, rather than on floating-point levels."""
        return not self.low

    @property
    def is_rgb(self) -> bool:
        """Whether images are 8-bit RGB images, which DALI can decode and the GPU kernels support."""
        return self.is_bytes and self.channels == 3 and self.rgb == (0, 1, 2)

    @property
    def empty_value(self) -> NDArray[Any]:
        """The stored value of level 0 for each channel, which replaces pixels without data."""
        low = np.array(self.low or (0.0,) * self.channels)
        if self.dtype != "float32":
            low = np.floor(low).clip(*DTYPES[self.dtype])
        return low.astype(self.dtype)

    @property
    def plain(self) -> dict[str, Any]:
        """The format as plain values, which `parse_format` parses to the same format."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def levels(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Convert stored pixels, (..., channels), to levels: uint8, or float32 from 0 to 255."""
        if self.is_bytes:
            return pixels
        low, high = np.array(self.low), np.array(self.high)
        return np.asarray(((pixels - low) * (255 / (high - low))).clip(0, 255), np.float32)

    def __str__(self) -> str:
        """Describe the format, as in "10 channels of uint16"."""
        return f"{amount(self.channels, 'channel')} of {self.dtype}"


RGB = PixelFormat()


def parse_format(given: object, key: str) -> PixelFormat:
    """Check plain values, for example from a run folder, and return their format.

    Raises:
        UserError: the values are invalid.
    """
    if given is None:
        return RGB
    with suppress(TypeError, ValueError, KeyError):
        items = dict(given).items()  # type: ignore[call-overload]
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in items}
        if _is_valid(found := PixelFormat(**values)):
            return found
    raise UserError(
        f"{key}: {given!r:.200} is not a pixel format. Use 1 to {MAX_CHANNELS} channels of {', '.join(DTYPES)}, with "
        "range, rgb and nodata that fit them."
    )


def _is_valid(pixels: PixelFormat) -> bool:
    """Return whether a format is valid. For values of unexpected types, return False or raise an error."""
    per_channel = pixels.low, pixels.high, pixels.mean, pixels.std
    numbers = [number for values in per_channel for number in values]
    if pixels.nodata is not None:
        numbers.append(pixels.nodata)
    return (
        type(pixels.channels) is int
        and 1 <= pixels.channels <= MAX_CHANNELS
        and all(map(_is_number, numbers))
        and all(len(values) in (0, pixels.channels) for values in per_channel)
        and all(low < high for low, high in zip(pixels.low, pixels.high, strict=True))
        and all(std > 0 for std in pixels.std)
        and (bool(pixels.low) or pixels.dtype == "uint8")
        and (pixels.rgb is None or not rgb_fault(pixels.rgb, pixels.channels))
        and (pixels.colormap is None or not colormap_fault(str(pixels.colormap)))
        and (pixels.nodata is None or not nodata_fault(pixels.nodata, pixels.dtype))
        and pixels.dtype in DTYPES
    )


def nodata_fault(nodata: float, dtype: str) -> str:
    """Return what is wrong with the stored value of pixels without data, or an empty string."""
    first, last = DTYPES[dtype]
    if dtype == "float32" or (float(nodata).is_integer() and first <= nodata <= last):
        return ""
    return f"{nodata:g}, but images have {dtype} pixels. Use a {dtype} value"


def rgb_fault(rgb: tuple[Any, ...], channels: int) -> str:
    """Return what is wrong with the channels for red, green and blue, or an empty string."""
    if len(set(rgb)) == len(rgb) == 3 and all(type(number) is int and 0 <= number < channels for number in rgb):
        return ""
    count = amount(channels, "channel")
    return f"{list(rgb)}, but images have {count}. Use three different numbers from 0 to {channels - 1}, or remove it"


def colormap_fault(name: str) -> str:
    """Return what is wrong with the name of a colormap, or an empty string."""
    from matplotlib import colormaps  # slow to import

    return (
        ""
        if name in colormaps
        else f"unknown colormap.{nearest(name, colormaps)} Use the name of a Matplotlib colormap"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
