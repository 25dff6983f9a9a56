"""Decode images with any number of channels: NumPy arrays, TIFF, 16-bit PNG, DICOM, and 8-bit images.

The content of a file decides how it is decoded. Sizes are checked before pixels are unpacked. `npy_files`, `tiff` and
`dicom` read the formats with a module of their own.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import BytesIO
from math import prod
from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from augment.data.formats.dicom import open_dicom
from augment.data.formats.npy_files import open_npy, open_npz
from augment.data.formats.opened_raster import MAX_DECODED_BYTES, Content, OpenedRaster, upright
from augment.data.formats.tiff import is_ordinary_tiff, open_tiff, samples
from augment.data.image_faults import (
    DECODER_ERRORS,
    MAX_PIXELS,
    NOT_DECODED,
    PixelsError,
    describe_failure,
    exif_of_png,
)
from augment.data.images import (
    ImageRef,
    encoded_ref,
    is_decoded,
    open_image,
    open_with_pillow,
    orientation_of,
    read_encoded,
    read_exif,
)
from augment.params.param_types import MAX_CHANNELS
from augment.params.pixel_format import DTYPES
from augment.support.errors import UserError, first_line
from augment.support.formatting import amount

# Extensions of the formats that only this module and its readers decode.
RASTER_EXTENSIONS = frozenset({".npy", ".npz", ".dcm"})

# Extensions of formats that may hold 8-bit or other images. The content of a file decides.
MIXED_EXTENSIONS = frozenset({".png", ".tif", ".tiff"})

# The modes to which Pillow converts ordinary 8-bit images.
MODES = {1: "L", 3: "RGB", 4: "RGBA"}

# Data types that are converted to a supported type.
_READ_AS = {"float16": "float32", "float64": "float32"}

# The first bytes of TIFF files.
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def stored_orientation(image: ImageRef) -> int:
    """Return the orientation that makes an image's stored pixels upright, 1 to 8. Targets are in stored pixels.

    The images that `open_image` makes of rasters are already upright, so they have no orientation.
    """
    image = encoded_ref(image)
    if is_decoded(image):
        return 1
    with suppress(*DECODER_ERRORS, UserError), open_image(image) as opened:
        return orientation_of(opened)
    with suppress(*DECODER_ERRORS, UserError):  # Pillow does not open it
        return open_raster(read_encoded(image)).orientation
    return 1


def is_ordinary(content: Content) -> bool:
    """Return whether an encoded image has 1, 3 or 4 channels of at most 8 bits, as its header states."""
    return _opener(content) is None


def open_raster(content: Content, channels: int = 3) -> OpenedRaster:
    """Read the header of an encoded image.

    Args:
        content: the encoded image.
        channels: number of channels to which an ordinary 8-bit image is converted, a key of `MODES`.

    Raises:
        PixelsError: the image is damaged, too large, or has a data type that is not supported.
        UserError: a package is missing.
    """
    if not content:
        raise PixelsError("is empty (0 bytes)")
    with _faults():
        opener = _opener(content)
        return _checked(opener(content) if opener else _open_ordinary(content, channels))


def _opener(content: Content) -> Callable[[Content], OpenedRaster] | None:
    """Return the function that opens an image, or None for an ordinary image."""
    head = bytes(content[:132])
    if head.startswith(b"\x93NUMPY"):
        return open_npy
    if head.startswith(b"PK\x03\x04"):
        return open_npz
    if head[128:] == b"DICM":
        return open_dicom
    if head.startswith(b"\x89PNG") and head[24:25] == b"\x10":
        return _open_png
    return open_tiff if head.startswith(_TIFF) and not is_ordinary_tiff(content) else None


def _checked(opened: OpenedRaster) -> OpenedRaster:
    """Reject unusual sizes and data types before the pixels are decoded."""
    dtype = _READ_AS.get(opened.dtype, opened.dtype)
    if dtype not in DTYPES:
        raise PixelsError(f"has {opened.dtype} pixels. Save it as one of {', '.join(DTYPES)}")
    height, width, channels = opened.shape
    if is_channels_first(opened.shape):
        raise PixelsError(f"has the shape {opened.shape}. Save it with its channels last: numpy.moveaxis(image, 0, 2)")
    if not (0 < channels <= MAX_CHANNELS and height > 0 and width > 0):
        raise PixelsError(f"has the shape {opened.shape}. Allowed: (height, width, 1 to {MAX_CHANNELS} channels)")
    if height * width > MAX_PIXELS or prod(opened.shape) * np.dtype(dtype).itemsize > MAX_DECODED_BYTES:
        raise PixelsError(
            f"claims {width} x {height} pixels with {amount(channels, 'channel')}. The limit is {MAX_PIXELS:,} pixels "
            f"and {MAX_DECODED_BYTES:,} bytes"
        )

    def load() -> NDArray[Any]:
        with _faults(), np.errstate(over="ignore"):
            found = np.asarray(opened.load(), dtype)  # in the byte order of the machine
            return found if found.ndim == 3 else found[:, :, None]

    return replace(opened, dtype=dtype, load=load)


def is_channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether a shape, (height, width, channels), is probably (channels, height, width)."""
    height, width, channels = shape
    return height != width and (height <= 4 < channels or height <= MAX_CHANNELS < channels)


