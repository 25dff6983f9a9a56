"""Scan all images: size and format of each, a hash of its bytes, and a hash of its looks.

The hash of looks is pHash as described by Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions"
(2010): whether each of the 8 x 8 lowest frequencies of a discrete cosine transform of 32 x 32 gray levels exceeds their
median. It survives re-encoding and resizing.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from io import BytesIO
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.data.check import group_copies
from augment.data.dataset import Dataset, ImageRef
from augment.data.faults import DECODER_ERRORS, FORMATS, find_fault, strict_pillow
from augment.data.images import SIDEWAYS, is_decoded, orientation_of, read_encoded
from augment.data.paths import keys_of, known_of
from augment.data.selection import cut_val
from augment.data.sources.registry import Source
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.process import cores

# What is known of an image: why it cannot be used, "" if it can; its size when upright; its mode as stored, gray or RGB
# for example; its EXIF orientation (1: upright); a hash of its bytes and one of its looks; whether it is of one color.
FACTS = np.dtype(
    [
        ("fault", "O"),
        ("width", "u4"),
        ("height", "u4"),
        ("bytes", "u8"),
        ("format", "O"),
        ("mode", "O"),
        ("orientation", "u1"),
        ("digest", "u8"),
        ("looks", "u8"),
        ("blank", "?"),
    ]
)
Facts = NDArray[Any]  # (N,) of FACTS
Luma = NDArray[np.float32]  # (32, 32) gray levels in 0..255

# Readable names of Pillow's modes; a trailing A stands for transparency.
_MODES = {
    "L": "gray", "1": "black and white", "P": "palette", "RGBA": "RGB with alpha", "LA": "gray with alpha",
    "PA": "palette with alpha", "I": "16 bit gray", "I;16": "16 bit gray", "I;16B": "16 bit gray",
}  # fmt: skip

_THREADS = 8
_CHUNK = 32  # images that a thread examines in a row
_PROGRESS_FROM = 500  # images
_BLANK = 2.0  # standard deviation in gray levels, below which an image has a single color
_SIDE, _LOW = 32, 8
_DRAFT = 64  # px, least size of a JPEG decoded at reduced size; the decoder's averages over blocks are good enough

# The transpositions that the EXIF orientations from 2 on require.
_TURNS = (
    Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM,
    Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270, Image.Transpose.TRANSVERSE, Image.Transpose.ROTATE_90,
)  # fmt: skip

# (8, 32), the lowest frequencies of DCT-II; only signs count, so they are not scaled.
_COSINES = np.cos(np.pi / _SIDE * np.outer(np.arange(_LOW), np.arange(_SIDE) + 0.5)).astype(np.float32)
_BITS = 2 ** np.arange(_LOW * _LOW, dtype=np.uint64)


def scan_images(images: Sequence[ImageRef], faults: Mapping[ImageRef, str] = MappingProxyType({})) -> Facts:
    """Return the `FACTS` of images, (N,); `faults` are known ones of their targets.

    Each image is read once, validated as before training (`augment.data.check`) and decoded, JPEGs at an eighth of
    their size where that is enough. 60 bytes are kept per image; beyond that, each thread needs memory for one image.
    """
    facts, starts = np.zeros(len(images), FACTS), range(0, len(images), _CHUNK)
    threads = max(_THREADS, cores())

    def examined(start: int) -> list[tuple[Any, ...]]:
        return [examine(image)[0] for image in images[start : start + _CHUNK]]

    with (
        strict_pillow(),
        progress_bar(quiet=len(images) <= _PROGRESS_FROM) as progress,
        in_threads(examined, starts, threads, ahead=2 * threads) as scanned,
    ):
        task = progress.add_task("Scanning images", total=len(images))
        for start, found in zip(starts, scanned, strict=True):
            facts[start : start + len(found)] = found
            progress.advance(task, len(found))
    for index, fault in known_of(images, faults).items():
        facts["fault"][index] = facts["fault"][index] or fault
    return facts


def examine(ref: ImageRef) -> tuple[tuple[Any, ...], Luma | None]:
    """Return the `FACTS` of an image and its gray levels; None if it cannot be used."""
    try:
        if is_decoded(ref):
            pixels = np.ascontiguousarray(ref.read_pixels())
            return _facts(Image.fromarray(pixels), pixels.data.cast("B"), "decoded")
        data = read_encoded(ref)
        fault = find_fault(BytesIO(data))
        if not fault:
            with Image.open(BytesIO(data), formats=FORMATS) as image:
                return _facts(image, data, image.format or "")
    except UserError as error:  # raised by a user's own source
        fault = f"fails: {error}"
    except MemoryError:
        fault = "needs more memory to decode than is available"
    except DECODER_ERRORS as error:
        fault = f"is broken: {error or type(error).__name__}"
        if isinstance(error, OSError) and error.errno is not None:
            fault = f"cannot be read: {error.strerror or error}"
    return (fault, 0, 0, 0, "", "", 0, 0, 0, False), None


def _facts(image: Image.Image, data: bytes | memoryview, form: str) -> tuple[tuple[Any, ...], Luma]:
    width, height = image.size
    mode = image.mode
    if "transparency" in image.info and mode in ("L", "P", "RGB"):
        mode += "A"  # a transparent color or palette entry
    orientation = 1
    with suppress(*DECODER_ERRORS):  # a corrupt EXIF block rotates nothing
        orientation = orientation_of(image)
    if orientation >= SIDEWAYS:
        width, height = height, width
    luma = read_luma(image, orientation)
    digest = int.from_bytes(blake2b(data, digest_size=8).digest())
    looks, named = perceptual_hash(luma), _MODES.get(mode, mode)
    return ("", width, height, len(data), form, named, orientation, digest, looks, float(luma.std()) < _BLANK), luma


def read_luma(image: Image.Image, orientation: int = 1) -> Luma:
    """Return an opened image as (32, 32) gray levels in 0..255, upright; alpha is ignored, as in training."""
    image.draft("L", (_DRAFT, _DRAFT))
    if image.mode.startswith("I"):  # I;16, or I for PGM
        # Pillow's conversion would clip 16-bit levels.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    small = image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return np.asarray(small.transpose(_TURNS[orientation - 2]) if orientation > 1 else small, np.float32)


def perceptual_hash(luma: Luma) -> int:
    """Return the 64-bit hash of (32, 32) gray levels."""
    frequencies = (_COSINES @ luma @ _COSINES.T).ravel()
    # The lowest frequency is the mean, an outlier.
    return int(_BITS[frequencies > np.median(frequencies[1:])].sum())


def as_trained(source: Source, data: Dataset, facts: Facts) -> tuple[Dataset, Facts]:
    """Cut val from train if the source says so, with copies on one side; return the images, and facts in their order.

    If they are too few to be cut, this becomes a problem.
    """
    if not source.cuts_val:
        return data, facts
    images = data.train.files + data.val.files
    digests = [f"{fact['digest']:x}" if not fact["fault"] else "" for fact in facts]
    try:
        cut = cut_val(source, replace(data, copies=group_copies(images, digests)))
    except UserError as error:
        return replace(data, problems=(*data.problems, str(error))), facts
    indices = {key: index for index, key in enumerate(keys_of(images))}
    return cut, facts[[indices[key] for key in keys_of(cut.train.files + cut.val.files)]]
