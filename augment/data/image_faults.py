"""Faults of encoded images that the header reveals, or that Pillow finds when it decodes the image."""

import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from augment.data.images import open_with_pillow, read_exif, to_rgb
from augment.support.errors import UserError

# Width times height, 537 MB as RGB. Pillow also rejects larger images as decompression bombs.
MAX_PIXELS = 178_956_970

# Pillow's names of the formats that DALI decodes. The content of a file determines its format, not its name.
DECODABLE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "JPEG2000", "PPM")

# The fault of images in other formats.
NOT_DECODED = "is not an image that DALI decodes"

# The fault of images that DALI and Pillow decode differently, and the tolerated difference in levels.
DIFFERS = "that programs decode differently"
TOLERANCE = 2

# The fault of images that no program should decode.
SLOW = "and decoding it takes minutes"

# The remedy for images in other formats.
CONVERT = "python -m augment convert turns images that Pillow can open into JPEG (HEIC: pip install pillow-heif)"

_JPEG_END = b"\xff\xd9"
_JPEG_MAX_SIDE = 65_500  # the limit of libjpeg. The JPEG format allows 65,535
_MAX_SCANS = 20  # the limit for a JPEG with `MAX_PIXELS` pixels. Smaller JPEGs may have more. Encoders write up to 18

_PNG_HEADER = 65536  # bytes in which a PNG states that it is animated, unless its color profile is larger

# Pillow's exceptions for truncated or damaged files, and for files that exceed its size limit.
DECODER_ERRORS = (
    OSError, SyntaxError, ValueError, ArithmeticError, LookupError, EOFError, TypeError, AttributeError, AssertionError,
    RuntimeError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip


class PixelsError(UserError):
    """The fault of an image, as a predicate such as "has 3 channels"."""


def find_fault(stream: BytesIO) -> str | None:
    """Return the fault of an encoded image that Pillow finds, or None.

    For JPEG, this checks the header and the end marker. Without an end marker, the image is decoded. For PNG, it checks
    the checksums, and for WebP the container. Images in rarer formats are decoded.

    Raises:
        OSError: the file cannot be read.
    """
    return _examine(stream, _find_damage)[0]


def find_fault_of_header(content: bytes | memoryview) -> tuple[str | None, int]:
    """Return the fault that an image's header reveals, or None, and the number of pixels, width times height.

    Pillow also decodes images in rarer formats, because DALI reads damaged TIFFs without an error, and a damaged
    JPEG 2000 file can crash it.
    """
    pixels, _, blocks = _read_jpeg(content)
    if 0 < pixels <= MAX_PIXELS:
        return _fault_of_scans(content, pixels) or _fault_of_exif(blocks), pixels
    return _examine(BytesIO(content), _load_rare)


def is_rare(content: bytes | memoryview) -> bool:
    """Return whether an image has a format with many variants, which programs may decode differently."""
    if content[:2] == b"\xff\xd8":
        return _read_jpeg(content)[1] > 3  # CMYK, which some programs store inverted
    # Of an animated PNG, DALI may decode another frame than Pillow.
    return content[:4] not in (b"\x89PNG", b"RIFF") or b"acTL" in bytes(content[:_PNG_HEADER])


def find_difference(content: bytes | memoryview, decoded: NDArray[np.uint8] | None) -> str | None:
    """Return the fault of an image in a rare format, or None.

    Args:
        content: the encoded image.
        decoded: its pixels from DALI. None: DALI cannot decode it.
    """
    if decoded is None:
        return describe_damage(BytesIO(content))
    with suppress(*DECODER_ERRORS), open_with_pillow(BytesIO(content), DECODABLE_FORMATS) as image:
        expected = np.asarray(to_rgb(image), np.int16)
        if expected.shape == decoded.shape and np.abs(expected - decoded).max(initial=0) <= TOLERANCE:
            return None
        return f"is a {image.format} of mode {image.mode} {DIFFERS}. Save it as 8-bit PNG"
    return f"is an image {DIFFERS}. Save it as 8-bit PNG"


def _read_jpeg(content: bytes | memoryview) -> tuple[int, int, list[bytes]]:
    """Read a JPEG's header faster than Pillow does.

    Returns:
        Width times height (0 if the JPEG is unusual), number of channels, and EXIF blocks.
    """
    pixels, channels, blocks = 0, 0, list[bytes]()
    start, end = 2 if content[:2] == b"\xff\xd8" else len(content), len(content) - 9
    while start < end and content[start] == 0xFF and (marker := content[start + 1]) != 0xDA:  # 0xDA: the pixels begin
        if marker == 0xFF:  # a fill byte
            start += 1
            continue
        after = start + 2 + int.from_bytes(content[start + 2 : start + 4])
        if marker in (0xC0, 0xC1, 0xC2):  # a frame: baseline, extended, progressive
            bits, height, width, channels = struct.unpack_from(">BHHB", content, start + 4)
            pixels = height * width if bits == 8 and max(height, width) <= _JPEG_MAX_SIDE else 0
        elif marker == 0xE1 and content[start + 4 : start + 10] == b"Exif\0\0":
            blocks.append(bytes(content[start + 10 : after]))
        start = after
    return pixels, channels, blocks


def exif_of_png(content: bytes) -> list[bytes]:
    """Return the EXIF blocks of a PNG."""
    start, blocks = 8, list[bytes]()
    while start < len(content):
        size = int.from_bytes(content[start : start + 4])
        if content[start + 4 : start + 8] == b"eXIf":
            blocks.append(content[start + 8 : start + 8 + size])
        start += 12 + size
    return blocks


def _fault_of_exif(blocks: Sequence[bytes]) -> str | None:
    """Return the fault of an image with invalid EXIF blocks, which can crash DALI."""
    if len(blocks) > 1 or not all(map(read_exif, blocks)):
        return "has several EXIF blocks or a damaged one, so programs rotate it differently. Save it without EXIF"
    return None


def _fault_of_scans(content: bytes | memoryview, pixels: int) -> str | None:
    """Return the fault of a JPEG with so many scans over its pixels that decoding it takes minutes."""
    most = _MAX_SCANS * MAX_PIXELS // pixels
    # A scan takes at least 10 bytes. Counting takes 0.1 ms for 100 kB, so small images are not counted.
    if content[:2] != b"\xff\xd8" or len(content) < 10 * most or (scans := bytes(content).count(b"\xff\xda")) <= most:
        return None
    return f"has {scans:,} scans, {SLOW}. Save it again as JPEG"


def _examine(
    stream: BytesIO, find_damage: Callable[[ImageFile.ImageFile, BytesIO], str | None]
) -> tuple[str | None, int]:
    """Return the fault of an image, or None, and its number of pixels. `find_damage` runs if no other check fails."""
    if not stream.read(1):
        return "is empty (0 bytes)", 0
    try:
        image = open_with_pillow(stream, DECODABLE_FORMATS)
        blocks = exif_of_png(stream.getvalue()) if image.format == "PNG" else _read_jpeg(stream.getvalue())[2]
        fault = (
            _fault_of_opened(image)
            or _fault_of_scans(stream.getbuffer(), image.width * image.height)
            or _fault_of_exif(blocks or [image.info.get("exif", b"")])
        )
        return fault or find_damage(image, stream), image.width * image.height
    except UnidentifiedImageError:
        return f"{NOT_DECODED}. Allowed: {', '.join(DECODABLE_FORMATS)}", 0
    except DECODER_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        return describe_failure(error), 0


def describe_failure(error: BaseException) -> str:
    """Return the fault of an image that could not be read or decoded."""
    if isinstance(error, PixelsError):
        return str(error)
    if isinstance(error, UserError):  # from a user's own code
        return f"fails: {error}"
    if isinstance(error, MemoryError):
        return "needs more memory to decode than is available"
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, Image.DecompressionBombError):
        return _describe_huge()
    return f"is broken: {error or type(error).__name__}"


