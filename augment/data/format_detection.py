"""Find the pixel format of a dataset, and measure the range, mean and standard deviation of its channels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from augment.data.cache import cached_result
from augment.data.check import check_cache_of
from augment.data.dataset import Dataset
from augment.data.formats.raster_files import MODES
from augment.data.formats.tiff import has_fourth_channel
from augment.data.image_faults import strict_pillow
from augment.data.images import ImageRef, encoded_ref, is_decoded, name_of, read_encoded
from augment.data.rasters import Raster, StoredPixels, first_pixels, in_format
from augment.params.pixel_format import DTYPES, PixelFormat, colormap_fault, nodata_fault, parse_format, rgb_fault
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.files import digest
from augment.support.formatting import amount, plural, short_number
from augment.support.process import cores

if TYPE_CHECKING:
    from augment.data.sources.registry import Source

# At most this many images and values determine the range and the statistics.
_MAX_IMAGES, _MAX_VALUES = 500, 2**23

_PERCENTILES = (0.1, 99.9)

# The smallest share of the range that images should use.
_MIN_USED_SHARE = 1 / 4

# If some images cover a range of values this many times as wide as all other images, their scale may differ.
_MIN_SCALE_RATIO = 8


def find_format(source: Source, dataset: Dataset) -> Dataset:
    """Determine the pixel format of a dataset from its first training image and the settings of its source.

    Ordinary 8-bit images stay RGB. In other datasets, images become rasters, and `Dataset.pixels` is set to their
    format, with its range and statistics.

    Raises:
        UserError: a setting contradicts the images.
    """
    files = dataset.train.files
    with strict_pillow():
        first = first_pixels(files)
    pixels = _format(source, first)
    if pixels == PixelFormat() and (first is None or is_decoded(files[0])):
        return dataset if source.channels or first else dataset.noting(_ignored_channel(files))
    notices: tuple[str, ...] = ()
    if not pixels.is_rgb:
        pixels, notices = _with_statistics(source, files, pixels)
    train, val = in_format(dataset.train, pixels), in_format(dataset.val, pixels)
    faults = dict(dataset.faults)
    faults |= {Raster(image, pixels): fault for image, fault in dataset.faults.items()}
    return replace(dataset, train=train, val=val, faults=faults, pixels=pixels).noting(*notices)


def _ignored_channel(files: Sequence[ImageRef]) -> str:
    """Return a notice if the first image is an 8-bit TIFF with a fourth channel, such as near infrared."""
    name = name_of(files[0]) if len(files) else ""
    if Path(name).suffix.lower() not in (".tif", ".tiff"):
        return ""
    with suppress(OSError, UserError):
        if has_fourth_channel(read_encoded(files[0])):
            return f"data: the fourth channel of {name} is ignored as transparency. To train on it, set data.channels=4"
    return ""


def _format(source: Source, first: StoredPixels | None) -> PixelFormat:
    """Return the format without statistics. With `data.range=auto`, it has the default range."""
    channels, dtype = _channels_and_dtype(source, first)
    rgb, (low, high) = _rgb(source, channels), _range(source, dtype)
    is_bytes = dtype == "uint8" and (low, high) == DTYPES[dtype] and source.range != "auto"
    limits = {} if is_bytes else {"low": (low,) * channels, "high": (high,) * channels}
    if source.nodata is not None and (fault := nodata_fault(source.nodata, dtype)):
        raise UserError(f"data.nodata={fault}.")
    if source.colormap is not None:
        if fault := colormap_fault(source.colormap):
            raise UserError(f"data.colormap={source.colormap}: {fault}.")
        if rgb:
            raise UserError(f"data.colormap={source.colormap} has no effect on color images. Remove it.")
    return PixelFormat(channels, dtype, rgb=rgb, nodata=source.nodata, colormap=source.colormap, **limits)


def _channels_and_dtype(source: Source, first: StoredPixels | None) -> tuple[int, str]:
    if first is None:
        channels, dtype = source.channels or 3, "uint8"
        if channels not in MODES:
            raise UserError(
                f"data.channels={channels} is not possible for ordinary 8-bit images. Allowed: 1 (gray), 3, or 4 (with "
                "transparency)."
            )
    else:
        channels, dtype = first.channels, first.dtype
        if source.channels not in (None, channels):
            raise UserError(
                f"data.channels={source.channels}, but {first.name} has {amount(channels, 'channel')}. Remove "
                "data.channels."
            )
    if dtype not in DTYPES:  # only images that are stored decoded can have other types
        raise UserError(f"data: images have {dtype} pixels. Allowed: {', '.join(DTYPES)}.")
    return channels, dtype


def _rgb(source: Source, channels: int) -> tuple[Any, ...] | None:
    """Return the channels that serve as red, green and blue, or None."""
    if source.rgb is None:
        return (0, 1, 2) if channels == 3 else None
    rgb = tuple(int(value) if value == int(value) else value for value in source.rgb)
    if fault := rgb_fault(rgb, channels):
        raise UserError(f"data.rgb is {fault}.")
    return rgb


def _range(source: Source, dtype: str) -> tuple[float, float]:
    """Return the values that become black and white."""
    if not isinstance(source.range, tuple):
        return DTYPES[dtype]
    low, high = source.range
    if low >= high:
        raise UserError(f"data.range=[{low:g},{high:g}]: the first number must be smaller. Use [low, high].")
    return low, high


def _with_statistics(
    source: Source, files: Sequence[ImageRef], pixels: PixelFormat
) -> tuple[PixelFormat, tuple[str, ...]]:
    """Return the format with its range and statistics, and notices about them. Both are cached."""

    def compute() -> str:
        samples = sample_values(files, pixels)
        found, notices = _with_range(source, samples, pixels)
        notices.append(_mixed_scales(samples))
        mean, std = _moments(samples, found)
        if constant := [str(channel) for channel, value in enumerate(std) if value == 0]:
            notices.append(
                f"data: all pixels of {plural(len(constant), 'channel')} {', '.join(constant)} are equal within "
                "data.range, so models learn nothing from them. Check data.range"
            )
        found = replace(found, mean=mean, std=_above_zero(std))
        return json.dumps([found.plain, notices])

    def parse(line: str) -> tuple[PixelFormat, tuple[str, ...]]:
        plain, notices = json.loads(line)
        found = parse_format(plain, "pixels")
        if replace(found, low=pixels.low, high=pixels.high, mean=(), std=()) != pixels:
            raise ValueError("these are the statistics of another format")
        return found, tuple(map(str, notices))

    named = check_cache_of(source)
    settings = digest(named.name, pixels, source.range)
    images = list(map(encoded_ref, _some(files)))
    return cached_result(images, compute, parse, named.with_name(f"pixels-{settings}.txt"))


def _some(files: Sequence[ImageRef]) -> list[ImageRef]:
    """Return evenly spaced images."""
    chosen = np.unique(np.linspace(0, len(files) - 1, min(_MAX_IMAGES, len(files))).astype(np.int64))
    return [files[index] for index in chosen.tolist()]


class ValueSample(NamedTuple):
    """Stored values of an image, (N, channels), NaN where it has no data."""

    name: str
    values: NDArray[np.float32]


def sample_values(files: Sequence[ImageRef], pixels: PixelFormat) -> list[ValueSample]:
    """Return stored values of evenly spaced pixels of at most 500 images.

    Images that cannot be read are left out. The check reports them.
    """
    images = _some(files)
    most = max(1, _MAX_VALUES // (pixels.channels * len(images)))

    def sample(image: ImageRef) -> list[ValueSample]:
        raster = Raster(encoded_ref(image), pixels)
        try:
            stored, empty = raster.read_stored()
            raster.filled(stored, empty)  # rejects infinite values
        except (OSError, UserError, MemoryError):
            return []
        chosen = np.linspace(0, stored[..., 0].size - 1, min(most, stored[..., 0].size)).astype(np.int64)
        values = stored.reshape(-1, pixels.channels)[chosen].astype(np.float32)
        if empty is not None:
            values[empty.reshape(-1, pixels.channels)[chosen]] = np.nan
        return [ValueSample(raster.name, values)]

    with (
        strict_pillow(),
        progress_bar(quiet=len(images) <= 100) as progress,
        in_threads(sample, images, cores(), 2 * cores()) as found,
    ):
        return list(chain.from_iterable(progress.track(found, len(images), description="Measuring pixels")))


def _joined(samples: Sequence[ValueSample], channels: int) -> NDArray[np.float32]:
    """Return the values of all samples, (N, channels)."""
    return np.concatenate([np.full((1, channels), np.nan, np.float32), *(sample.values for sample in samples)])


def _with_range(source: Source, samples: Sequence[ValueSample], pixels: PixelFormat) -> tuple[PixelFormat, list[str]]:
    """Return the format with the range of `data.range=auto`, and a notice if the images use little of the range.

    Raises:
        UserError: floating-point images need a range.
    """
    if pixels.dtype == "float32" and source.range is None:
        for name, values in samples:
            if ((values < 0) | (values > 1)).any():
                what = f"{name} has values from {np.nanmin(values):.6g} to {np.nanmax(values):.6g}"
                raise UserError(
                    f"data: {what}, but floating-point images need values from 0 to 1. Set data.range=auto, or "
                    "data.range=[low,high] to the values that become black and white."
                )
    limits = [_limits(column[~np.isnan(column)]) for column in _joined(samples, pixels.channels).T]
    low, high = zip(*limits, strict=True)
    if source.range == "auto":
        return replace(pixels, low=low, high=high), []
    first, last = (pixels.low[0], pixels.high[0]) if pixels.low else DTYPES["uint8"]
    if max(high) - min(low) >= _MIN_USED_SHARE * (last - first):
        return pixels, []
    used = (value if pixels.dtype == "float32" else round(value) for value in (min(low), max(high)))
    start, end, black, white = map(short_number, (*used, first, last))
    what = f"data: the images use values from {start} to {end}, a small part of the range from {black} to {white}"
    return pixels, [f"{what}. Set data.range=auto"]


def _mixed_scales(samples: Sequence[ValueSample]) -> str:
    """Return a notice if two groups of images cover ranges of very different widths, or an empty string.

    For example, some images hold values from 0 to 1, and others from 0 to 255.
    """
    known = [(values[~np.isnan(values)], name) for name, values in samples]
    found = [(float(np.ptp(np.percentile(values, (1, 99)))), name) for values, name in known if values.size]
    widths = sorted(width for width in found if width[0] > 0)
    fewest = max(5, len(widths) // 20)  # a few dark images are normal
    ends = range(fewest, len(widths) - fewest + 1)
    ratio, end = max(((widths[end][0] / widths[end - 1][0], end) for end in ends), default=(0, 0))
    if ratio < _MIN_SCALE_RATIO:
        return ""
    (narrow, one), (wide, other) = widths[end - 1], widths[end]
    return (
        f"data: in {end:,} of {len(widths):,} images, such as {one}, the values cover a range of at most "
        f"{short_number(narrow)}. In the other images, such as {other}, they cover at least {short_number(wide)}. If "
        "these files are scaled differently, save them with the same scale"
    )


def _limits(values: NDArray[np.float32]) -> tuple[float, float]:
    """Return the lowest and the highest value of a channel, apart from outliers."""
    if not values.size:
        return 0.0, 1.0
    low, high = np.percentile(values, _PERCENTILES).tolist()
    if low == high:
        low, high = float(values.min()), float(values.max())
    return (low, high) if low < high else (low, low + max(1.0, abs(low)))


def measured(dataset: Dataset, *given: object) -> PixelFormat:
    """Return the pixel format of a dataset, with the mean and the standard deviation of RGB training images.

    They are measured only if a setting in `given`, such as `aug.mean`, is "auto". Other formats always have them.
    """
    pixels, files = dataset.pixels, dataset.train.files
    if not pixels.is_rgb or "auto" not in given or not len(files):
        return pixels
    mean, std = _moments(sample_values(files, pixels), pixels)
    return replace(pixels, mean=mean, std=_above_zero(std))


def _above_zero(std: tuple[float, ...]) -> tuple[float, ...]:
    """Return 1 instead of the standard deviation of constant channels, which is 0."""
    return tuple(value or 1.0 for value in std)


def _moments(samples: Sequence[ValueSample], pixels: PixelFormat) -> tuple[tuple[float, ...], tuple[float, ...]]:
    levels = pixels.levels(_joined(samples, pixels.channels)).astype(np.float64)
    shares = np.ma.masked_invalid(levels) / 255
    mean, std = (np.ma.filled(moment, 0) for moment in (shares.mean(axis=0), shares.std(axis=0)))
    return tuple(mean.tolist()), tuple(np.where(std > 1e-6, std, 0).tolist())  # below 1e-6: rounding
