"""Scan all images: the size and format of each, and hashes of its bytes and of its looks."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from augment.data.dataset import ImageRef
from augment.data.faults import DECODER_ERRORS, FORMATS, find_fault, strict_pillow
from augment.data.images import is_decoded, read_encoded
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.timing import cores
from augment.tools.info.luma import BLANK, perceptual_hash, read_luma

DECODED = "decoded"  # stands for the format of raw pixels

# What is known of an image: its size when upright; its mode as stored; its EXIF orientation (1: upright); a hash of
# its bytes and one of its looks (`augment.tools.info.luma`); whether it has a single color. All fields are zero if the
# image cannot be used.
FACTS = np.dtype(
    [
        ("good", "?"),
        ("width", "u4"),
        ("height", "u4"),
        ("bytes", "u8"),
        ("format", "U8"),
        ("mode", "U8"),
        ("orientation", "u1"),
        ("digest", "u8"),
        ("shown", "u8"),
        ("blank", "?"),
    ]
)

_SIDEWAYS = 5  # the first of the EXIF orientations that swap width and height
_THREADS = 8
_CHUNK = 64
_PROGRESS_FROM = 500  # images


@dataclass(frozen=True)
class Scan:
    """The result of a scan of N images.

    Attributes:
        facts: (N,) `FACTS`.
        faults: the reason why an image cannot be used, by index.
    """

    facts: NDArray[Any]
    faults: Mapping[int, str]


def scan_images(images: Sequence[ImageRef]) -> Scan:
    """Scan images.

    Each image is read once, validated as before training (`augment.data.check`) and decoded, JPEGs at an eighth of
    their size where that is enough. About a hundred bytes are kept per image; beyond that, each thread needs memory for
    one image.
    """
    facts = np.zeros(len(images), FACTS)
    faults: dict[int, str] = {}
    starts = range(0, len(images), _CHUNK)

    def scan_chunk(start: int) -> list[tuple[Any, ...] | str]:
        return [_scan_image(image) for image in images[start : start + _CHUNK]]

    with (
        strict_pillow(),
        progress_bar(quiet=len(images) <= _PROGRESS_FROM) as progress,
        in_threads(scan_chunk, starts, max(_THREADS, cores())) as scanned,
    ):
        task = progress.add_task("Scanning images", total=len(images))
        for start, found in zip(starts, scanned, strict=True):
            for index, known in enumerate(found, start):
                if isinstance(known, str):
                    faults[index] = known
                else:
                    facts[index] = known
            progress.advance(task, len(found))
    return Scan(facts, faults)


def _scan_image(ref: ImageRef) -> tuple[Any, ...] | str:
    """Return the `FACTS` of an image, or the reason why it cannot be used."""
    try:
        if is_decoded(ref):
            pixels = np.ascontiguousarray(ref.read_pixels())
            return _facts(Image.fromarray(pixels), pixels.data.cast("B"), DECODED)
        data = read_encoded(ref)
        fault = find_fault(BytesIO(data))
        if fault:
            return fault
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            return _facts(image, data, image.format or "")
    except DECODER_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            return f"cannot be read: {error.strerror or error}"
        return f"is broken: {error or type(error).__name__}"
    except UserError as error:  # raised by a user's own source
        return f"fails: {error}"
    except MemoryError:
        return "needs more memory to decode than is available"


def _facts(image: Image.Image, data: bytes | memoryview, form: str) -> tuple[Any, ...]:
    width, height = image.size
    mode = image.mode
    if "transparency" in image.info and mode in ("L", "P", "RGB"):
        mode += "A"  # a transparent color or palette entry
    orientation = 1
    with suppress(*DECODER_ERRORS):  # a corrupt EXIF block rotates nothing
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
        orientation = found if found in range(1, 9) else 1
    if orientation >= _SIDEWAYS:
        width, height = height, width
    luma = read_luma(image, orientation)
    digest = int.from_bytes(blake2b(data, digest_size=8).digest())
    blank = float(luma.std()) < BLANK
    return True, width, height, len(data), form, mode, orientation, digest, perceptual_hash(luma), blank