def _describe_huge() -> str:
    return f"claims more than the limit of {MAX_PIXELS:,} pixels"


def describe_damage(stream: BytesIO) -> str:
    """Return the fault of an image that DALI cannot decode. If Pillow also fails, the fault is Pillow's message."""

    def load(image: ImageFile.ImageFile, _: BytesIO) -> str:
        image.load()
        return f"is broken, or a {image.format} variant that DALI does not decode"

    return str(_examine(stream, load)[0])


def _fault_of_opened(image: ImageFile.ImageFile) -> str | None:
    """Return the fault that the header of an opened image reveals, or None."""
    if image.width * image.height > MAX_PIXELS:
        return _describe_huge()
    if image.format == "PPM" and image.tile:
        args = image.tile[0][3]
        levels = args[-1] if isinstance(args, tuple) and isinstance(args[-1], int) else 255
        # DALI supports only these numbers of levels. It reads 1,023 levels as the darkest of 65,535.
        if levels > 0 and levels not in (1, 255, 65535):
            return f"is a PPM variant that DALI does not decode (levels from 0 to {levels})"
    if image.format == "TIFF" and image.mode in ("I", "LA", "PA"):  # DALI mixes alpha with the levels
        return f"is a TIFF variant that DALI does not decode (mode {image.mode})"
    if image.format == "TIFF" and image.mode == "F":
        floats = np.asarray(image)
        low, high = float(floats.min()), float(floats.max())
        if not 0 <= low <= high <= 1:  # all values above 1 would become white
            return f"is a float TIFF with values from {low:.3g} to {high:.3g}. Scale them to 0 (black) to 1 (white)"
    return None


def _find_damage(image: ImageFile.ImageFile, stream: BytesIO) -> str | None:
    """Return the fault of an image with a valid header, or raise Pillow's error. Use the cheapest test."""
    if image.format == "PNG":
        image.verify()  # checks all checksums except the end chunk
        stream.seek(0)
        return None if b"IEND\xae\x42\x60\x82" in stream.read() else "is broken: it ends early"
    if image.format == "WEBP":  # Pillow validated the container when it opened the image
        return None
    if image.format in ("JPEG", "MPO") and image.tile and max(image.size) <= _JPEG_MAX_SIDE:
        stream.seek(-len(_JPEG_END), os.SEEK_END)
        if stream.read() == _JPEG_END:
            return None
    image.load()
    return None


def _load_rare(image: ImageFile.ImageFile, _: BytesIO) -> None:
    """Decode an image in a rare format, or raise Pillow's error.

    For the other formats, DALI's CPU decoder finds all damage that Pillow finds, and more.
    """
    if image.format not in ("JPEG", "MPO", "PNG", "WEBP"):
        image.load()


@contextmanager
def strict_pillow() -> Iterator[None]:
    """Make Pillow silent and independent of global settings. Images with more than `MAX_PIXELS` pixels fail."""
    max_pixels, truncated = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = MAX_PIXELS // 2, False  # Pillow allows twice as many
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = max_pixels, truncated
