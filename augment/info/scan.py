"""A pass over all pictures: of each its size, format, a hash of its bytes and one of what it shows."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.check import DECODER_ERRORS, FORMATS, find_fault, strict_pillow
from augment.dataset import Picture
from augment.errors import UserError
from augment.info.luma import BLANK, perceptual_hash, read_luma
from augment.progress import progress_bar
from augment.stored import is_raw, read_encoded

DECODED = "decoded"  # in place of a format

# What is known of a picture: its sides in pixels and its mode as they are stored; the EXIF note by which it is turned
# (1: it is not); a hash of its bytes, and one of what it shows (`augment.info.luma`); whether it is of one color.
# All is zero where the picture cannot be used.
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

_ORIENTATION = 0x0112
_SIDEWAYS = 5  # the first of the orientations in which width and height change places
_THREADS = 8
_CHUNK = 64
_PROGRESS_FROM = 500  # pictures


@dataclass(frozen=True)
class Scan:
    """What was found.

    Attributes:
        facts: (N,) `FACTS`.
        faults: what is wrong with the pictures that cannot be used, by place.
    """

    facts: NDArray[Any]
    faults: Mapping[int, str]

    @property
    def width(self) -> NDArray[np.int64]:
        """(N,) as shown: upright."""
        return self._side("width", "height")

    @property
    def height(self) -> NDArray[np.int64]:
        """(N,) as shown: upright."""
        return self._side("height", "width")

    def _side(self, upright: str, sideways: str) -> NDArray[np.int64]:
        turned = self.facts["orientation"] >= _SIDEWAYS
        return np.where(turned, self.facts[sideways], self.facts[upright]).astype(np.int64)


def scan(pictures: Sequence[Picture]) -> Scan:
    """Look at pictures.

    Each is read once, judged as before training (`augment.check`), and decoded: a JPEG at an eighth of its size where
    that is enough. A hundred bytes are kept of each; memory beyond that is what a few threads need for a picture each.
    """
    facts = np.zeros(len(pictures), FACTS)
    faults: dict[int, str] = {}
    starts = range(0, len(pictures), _CHUNK)
    pool = ThreadPoolExecutor(max(_THREADS, len(os.sched_getaffinity(0))))
    with strict_pillow(), progress_bar(quiet=len(pictures) <= _PROGRESS_FROM) as progress:
        task = progress.add_task("Looking at pictures", total=len(pictures))
        try:
            for start, found in zip(starts, pool.map(_look_at, _chunks(pictures, starts)), strict=True):
                for place, known in enumerate(found, start):
                    if isinstance(known, str):
                        faults[place] = known
                    else:
                        facts[place] = known
                progress.advance(task, len(found))
        finally:
            pool.shutdown(cancel_futures=True)
    return Scan(facts, faults)


def _chunks(pictures: Sequence[Picture], starts: range) -> Iterator[Sequence[Picture]]:
    return (pictures[start : start + _CHUNK] for start in starts)


def _look_at(pictures: Sequence[Picture]) -> list[tuple[Any, ...] | str]:
    return [_look(picture) for picture in pictures]


def _look(picture: Picture) -> tuple[Any, ...] | str:
    """Return the `FACTS` of a picture, or what is wrong with it."""
    try:
        if is_raw(picture):
            pixels = np.ascontiguousarray(picture.read_pixels())
            return _facts(Image.fromarray(pixels), pixels.data.cast("B"), DECODED)
        data = read_encoded(picture)
        fault = find_fault(BytesIO(data))
        if fault:
            return fault
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            return _facts(image, data, image.format or "")
    except DECODER_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            return f"cannot be read: {error.strerror or error}"
        return f"is broken: {error or type(error).__name__}"
    except UserError as error:  # of a user's own code
        return f"fails: {error}"
    except MemoryError:
        return "needs more memory to decode than there is"


def _facts(image: Image.Image, data: bytes | memoryview, form: str) -> tuple[Any, ...]:
    width, height = image.size
    mode = image.mode
    if "transparency" in image.info and mode in ("L", "P", "RGB"):
        mode += "A"  # a color, or entries of a palette, that are see-through
    orientation = 1
    with suppress(*DECODER_ERRORS):  # a garbled note turns nothing
        found = image.getexif().get(_ORIENTATION, 1)
        orientation = found if found in range(1, 9) else 1
    luma = read_luma(image, orientation)
    digest = int.from_bytes(blake2b(data, digest_size=8).digest())
    blank = float(luma.std()) < BLANK
    return True, width, height, len(data), form, mode, orientation, digest, perceptual_hash(luma), blank
