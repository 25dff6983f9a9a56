"""Find duplicate images: those with the same bytes, and those that look the same.

Two images look the same if the hashes of their looks differ in few of 64 bits and their gray levels correlate. All such
pairs are found without comparing all: if two hashes differ in at most 6 bits, at least two of their eight bytes are
equal, so only images that share two bytes at the same positions are compared (multi-index hashing, Norouzi, Punjani and
Fleet 2012).

Measured on Imagenette at 224 x 224 px: of the 90 million pairs of its 13,394 photos, five differ in at most `MAX_BITS`,
and none of those has a correlation above .66. Of modified copies of 600 photos, it found all that were re-encoded at
quality 30, converted to gray, halved or doubled in size; 98% of those at quality 10 or a fifth brighter; all but one
that were 4% narrower; 6% of those with 3% cut off each side; and none of those mirrored. Images that are naturally
alike can be mistaken for duplicates: 19 pairs of 1,400 scanned digits of 8 x 8 px were, so images that small are left
out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import ImageRef
from augment.data.faults import strict_pillow
from augment.support.background import in_threads
from augment.support.process import cores
from augment.tools.info.scan import Facts, examine

Pairs = NDArray[np.int64]  # (P, 2) indices, the smaller first; those of train come before those of val

MAX_BITS = 6
_MIN_CORRELATION = 0.97
_BYTES = 8
_SHARED = _BYTES - MAX_BITS  # bytes that are equal in any two hashes that differ in at most MAX_BITS bits
_SMALLEST = 16  # px of the short side, below which similar images look the same
_MOST = 100_000  # candidate pairs, at most


@dataclass(frozen=True)
class Copies:
    """Duplicate images."""

    same: Pairs  # have the same bytes: the first one with each of the others
    alike: Pairs  # look the same but differ in bytes; of those with the same bytes only the first counts
    all_compared: bool = True  # false: there were too many candidates


def find_copies(images: Sequence[ImageRef], facts: Facts) -> Copies:
    """Find images with the same bytes, and images that look the same, given all N images and their `FACTS`, (N,)."""
    good = np.flatnonzero(facts["fault"] == "")
    _, first, inverse = np.unique(facts["digest"][good], return_index=True, return_inverse=True)
    original = good[first[inverse]]
    seen = facts[first := np.unique(original)]
    first = first[~seen["blank"] & (np.minimum(seen["width"], seen["height"]) >= _SMALLEST)]
    candidates, complete = near_hashes(facts["looks"][first])
    return Copies(np.stack([original, good], 1)[original < good], _confirmed(images, first[candidates]), complete)


def tally(pairs: Pairs, train: int) -> dict[str, int]:
    """Count images that duplicate an earlier one, by the splits of the two, given the number of images in train."""
    first, other = pairs.T
    within = {
        "within_train": other < train,
        "within_val": first >= train,
        "val_in_train": (first < train) & (other >= train),
    }
    return {name: len(np.unique(other[which])) for name, which in within.items()}


def near_hashes(hashes: NDArray[np.uint64]) -> tuple[Pairs, bool]:
    """Return the pairs of hashes that differ in at most `MAX_BITS`, and whether these are all such pairs."""
    found: NDArray[np.int64] = np.empty(0, np.int64)
    count = max(len(hashes), 1)
    for a, b in _candidates(hashes):
        bits = np.unpackbits((hashes[a] ^ hashes[b]).view(np.uint8).reshape(-1, _BYTES), axis=1)
        near = bits.sum(axis=1, dtype=np.uint8) <= MAX_BITS
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
        ordered, begins, distance = keys[order], np.arange(len(keys)), 0
        while len(begins):
            distance += 1
            begins = begins[begins + distance < len(keys)]
            begins = begins[ordered[begins] == ordered[begins + distance]]
            yield order[begins], order[begins + distance]


def _confirmed(images: Sequence[ImageRef], pairs: Pairs) -> Pairs:
    """Return the pairs whose gray levels correlate."""
    wanted = np.unique(pairs).tolist()
    levels: dict[int, NDArray[np.float32]] = {}
    with strict_pillow(), in_threads(lambda index: examine(images[index])[1], wanted, cores()) as lumas:
        for index, luma in zip(wanted, lumas, strict=True):
            if luma is not None:
                centered = (luma - luma.mean()).ravel()
                levels[index] = centered / np.linalg.norm(centered)
    kept = [
        (a, b) for a, b in pairs.tolist() if a in levels and b in levels and levels[a] @ levels[b] >= _MIN_CORRELATION
    ]
    return np.array(kept, np.int64).reshape(-1, 2)