@contextmanager
def _faults() -> Iterator[None]:
    """Turn the errors of decoders, which have many types, into a `PixelsError`."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise PixelsError(describe_failure(error)) from None
    except UnidentifiedImageError:
        raise PixelsError(NOT_DECODED) from None
    except Exception as error:
        raise PixelsError(f"is broken: {first_line(error)}") from error


def _open_png(content: Content) -> OpenedRaster:
    """Open a 16-bit PNG. Pillow would reduce colors to 8 bits."""
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[content[25]]
    if b"IEND" not in bytes(content):
        raise PixelsError("is broken: it ends early")
    if channels == 2:
        raise PixelsError("is a 16-bit PNG with gray and transparency. Save it without transparency, or as TIFF")
    width, height = (int.from_bytes(content[start : start + 4]) for start in (16, 20))
    return OpenedRaster((height, width, channels), "uint16", lambda: _decode_png(content))


_OWN = local()  # each thread has its own decoder


def decode_on_cpu(content: Content, *, unchanged: bool) -> Any:
    """Decode an image with nvImageCodec, `unchanged` or to upright 8-bit RGB like DALI. Return None if it is damaged.

    Raises:
        RuntimeError: the header cannot be read.
    """
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "1")  # no warnings about bad images
    from nvidia import nvimgcodec as codec

    if not hasattr(_OWN, "decoder"):
        _OWN.decoder = codec.Decoder(codec.NVIMGCODEC_DEVICE_CPU_ONLY, 1, [codec.Backend(codec.CPU_ONLY)])
    colors = codec.ColorSpec.UNCHANGED if unchanged else codec.ColorSpec.SRGB
    # nvImageCodec rotates images with four unchanged channels wrongly.
    params = codec.DecodeParams(color_spec=colors, allow_any_depth=unchanged, apply_exif_orientation=not unchanged)
    (decoded,) = _OWN.decoder.decode([codec.CodeStream(content)], params=params)
    return decoded


def _decode_png(content: Content) -> NDArray[Any]:
    decoded = decode_on_cpu(content, unchanged=True)
    if decoded is None:
        raise PixelsError("is broken, or a PNG variant that is not supported")
    block = next(iter(exif_of_png(bytes(content))), b"")
    return upright(np.asarray(decoded.cpu()), read_exif(block) or 1)


def _open_ordinary(content: Content, channels: int) -> OpenedRaster:
    image = open_with_pillow(BytesIO(content))
    if image.mode.startswith(("I", "F")):
        raise PixelsError(f"is a {image.format} with more than 8 bits per channel. Save it as 16-bit PNG or TIFF")
    if channels == 4 and image.format == "TIFF" and samples(image) == 4:
        return open_tiff(content)  # the fourth channel may be near infrared, which Pillow drops
    mode = MODES.get(channels, "RGB")

    def load() -> NDArray[Any]:
        turn = 1 if image.format == "TIFF" else orientation_of(image)  # Pillow rotates TIFFs automatically
        shown = image.convert("RGBA") if image.mode == "P" else image
        return upright(np.asarray(shown.convert(mode)), turn)

    return OpenedRaster((image.height, image.width, len(mode)), "uint8", load)
