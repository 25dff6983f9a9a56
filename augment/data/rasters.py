"""Images with other pixels than 8-bit RGB: how they are read, and how their pixel format is found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from augment.data.cache import remember_whole
from augment.data.check import read_limited, verdicts_of
from augment.data.dataset import Dataset, Split
from augment.data.formats.folder import EXTENSIONS
from augment.data.formats.raster_files import MIXED_EXTENSIONS, MODES, RASTER_EXTENSIONS, is_ordinary, open_raster
from augment.data.image_faults import PixelsError, describe_failure, strict_pillow
from augment.data.image_refs import ImageError, ImageRef, kinds_of
from augment.data.images import encoded_ref, is_decoded, name_of
from augment.data.targets.masks import MASKS, MaskFile
from augment.params.pixel_format import DTYPES, PixelFormat, nodata_fault, parse_format, rgb_fault
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.files import digest
from augment.support.formatting import amount, plural
from augment.support.process import cores

if TYPE_CHECKING:
    from augment.data.sources.registry import Source

# Most images, and most of their values, from which the range and the statistics are computed.
_MOST_IMAGES, _MOST_VALUES = 500, 2**23

_PERCENTILES = (0.1, 99.9)

# The smallest share of the range that images should use.
_USED = 1 / 16


@dataclass(frozen=True, slots=True)
class Raster:
    """An image that is read as an array in a pixel format. See `augment.data.image_refs.DecodedImage`."""

    ref: ImageRef
    pixels: PixelFormat

    def __hash__(self) -> int:
        return hash(self.ref)  # hashing the format would take much longer

    @property
    def name(self) -> str:
        """The name of the file."""
        return name_of(self.ref)

    @property
    def file(self) -> Any:
        """The larger file that holds the image, if there is one."""
        return self.ref.file  # type: ignore[union-attr]

    @property
    def reading(self) -> str:
        """Describes how the image is read, for the cache of the check."""
        of = self.pixels
        return str(of) if of.nodata is None else f"{of} {of.nodata} {of.low}"

    def read_pixels(self) -> NDArray[Any]:
        """Return (height, width, channels) in the format's data type. Pixels without data hold `PixelFormat.low`.

        Raises:
            OSError: the file cannot be read.
            UserError: the image has another format, or infinite or NaN values.
        """
        return self.filled(*self.read_stored())

    def filled(self, stored: NDArray[Any], empty: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Return stored values with `PixelFormat.low` where they mean no data.

        Raises:
            UserError: other values are infinite or NaN.
        """
        found = stored if empty is None or not empty.any() else np.where(empty, self.pixels.empty_value, stored)
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            fix = "Replace them. If NaN means no data, set data.nodata to any number"
            raise PixelsError(f"has infinite values or NaN. {fix}")
        return np.ascontiguousarray(found)  # as DALI expects

    def read_stored(self, given: NDArray[Any] | None = None) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return the stored values, (height, width, channels), and which of them mean no data, if the format has any.

        `given` are the pixels of a decoded image, if they have been read already.

        Raises:
            OSError: the file cannot be read.
            UserError: the image has another format.
        """
        of = self.pixels
        if is_decoded(self.ref):
            found = self.ref.read_pixels() if given is None else given
            self._require(found.shape, found.dtype.name)
        else:
            content = read_limited(self.ref)
            opened = open_raster(content, of.channels)
            if opened.dtype != of.dtype and is_ordinary(content):  # its channels may have been converted
                raise PixelsError(f"is an ordinary 8-bit image instead of {of}")
            self._require(opened.shape, opened.dtype)
            found = opened.load()
        if of.nodata is None:
            return found, None
        empty: NDArray[np.bool_] = found == found.dtype.type(of.nodata)
        if found.dtype.kind == "f":
            empty = empty | np.isnan(found)
        return found, empty

    def read_empty(self) -> NDArray[np.bool_] | None:
        """Return where no channel has data, (height, width), or None if the format has no `PixelFormat.nodata`."""
        empty = None if self.pixels.nodata is None else self.read_stored()[1]
        return None if empty is None else np.asarray(empty.all(axis=2))

    def _require(self, shape: tuple[int, ...], dtype: str) -> None:
        of = self.pixels
        if len(shape) != 3 or (shape[2], dtype) != (of.channels, of.dtype):
            raise PixelsError(f"has {PixelFormat(shape[-1], dtype)} instead of {of}")

    def read(self) -> bytes:
        """Return the image as an .npy file."""
        stream = BytesIO()
        np.save(stream, self.read_pixels())
        return stream.getvalue()

    @classmethod
    def begin(cls, images: Mapping[int, Self]) -> list[Future[dict[int, NDArray[Any]]]]:
        """Read images in background threads. See `augment.data.image_refs.StoredImage`."""
        ref = next(iter(images.values())).ref
        if is_decoded(ref) and hasattr(ref, "begin"):
            begun = type(ref).begin({key: image.ref for key, image in images.items()})
            return [_readers().submit(_finish, images, part) for part in begun]
        together = min(8, -(-len(images) // cores()))
        waiting = iter(images.items())
        return [_readers().submit(_read_some, some) for some in iter(lambda: dict(islice(waiting, together)), {})]


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), "rasters")


def _read_some(
    images: Mapping[int, Raster], given: Mapping[int, NDArray[Any]] = MappingProxyType({})
) -> dict[int, NDArray[Any]]:
    found = {}
    for key, image in images.items():
        try:
            found[key] = image.filled(*image.read_stored(given.get(key)))
        except (OSError, UserError) as error:
            raise ImageError(key, f"data: {image.name} {describe_failure(error)}.") from error
    return found


def _finish(images: Mapping[int, Raster], begun: Future[dict[int, NDArray[Any]]]) -> dict[int, NDArray[Any]]:
    """Wait for pixels that other processes read."""
    given = begun.result()
    return _read_some({key: images[key] for key in given}, given)


def in_format(split: Split, pixels: PixelFormat) -> Split:
    """Return a split whose images are read in a pixel format. Images that DALI decodes as RGB stay as they are."""
    files: Any = tuple(map(encoded_ref, split.files)) if Raster in kinds_of(split.files) else split.files
    if pixels.is_rgb and pixels.nodata is None:
        seen = _look(files)
        # As before version 0.21, runs on 8-bit images read 16-bit PNG and TIFF with 8 bits.
        is_reduced = seen and seen.dtype != "uint8" and Path(seen.name).suffix.lower() in MIXED_EXTENSIONS
        if seen is None or is_decoded(files[0]) or is_reduced:
            return replace(split, files=files)
    rasters, targets = tuple(Raster(image, pixels) for image in files), split.targets
    if pixels.nodata is not None and split.kind == MASKS:  # pixels without data have no label
        pairs = zip(rasters, targets, strict=True)
        targets = tuple(replace(mask, image=raster) if isinstance(mask, MaskFile) else mask for raster, mask in pairs)
    return replace(split, files=rasters, targets=targets)


class _Seen(NamedTuple):
    """The pixels of an image that is not an ordinary encoded image."""

    name: str
    channels: int
    dtype: str


def _look(files: Sequence[ImageRef]) -> _Seen | None:
    """Return the pixels of the first readable image, or None for an ordinary image.

    Files whose names state an ordinary format are not read.

    Raises:
        UserError: none of the first images can be read.
    """
    faults = []
    for image in files[:10]:
        name = name_of(image)
        suffix = Path(name).suffix.lower()
        if hasattr(image, "stored_as"):  # the user's code may be slow, or count its calls
            return _Seen(name, *image.stored_as) if image.stored_as else None
        if not is_decoded(image) and suffix in EXTENSIONS - MIXED_EXTENSIONS - RASTER_EXTENSIONS:
            return None
        try:
            pixels = image.read_pixels() if is_decoded(image) else None
            content = b"" if is_decoded(image) else read_limited(image)
        except (OSError, UserError):
            continue
        if pixels is not None:
            return _Seen(name, pixels.shape[-1], pixels.dtype.name)
        if content and suffix not in RASTER_EXTENSIONS and is_ordinary(content):
            return None
        try:
            opened = open_raster(content)
            return _Seen(name, opened.shape[2], opened.dtype)
        except PixelsError as error:
            faults.append(f"data: {name} {error}.")
    if faults and Path(name_of(files[0])).suffix.lower() in RASTER_EXTENSIONS:
        raise UserError(faults[0])
    return None  # the check reports what is wrong


def find_format(source: Source, dataset: Dataset) -> Dataset:
    """Find the pixel format of a dataset by its first training image and the settings of its source.

    Ordinary 8-bit images stay RGB. The images of other datasets become rasters, and `Dataset.pixels` their format, with
    its range and statistics.

    Raises:
        UserError: a setting contradicts the images.
    """
    files = dataset.train.files
    with strict_pillow():
        seen = _look(files)
    pixels = _format(source, seen)
    if pixels == PixelFormat() and (seen is None or is_decoded(files[0])):
        return dataset
    notices: tuple[str, ...] = ()
    if not pixels.is_rgb:
        pixels, notices = _with_statistics(source, files, pixels)
    train, val = in_format(dataset.train, pixels), in_format(dataset.val, pixels)
    faults = dict(dataset.faults)
    faults |= {Raster(image, pixels): fault for image, fault in dataset.faults.items()}
    return replace(dataset, train=train, val=val, faults=faults, pixels=pixels).noting(*notices)


def _format(source: Source, seen: _Seen | None) -> PixelFormat:
    """Return the format without statistics. `data.range=auto` gets the default range for now."""
    if seen is None:
        channels, dtype = source.channels or 3, "uint8"
        if channels not in MODES:
            allowed = "1 (gray), 3, or 4 (with transparency)"
            raise UserError(f"data.channels={channels} does not suit ordinary 8-bit images. Allowed: {allowed}.")
    else:
        channels, dtype = seen.channels, seen.dtype
        if source.channels not in (None, channels):
            what = f"data.channels={source.channels}, but {seen.name} has {amount(channels, 'channel')}"
            raise UserError(f"{what}. Remove data.channels.")
    if dtype not in DTYPES:  # decoded images
        raise UserError(f"data: images have {dtype} pixels. Allowed: {', '.join(DTYPES)}.")
    rgb: tuple[Any, ...] | None = (0, 1, 2) if channels == 3 else None
    if source.rgb is not None:
        rgb = tuple(int(value) if value == int(value) else value for value in source.rgb)
        if fault := rgb_fault(rgb, channels):
            raise UserError(f"data.rgb is {fault}.")
    low, high = DTYPES[dtype]
    if isinstance(source.range, tuple):
        low, high = source.range
        if low >= high:
            raise UserError(f"data.range=[{low:g},{high:g}]: the first number must be smaller. Use [low, high].")
    is_bytes = dtype == "uint8" and (low, high) == DTYPES[dtype] and source.range != "auto"
    limits = {} if is_bytes else {"low": (low,) * channels, "high": (high,) * channels}
    if source.nodata is not None and (fault := nodata_fault(source.nodata, dtype)):
        raise UserError(f"data.nodata={fault}.")
    return PixelFormat(channels, dtype, rgb=rgb, nodata=source.nodata, **limits)


def _with_statistics(
    source: Source, files: Sequence[ImageRef], pixels: PixelFormat
) -> tuple[PixelFormat, tuple[str, ...]]:
    """Return the format with its range and statistics, and notices about them. They are cached."""

    def compute() -> str:
        samples = sample_values(files, pixels)
        found, notices = _with_range(source, samples, pixels)
        mean, std = _moments(samples, found)
        if constant := [str(channel) for channel, value in enumerate(std) if value == 0]:
            which = f"{plural(len(constant), 'channel')} {', '.join(constant)}"
            notices.append(
                f"data: all pixels of {which} are equal within data.range, so models learn nothing from them. Remove "
                "data.range, or set data.range=auto, unless they are constant"
            )
        found = replace(found, mean=mean, std=tuple(value or 1.0 for value in std))
        return json.dumps([found.plain, notices])

    def parse(line: str) -> tuple[PixelFormat, tuple[str, ...]]:
        plain, notices = json.loads(line)
        found = parse_format(plain, "pixels")
        if replace(found, low=pixels.low, high=pixels.high, mean=(), std=()) != pixels:
            raise ValueError("these are the statistics of another format")
        return found, tuple(map(str, notices))

    named = verdicts_of(source)
    settings = digest(named.name, pixels, source.range)
    images = list(map(encoded_ref, _some(files)))
    return remember_whole(images, compute, parse, named.with_name(f"pixels-{settings}.txt"))


def _some(files: Sequence[ImageRef]) -> list[ImageRef]:
    """Return evenly spaced images."""
    chosen = np.unique(np.linspace(0, len(files) - 1, min(_MOST_IMAGES, len(files))).astype(np.int64))
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
    most = max(1, _MOST_VALUES // (pixels.channels * len(images)))

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
                fix = "Set data.range=auto, or data.range=[low,high] to the values that become black and white"
                raise UserError(f"data: {what}, but floating-point images need values from 0 to 1. {fix}.")
    limits = [_limits(column[~np.isnan(column)]) for column in _joined(samples, pixels.channels).T]
    low, high = zip(*limits, strict=True)
    if source.range == "auto":
        return replace(pixels, low=low, high=high), []
    first, last = (pixels.low[0], pixels.high[0]) if pixels.low else DTYPES["uint8"]
    if max(high) - min(low) >= _USED * (last - first):
        return pixels, []
    what = f"data: the images use values from {min(low):g} to {max(high):g}, a small part of the range"
    return pixels, [f"{what} from {first:g} to {last:g}. Set data.range=auto"]


def _limits(values: NDArray[np.float32]) -> tuple[float, float]:
    """Return the lowest and the highest value of a channel, apart from outliers."""
    if not values.size:
        return 0.0, 1.0
    low, high = np.percentile(values, _PERCENTILES).tolist()
    if low == high:
        low, high = float(values.min()), float(values.max())
    return (low, high) if low < high else (low, low + max(1.0, abs(low)))


def measure(files: Sequence[ImageRef], pixels: PixelFormat) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel in 0..1, from the pixels that `sample_values` reads.

    Pixels without data do not count. The standard deviation of a constant channel is 0.
    """
    return _moments(sample_values(files, pixels), pixels)


def _moments(samples: Sequence[ValueSample], pixels: PixelFormat) -> tuple[tuple[float, ...], tuple[float, ...]]:
    levels = pixels.levels(_joined(samples, pixels.channels)).astype(np.float64)
    shares = np.ma.masked_invalid(levels) / 255
    mean, std = (np.ma.filled(moment, 0) for moment in (shares.mean(axis=0), shares.std(axis=0)))
    return tuple(mean.tolist()), tuple(np.where(std > 1e-6, std, 0).tolist())  # below 1e-6: rounding
