"""Images whose pixels are not 8-bit RGB, and how they are read."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import Split
from augment.data.formats.folder import EXTENSIONS
from augment.data.formats.raster_files import MIXED_EXTENSIONS, RASTER_EXTENSIONS, is_ordinary, open_raster
from augment.data.image_faults import PixelsError, describe_failure
from augment.data.images import ImageError, ImageRef, encoded_ref, is_decoded, kinds_of, name_of, read_encoded
from augment.data.targets.masks import MASKS, MaskFile
from augment.params.pixel_format import PixelFormat
from augment.support.errors import UserError
from augment.support.nested import chunks
from augment.support.process import cores


@dataclass(frozen=True, slots=True)
class Raster:
    """An image that is read as an array in a pixel format. See `augment.data.images.DecodedImage`."""

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
        pixels = self.pixels
        return str(pixels) if pixels.nodata is None else f"{pixels} {pixels.nodata} {pixels.low}"

    def read_pixels(self) -> NDArray[Any]:
        """Return (height, width, channels) in the format's data type. Pixels without data hold `PixelFormat.low`.

        Raises:
            OSError: the file cannot be read.
            UserError: the image has a different format, or infinite or NaN values.
        """
        return self.filled(*self.read_stored())

    def filled(self, stored: NDArray[Any], empty: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Return stored values with `PixelFormat.low` where they mean no data.

        Raises:
            UserError: other values are infinite or NaN.
        """
        found = stored if empty is None or not empty.any() else np.where(empty, self.pixels.empty_value, stored)
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise PixelsError(
                "has infinite values or NaN. Replace them. If NaN means no data, set data.nodata to any number"
            )
        return np.ascontiguousarray(found)  # as DALI expects

    def read_stored(self, given: NDArray[Any] | None = None) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return the stored values, (height, width, channels), and which of them mean no data, or None without nodata.

        `given` contains the pixels of a decoded image if they have already been read.

        Raises:
            OSError: the file cannot be read.
            UserError: the image has another format.
        """
        pixels = self.pixels
        if is_decoded(self.ref):
            found = self.ref.read_pixels() if given is None else given
            self._require(found.shape, found.dtype.name)
            found = found.astype(pixels.dtype, copy=False)  # in the byte order of the machine
        else:
            content = read_encoded(self.ref)
            opened = open_raster(content, pixels.channels)
            # The message does not state the number of channels, because `open_raster` may have converted them.
            if opened.dtype != pixels.dtype and is_ordinary(content):
                raise PixelsError(f"is an ordinary 8-bit image instead of {pixels}")
            self._require(opened.shape, opened.dtype)
            found = opened.load()
        if pixels.nodata is None:
            return found, None
        empty: NDArray[np.bool_] = found == found.dtype.type(pixels.nodata)
        if found.dtype.kind == "f":
            empty = empty | np.isnan(found)
        return found, empty

    def read_empty(self) -> NDArray[np.bool_] | None:
        """Return where no channel has data, (height, width), or None if the format has no `PixelFormat.nodata`."""
        empty = None if self.pixels.nodata is None else self.read_stored()[1]
        return None if empty is None else np.asarray(empty.all(axis=2))

    def _require(self, shape: tuple[int, ...], dtype: str) -> None:
        if len(shape) != 3 or (shape[2], dtype) != (self.pixels.channels, self.pixels.dtype):
            raise PixelsError(f"has {PixelFormat(shape[-1], dtype)} instead of {self.pixels}")

    def read(self) -> bytes:
        """Return the stored values as an .npy file."""
        stream = BytesIO()
        np.save(stream, self.read_stored()[0])
        return stream.getvalue()

    @classmethod
    def begin(cls, images: Mapping[int, Self]) -> list[Future[dict[int, NDArray[Any]]]]:
        """Read images in background threads. See `augment.data.images.StoredImage`."""
        ref = next(iter(images.values())).ref
        if is_decoded(ref) and hasattr(ref, "begin"):
            begun = type(ref).begin({key: image.ref for key, image in images.items()})
            return [_readers().submit(_finish, images, part) for part in begun]
        most = min(8, -(-len(images) // cores()))
        return [_readers().submit(_read_some, dict(chunk)) for chunk in chunks(list(images.items()), most)]


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
        first = first_pixels(files)
        # A dataset of 8-bit images may contain 16-bit PNGs and TIFFs. They are reduced to 8 bits.
        is_reduced = first and first.dtype != "uint8" and Path(first.name).suffix.lower() in MIXED_EXTENSIONS
        if first is None or is_decoded(files[0]) or is_reduced:
            return replace(split, files=files)
    rasters, targets = tuple(Raster(image, pixels) for image in files), split.targets
    if pixels.nodata is not None and split.kind == MASKS:  # pixels without data have no label
        pairs = zip(rasters, targets, strict=True)
        targets = tuple(replace(mask, image=raster) if isinstance(mask, MaskFile) else mask for raster, mask in pairs)
    return replace(split, files=rasters, targets=targets)


class StoredPixels(NamedTuple):
    """How the pixels of an image are stored."""

    name: str
    channels: int
    dtype: str


def first_pixels(files: Sequence[ImageRef]) -> StoredPixels | None:
    """Return how the pixels of the first readable image are stored, or None for an ordinary image.

    Files whose names state an ordinary format are not read.

    Raises:
        UserError: the first file may be a raster, by its extension, but none of the first files has a supported format.
    """
    faults = []
    for image in files[:10]:
        name = name_of(image)
        suffix = Path(name).suffix.lower()
        if hasattr(image, "stored_as"):  # the user's code may be slow, or count its calls
            return StoredPixels(name, *image.stored_as) if image.stored_as else None
        if not is_decoded(image) and suffix in EXTENSIONS - MIXED_EXTENSIONS - RASTER_EXTENSIONS:
            return None
        try:
            content = image.read_pixels() if is_decoded(image) else read_encoded(image)
        except (OSError, UserError):
            continue
        if isinstance(content, np.ndarray):
            return StoredPixels(name, content.shape[-1], content.dtype.name)
        if content and suffix not in RASTER_EXTENSIONS and is_ordinary(content):
            return None
        try:
            opened = open_raster(content)
            return StoredPixels(name, opened.shape[2], opened.dtype)
        except PixelsError as error:
            faults.append(f"data: {name} {error}.")
    if faults and Path(name_of(files[0])).suffix.lower() in RASTER_EXTENSIONS | MIXED_EXTENSIONS:
        raise UserError(faults[0])
    return None  # the check reports what is wrong
