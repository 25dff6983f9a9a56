"""Find duplicate images: those with the same bytes, and those that look the same.

All near duplicates are found without comparing all pairs: if two hashes differ in at most 6 of 64 bits, at least two of
their eight bytes are equal, so only images that share two bytes at the same positions are compared (multi-index
hashing, Norouzi, Punjani and Fleet 2012).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.data.dataset import ImageRef, Target
from augment.data.faults import DECODER_ERRORS, strict_pillow
from augment.data.images import is_decoded, read_encoded
from augment.support.background import in_threads
from augment.support.errors import UserError
from augment.tools.info.luma import MAX_BITS, MIN_CORRELATION, read_luma
from augment.tools.info.scan import Scan

Pairs = NDArray[np.int64]

_BYTES = 8
_SHARED = _BYTES - MAX_BITS  # bytes that are equal in any two hashes that differ in at most MAX_BITS bits
_SMALLEST = 16  # px of the short side, below which similar images look the same
_MOST = 100_000  # candidate pairs, at most
_THREADS = 8
_POPCOUNT = np.array([bin(number).count("1") for number in range(2**16)], np.uint8)


@dataclass(frozen=True)
class Copies:
    """Duplicate images; indices count the images of train first, then those of val.

    Attributes:
        groups: indices of images with the same bytes, at least two in each group.
        pairs: (P, 2) indices of images that look the same but differ in bytes, the smaller index first; a group counts
            as its first image.
        all_compared: whether all candidate pairs were compared; false if there were too many.
    """

    groups: tuple[tuple[int, ...], ...]
    pairs: Pairs
    all_compared: bool = True


@dataclass(frozen=True)
class Tally:
    """Counts of duplicate images.

    Attributes:
        train: images of train that duplicate an earlier one in train.
        val: images of val that duplicate an earlier one in val.
        leaked: images of val that have a duplicate in train.
        contradicting: groups or pairs with different targets.
    """

    train: int
    val: int
    leaked: int
    contradicting: tuple[tuple[int, ...], ...]


def find_copies(images: Sequence[ImageRef], scan: Scan) -> Copies:
    """Find images with the same bytes, and images that look the same.

    Args:
        images: all N images.
        scan: the result of scanning them.
    """
    good, short_side = np.flatnonzero(scan.facts["good"]), np.minimum(scan.facts["width"], scan.facts["height"])
    digests = scan.facts["digest"][good]
    order = np.argsort(digests, kind="stable")
    runs = np.split(good[order], np.flatnonzero(np.diff(digests[order])) + 1)
    groups = sorted(tuple(run.tolist()) for run in runs if len(run) > 1)
    first = np.sort(np.array([run[0] for run in runs if len(run)], np.int64))
    first = first[~scan.facts["blank"][first] & (short_side[first] >= _SMALLEST)]
    candidates, complete = near_hashes(scan.facts["shown"][first])
    pairs = first[candidates]
    return Copies(tuple(groups), _confirmed(images, scan, pairs), complete)


def tally(groups: Sequence[Sequence[int]] | Pairs, train: int, targets: Sequence[Target], *, compare: bool) -> Tally:
    """Count duplicates by split.

    Args:
        groups: indices of duplicate images, in ascending order within a group.
        train: number of images in train.
        targets: targets of all images.
        compare: whether duplicates with different targets are contradictions.
    """
    within: tuple[set[int], set[int]] = (set(), set())
    leaked: set[int] = set()
    contradicting = []
    for given in groups:
        group = [int(index) for index in given]
        for of, members in ((0, [p for p in group if p < train]), (1, [p for p in group if p >= train])):
            within[of].update(members[1:])
        if group[0] < train:
            leaked.update(index for index in group if index >= train)
        if compare and any(targets[index] != targets[group[0]] for index in group[1:]):
            contradicting.append(tuple(group))
    return Tally(len(within[0]), len(within[1]), len(leaked), tuple(contradicting))


def near_hashes(hashes: NDArray[np.uint64]) -> tuple[Pairs, bool]:
    """Return (P, 2) indices of hashes that differ in at most `MAX_BITS`, and whether these are all such pairs."""
    found: NDArray[np.int64] = np.empty(0, np.int64)
    count = max(len(hashes), 1)
    for a, b in _candidates(hashes):
        near = _POPCOUNT[(hashes[a] ^ hashes[b]).view(np.uint16).reshape(-1, 4)].sum(axis=1) <= MAX_BITS
        if near.any():
            found = np.union1d(found, np.minimum(a, b)[near] * count + np.maximum(a, b)[near])
        if len(found) > _MOST:
            break
    return np.stack(np.divmod(found[:_MOST], count), axis=1), len(found) <= _MOST


def _candidates(hashes: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the indices of all pairs of hashes with two equal bytes, in arrays of at most N pairs."""
    words = hashes.astype("<u8").view(np.uint8).reshape(-1, _BYTES).astype(np.uint16)
    for one, other in combinations(range(_BYTES), _SHARED):
        keys = 256 * words[:, one] + words[:, other]
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        begins = np.arange(len(keys))
        distance = 0
        while len(begins):
            distance += 1
            begins = begins[begins + distance < len(keys)]
            begins = begins[ordered[begins] == ordered[begins + distance]]
            if len(begins):
                yield order[begins], order[begins + distance]


def _confirmed(images: Sequence[ImageRef], scan: Scan, pairs: Pairs) -> Pairs:
    """Return the pairs whose gray levels correlate."""
    wanted = np.unique(pairs).tolist()

    def read(index: int) -> NDArray[np.uint8] | None:
        return _luma(images[index], int(scan.facts["orientation"][index]))

    with strict_pillow(), in_threads(read, wanted, _THREADS) as found:
        lumas = dict(zip(wanted, found, strict=True))
    kept = [
        (a, b)
        for a, b in pairs.tolist()
        if (first := lumas[a]) is not None
        and (second := lumas[b]) is not None
        and np.corrcoef(first.ravel(), second.ravel())[0, 1] >= MIN_CORRELATION
    ]
    return np.array(kept, np.int64).reshape(-1, 2)


def _luma(ref: ImageRef, orientation: int) -> NDArray[np.uint8] | None:
    """Return an image's gray levels as bytes; None if it has become unreadable since the scan."""
    try:
        if is_decoded(ref):
            return read_luma(Image.fromarray(ref.read_pixels())).astype(np.uint8)
        with Image.open(BytesIO(read_encoded(ref))) as image:
            return read_luma(image, orientation).astype(np.uint8)  # levels are integers
    except (*DECODER_ERRORS, UserError):
        return None
