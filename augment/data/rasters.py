"""Images with other pixels than 8-bit RGB: their files, and how they are found and read."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import NDArray

from augment.data.dataset import Dataset, Split
from augment.data.image_refs import ImageRef
from augment.data.images import name_of
from augment.params.pixel_format import PixelFormat

if TYPE_CHECKING:
    from augment.data.sources.registry import Source


@dataclass(frozen=True, slots=True)
class Raster:
    """An image that is read as an array in a pixel format. See `augment.data.image_refs.DecodedImage`."""

    ref: ImageRef
    pixels: PixelFormat

    @property
    def name(self) -> str:
        """The name of the file."""
        return name_of(self.ref)

    def read_pixels(self) -> NDArray[Any]:
        """Return (height, width, channels) in the format's data type. Pixels without data hold `PixelFormat.low`.

        Raises:
            OSError: the file cannot be read.
            UserError: the image has another format, or infinite or NaN values.
        """
        raise NotImplementedError

    def read(self) -> bytes:
        """Return the image as an .npy file."""
        raise NotImplementedError

    @classmethod
    def begin(cls, images: Mapping[int, Self]) -> list[Future[dict[int, NDArray[Any]]]]:
        """Read images in background threads. See `augment.data.image_refs.StoredImage`."""
        raise NotImplementedError


def in_format(split: Split, pixels: PixelFormat) -> Split:
    """Return a split whose images are read in a pixel format. RGB images stay as they are."""
    if pixels.is_rgb:
        return split
    files = tuple(Raster(image.ref if isinstance(image, Raster) else image, pixels) for image in split.files)
    return replace(split, files=files)


def find_format(source: "Source", dataset: Dataset) -> Dataset:
    """Find the pixel format of a dataset by its first training image and the settings of its source.

    Ordinary 8-bit images stay RGB. The images of other datasets become rasters, and `Dataset.pixels` their format, with
    its range and statistics.

    Raises:
        UserError: a setting contradicts the images.
    """
    return dataset


def measure(files: Sequence[ImageRef], pixels: PixelFormat) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel in 0..1, from at most 1,000 of the images."""
    raise NotImplementedError
