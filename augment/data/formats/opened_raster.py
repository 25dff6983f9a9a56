"""The result of reading the header of an encoded image, and what the readers of all formats share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from augment.data.image_faults import PixelsError
from augment.data.images import MIRRORED, SIDEWAYS

Content = bytes | memoryview

# Maximum size of a decoded image in bytes.
MAX_DECODED_BYTES = 2**31


@dataclass(frozen=True)
class OpenedRaster:
    """An encoded image whose header has been read, but not its pixels.

    Attributes:
        shape: height, width and number of channels. An EXIF orientation may swap height and width.
        dtype: name of the data type of its decoded pixels.
        load: decodes the pixels, (height, width, channels), and turns them upright.
        orientation: the orientation of the stored pixels, if Pillow cannot open the image. 1 is upright.
    """

    shape: tuple[int, int, int]
    dtype: str
    load: Callable[[], NDArray[Any]]
    orientation: int = 1


def with_channels(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return height, width and number of channels of an array's shape."""
    if len(shape) not in (2, 3):
        raise PixelsError(f"has the shape {shape}. Allowed: (height, width) or (height, width, channels)")
    return (shape[0], shape[1], shape[2] if len(shape) == 3 else 1)


def upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Make stored pixels, (height, width, ...), upright, given their EXIF orientation."""
    if orientation == 1:
        return pixels
    turned = pixels.swapaxes(0, 1) if orientation >= SIDEWAYS else pixels
    x, y = (slice(None, None, -1 if orientation in mirrored else 1) for mirrored in MIRRORED)
    return turned[y, x]
