"""Scan images for their size, their format, and duplicates.

Each image gets a hash of its bytes and a perceptual hash, pHash by Zauner, "Implementation and Benchmarking of
Perceptual Image Hash Functions" (2010). A discrete cosine transform of 32 x 32 gray levels gives the 8 x 8 lowest
frequencies. Each bit of the hash states whether one frequency exceeds the median of all. Re-encoding and resizing
rarely change the hash.

Two images look the same if at most 6 of the 64 bits of their perceptual hashes differ and their gray levels correlate.
At least two of the eight bytes of such hashes are equal. So the search compares only images that share two bytes at the
same positions (multi-index hashing, Norouzi, Punjani and Fleet 2012).

Images that are naturally similar can be mistaken for duplicates, such as 19 pairs among 1,400 scanned digits of 8 x 8
px. So images with a short side below 16 px are not compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from io import BytesIO
from itertools import combinations
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.data.check import Decoder, group_copies
from augment.data.dataset import NO_VAL, Dataset, Split
from augment.data.image_faults import (
    DECODABLE_FORMATS,
    DECODER_ERRORS,
    describe_failure,
    find_fault,
    is_rare,
    strict_pillow,
)
from augment.data.images import (
    ImageRef,
    image_keys,
    is_decoded,
    known_of,
    open_image,
    open_with_pillow,
    orientation_of,
    read_encoded,
    to_rgb,
    upright_size,
)
from augment.data.rasters import Raster, in_format
from augment.data.selection import cut_val
from augment.data.sources.registry import Source
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.process import cores

# The facts about an image.
FACTS = np.dtype(
    [
        ("fault", "O"),  # why the image cannot be used, or ""
        ("width", "u4"),  # of the upright image
        ("height", "u4"),
        ("bytes", "u8"),  # size of the encoded image
        ("format", "O"),
        ("mode", "O"),  # as stored, such as gray or RGB
        ("orientation", "u1"),  # in EXIF, where 1 is upright
        ("digest", "u8"),  # hash of the bytes
        ("looks", "u8"),  # perceptual hash
        ("blank", "?"),  # whether the image has a single color
    ]
)
Facts = NDArray[Any]  # (N,) of FACTS
Luma = NDArray[np.float32]  # (32, 32) gray levels in 0..255

# Readable names of Pillow's modes.
_MODES = {
    "L": "gray", "1": "black and white", "P": "palette", "RGBA": "RGB with alpha", "LA": "gray with alpha",
    "PA": "palette with alpha", "I": "16 bit gray", "I;16": "16 bit gray", "I;16B": "16 bit gray",
}  # fmt: skip

_DECODER = Decoder()
_CHUNK = 32  # images per task of a thread
_SIDE, _LOW = 32, 8  # gray levels and frequencies per axis
_DRAFT = 64  # px, minimum size of a JPEG that is decoded at reduced size

# (8, 32), the lowest frequencies of DCT-II. Scaling them would not change the hash.
_COSINES = np.cos(np.pi / _SIDE * np.outer(np.arange(_LOW), np.arange(_SIDE) + 0.5)).astype(np.float32)
_BITS = 2 ** np.arange(_LOW * _LOW, dtype=np.uint64)


def scan_images(images: Sequence[ImageRef], faults: Mapping[ImageRef, str] = MappingProxyType({})) -> Facts:
    """Return the `FACTS` of images, (N,).

    Each image is read once, validated as before training (`augment.data.check`), and decoded. Large JPEGs are decoded
    at reduced size. The facts take 60 bytes per image. Each thread also needs the memory of one image.

    Args:
        images: N images.
        faults: known faults of the targets of some images.
    """
    facts, starts = np.zeros(len(images), FACTS), range(0, len(images), _CHUNK)
    threads = max(8, cores())

    def examined(start: int) -> list[tuple[Any, ...]]:
        return [examine(image)[0] for image in images[start : start + _CHUNK]]

    with (
        strict_pillow(),
        progress_bar(quiet=len(images) <= 500) as progress,
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
    """Return the `FACTS` of an image, and its gray levels. For an unusable image, the gray levels are None."""
    try:
        if isinstance(ref, Raster):
            return _examine_raster(ref)
        if is_decoded(ref):
            pixels = np.ascontiguousarray(ref.read_pixels())
            return _facts(Image.fromarray(pixels), pixels.data.cast("B"), "decoded")
        data = read_encoded(ref)
        fault = find_fault(BytesIO(data)) or (_DECODER.find_difference(data) if is_rare(data) else None)
        if not fault:
            with open_with_pillow(BytesIO(data), DECODABLE_FORMATS) as image:
                return _facts(image, data, image.format or "")
    except (UserError, MemoryError, *DECODER_ERRORS) as error:
        fault = describe_failure(error)
    return (fault, 0, 0, 0, "", "", 0, 0, 0, False), None


def _examine_raster(raster: Raster) -> tuple[tuple[Any, ...], Luma]:
    with open_image(raster) as image:
        if is_decoded(raster.ref):
            return _facts(image, raster.read_pixels().tobytes(), "decoded", raster.pixels.dtype)
        return _facts(image, read_encoded(raster.ref), raster.name.rpartition(".")[2].upper(), raster.pixels.dtype)


def _facts(image: Image.Image, data: bytes | memoryview, form: str, mode: str = "") -> tuple[tuple[Any, ...], Luma]:
    (width, height), orientation = upright_size(image), orientation_of(image)
    mode = mode or _MODES.get(image.mode, image.mode)
    luma = read_luma(image)
    digest = int.from_bytes(blake2b(data, digest_size=8).digest())
    frequencies = (_COSINES @ luma @ _COSINES.T).ravel()
    # The lowest frequency is the mean gray level, which is an outlier.
    looks = int(_BITS[frequencies > np.median(frequencies[1:])].sum())
    blank = float(luma.std()) < 2  # gray levels
    return ("", width, height, len(data), form, mode, orientation, digest, looks, blank), luma


def read_luma(image: Image.Image) -> Luma:
    """Return an opened image as (32, 32) gray levels in 0..255, upright. As in training, ignore alpha."""
    image.draft("L", (_DRAFT, _DRAFT))
    return np.asarray(to_rgb(image).convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX), np.float32)


def as_trained(source: Source, data: Dataset, facts: Facts) -> tuple[Dataset, Facts]:
    """Take the validation split from train and correct labels, as the source is configured. Return facts in this order.

    Copies of an image stay in one split. If there are too few images, the returned dataset lists this as a problem.
    """
    if not source.cuts_val and source.test_fraction is None and source.labels is None:
        return data, facts
    images = data.train.files + data.val.files
    digests = [f"{fact['digest']:x}" if not fact["fault"] else "" for fact in facts]
    try:
        cut = cut_val(source, replace(data, copies=group_copies(images, digests)))
    except UserError as error:
        return replace(data, problems=(*data.problems, str(error))), facts
    indices = {key: index for index, key in enumerate(image_keys(images))}
    return cut, facts[[indices[key] for key in image_keys(cut.train.files + cut.val.files)]]


def test_split_of(source: Source, data: Dataset, facts: Facts) -> tuple[Split, Facts]:
    """Return the test split, which may be empty, and the facts about its images. `data` is not split yet."""
    try:
        tested = source.with_test()
        if source.test_fraction is not None:
            cut, facts = as_trained(tested, data, facts)
            return cut.val, facts[len(cut.train) :]
        split = in_format(tested.load().val, data.pixels)
        return split, scan_images(split.files)
    except UserError:
        if source.gives_test:
            raise
        return NO_VAL, facts[:0]


# (P, 2) indices of images, the smaller one first. Images of train come before images of val.
Pairs = NDArray[np.int64]

MAX_BITS = 6
_BYTES = 8
_MAX_PAIRS = 100_000  # maximum number of pairs of similar hashes


@dataclass(frozen=True)
class Copies:
    """Duplicate images."""

    same: Pairs  # images with the same bytes: the first image, paired with each further image
    alike: Pairs  # images that look the same but differ in bytes. Of identical images, only the first is compared
    all_compared: bool = True  # false if there were too many pairs of similar hashes


def find_copies(images: Sequence[ImageRef], facts: Facts) -> Copies:
    """Find images with the same bytes, and images that look the same, from N images and their `FACTS`, (N,)."""
    good = np.flatnonzero(facts["fault"] == "")
    _, first, inverse = np.unique(facts["digest"][good], return_index=True, return_inverse=True)
    original = good[first[inverse]]
    seen = facts[first := np.unique(original)]
    # All images with a short side below 16 px look similar.
    first = first[~seen["blank"] & (np.minimum(seen["width"], seen["height"]) >= 16)]
    candidates, complete = near_hashes(facts["looks"][first])
    return Copies(np.stack([original, good], 1)[original < good], _confirmed(images, first[candidates]), complete)


def tally(pairs: Pairs, train: int) -> dict[str, int]:
    """Count the images that duplicate an earlier image, by the splits of both. `train` is the size of train."""
    first, other = pairs.T
    within = {
        "within_train": other < train,
        "within_val": first >= train,
        "val_in_train": (first < train) & (other >= train),
    }
    return {name: len(np.unique(other[which])) for name, which in within.items()}


def near_hashes(hashes: NDArray[np.uint64]) -> tuple[Pairs, bool]:
    """Return pairs of hashes that differ in at most `MAX_BITS` bits, and whether these are all such pairs."""
    found: NDArray[np.int64] = np.empty(0, np.int64)
    count = max(len(hashes), 1)
    for a, b in _candidates(hashes):
        bits = np.unpackbits((hashes[a] ^ hashes[b]).view(np.uint8).reshape(-1, _BYTES), axis=1)
        near = bits.sum(axis=1, dtype=np.uint8) <= MAX_BITS
        if near.any():  # each pair is one number, so that the union removes pairs that were found twice
            found = np.union1d(found, np.minimum(a, b)[near] * count + np.maximum(a, b)[near])
        if len(found) > _MAX_PAIRS:
            break
    return np.stack(np.divmod(found[:_MAX_PAIRS], count), axis=1), len(found) <= _MAX_PAIRS


def _candidates(hashes: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the indices of all pairs of hashes with two equal bytes, in arrays of at most N pairs.

    Two hashes that differ in at most `MAX_BITS` bits have at least two equal bytes.
    """
    words = hashes.astype("<u8").view(np.uint8).reshape(-1, _BYTES).astype(np.uint16)
    for one, other in combinations(range(_BYTES), _BYTES - MAX_BITS):
        keys = 256 * words[:, one] + words[:, other]
        order = np.argsort(keys, kind="stable")
        ordered, begins, distance = keys[order], np.arange(len(keys)), 0
        while len(begins):
            distance += 1
            begins = begins[begins + distance < len(keys)]
            begins = begins[ordered[begins] == ordered[begins + distance]]
            yield order[begins], order[begins + distance]


def _confirmed(images: Sequence[ImageRef], pairs: Pairs) -> Pairs:
    """Return the pairs of images whose gray levels correlate."""
    wanted = np.unique(pairs).tolist()
    levels: dict[int, NDArray[np.float32]] = {}
    with strict_pillow(), in_threads(lambda index: examine(images[index])[1], wanted, cores()) as lumas:
        for index, luma in zip(wanted, lumas, strict=True):
            if luma is not None:
                centered = (luma - luma.mean()).ravel()
                levels[index] = centered / np.linalg.norm(centered)
    kept = [(a, b) for a, b in pairs.tolist() if a in levels and b in levels and levels[a] @ levels[b] >= 0.97]
    return np.array(kept, np.int64).reshape(-1, 2)
