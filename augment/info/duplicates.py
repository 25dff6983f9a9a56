"""Pictures that are there twice: the same bytes, or what looks the same.

Near copies are looked for among all pairs without comparing all pairs: of two hashes that differ in at most 6 of 64
bits, at least two of eight bytes are the same, so that only pictures that share two bytes at the same places are
compared (multi-index hashing, Norouzi, Punjani and Fleet 2012).
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.check import DECODER_ERRORS, strict_pillow
from augment.dataset import Picture, Target
from augment.errors import UserError
from augment.info.luma import MAX_BITS, MIN_CORRELATION, correlation, read_luma
from augment.info.scan import Scan
from augment.stored import is_raw, read_encoded

Pairs = NDArray[np.int64]

_BYTES = 8
_SHARED = _BYTES - MAX_BITS  # bytes that are the same if bits differ in so many others at most
_SMALLEST = 16  # px of the short side, below which all that is drawn alike looks the same
_MOST = 100_000  # candidates that are looked at
_THREADS = 8
_POPCOUNT = np.array([bin(number).count("1") for number in range(2**16)], np.uint8)


@dataclass(frozen=True)
class Copies:
    """Pictures that are there twice; places count train's pictures first, then val's.

    Attributes:
        groups: places of pictures with the same bytes, at least two in each.
        pairs: (P, 2) places of pictures that look the same and have other bytes, the smaller one first; a group counts
            as its first picture.
        all_compared: whether all candidates were looked at, of which there can be too many.
    """

    groups: tuple[tuple[int, ...], ...]
    pairs: Pairs
    all_compared: bool = True


@dataclass(frozen=True)
class Tally:
    """How many pictures are there twice.

    Attributes:
        train: pictures of train that another one of train, before it, is a copy of.
        val: the same within val.
        leaked: pictures of val that have a copy in train.
        contradicting: groups or pairs with two different targets.
    """

    train: int
    val: int
    leaked: int
    contradicting: tuple[tuple[int, ...], ...]


def find_copies(pictures: Sequence[Picture], scan: Scan) -> Copies:
    """Find copies, in the bytes and in what is shown.

    Args:
        pictures: all of them.
        scan: what is known of these.
    """
    places = np.flatnonzero(scan.facts["good"])
    digests = scan.facts["digest"][places]
    order = np.argsort(digests, kind="stable")
    runs = np.split(places[order], np.flatnonzero(np.diff(digests[order])) + 1)
    groups = sorted(tuple(run.tolist()) for run in runs if len(run) > 1)
    first = np.sort(np.array([run[0] for run in runs if len(run)], np.int64))
    first = first[~scan.facts["blank"][first] & (np.minimum(scan.width, scan.height)[first] >= _SMALLEST)]
    candidates, complete = near_hashes(scan.facts["shown"][first])
    pairs = first[candidates]
    return Copies(tuple(groups), _confirmed(pictures, scan, pairs), complete)


def tally(groups: Sequence[Sequence[int]] | Pairs, train: int, targets: Sequence[Target], *, compare: bool) -> Tally:
    """Count copies by split.

    Args:
        groups: places of pictures that are the same, in rising order.
        train: number of pictures in train.
        targets: of all pictures.
        compare: whether the same picture should have the same target.
    """
    within: tuple[set[int], set[int]] = (set(), set())
    leaked: set[int] = set()
    contradicting = []
    for given in groups:
        group = [int(place) for place in given]
        for of, members in ((0, [p for p in group if p < train]), (1, [p for p in group if p >= train])):
            within[of].update(members[1:])
        if group[0] < train:
            leaked.update(place for place in group if place >= train)
        if compare and any(targets[place] != targets[group[0]] for place in group[1:]):
            contradicting.append(tuple(group))
    return Tally(len(within[0]), len(within[1]), len(leaked), tuple(contradicting))


def near_hashes(hashes: NDArray[np.uint64], most: int = _MOST) -> tuple[Pairs, bool]:
    """Return (P, 2) places of hashes that differ in at most `MAX_BITS`, and whether these are all such pairs.

    Args:
        hashes: (N,) of 64 bits.
        most: about how many pairs are enough.
    """
    words = hashes.astype("<u8").view(np.uint8).reshape(-1, _BYTES)
    found: NDArray[np.int64] = np.empty(0, np.int64)
    count = len(hashes)
    for chosen in combinations(range(_BYTES), _SHARED):
        keys = (words[:, chosen[0]].astype(np.uint16) * 256 + words[:, chosen[1]]).astype(np.uint16)
        for a, b in _same(keys):
            near = _differing(hashes[a] ^ hashes[b]) <= MAX_BITS
            low, high = np.minimum(a[near], b[near]), np.maximum(a[near], b[near])
            found = np.union1d(found, low * count + high) if near.any() else found
            if len(found) > most:
                return np.stack([found // count, found % count], axis=1)[:most], False
    return np.stack([found // max(count, 1), found % max(count, 1)], axis=1), True


def _same(keys: NDArray[np.uint16]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield all pairs of places with the same key, in arrays of at most N."""
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


def _differing(bits: NDArray[np.uint64]) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = _POPCOUNT[bits.view(np.uint16).reshape(-1, 4)].sum(axis=1, dtype=np.int64)
    return counts


def _confirmed(pictures: Sequence[Picture], scan: Scan, pairs: Pairs) -> Pairs:
    """Return the pairs whose pictures correlate."""
    wanted = np.unique(pairs).tolist()
    with strict_pillow(), ThreadPoolExecutor(_THREADS) as pool:
        read = pool.map(lambda place: _luma(pictures[place], int(scan.facts["orientation"][place])), wanted)
        lumas = dict(zip(wanted, read, strict=True))
    kept = [
        (a, b)
        for a, b in pairs.tolist()
        if (first := lumas[a]) is not None
        and (second := lumas[b]) is not None
        and correlation(first.astype(np.float32), second.astype(np.float32)) >= MIN_CORRELATION
    ]
    return np.array(kept, np.int64).reshape(-1, 2)


def _luma(picture: Picture, orientation: int) -> NDArray[np.uint8] | None:
    """Return what a picture shows, in a quarter of the memory; None where it has gone since it was looked at."""
    try:
        if is_raw(picture):
            return read_luma(Image.fromarray(picture.read_pixels())).astype(np.uint8)
        with Image.open(BytesIO(read_encoded(picture))) as image:
            return read_luma(image, orientation).astype(np.uint8)  # the levels are whole
    except (*DECODER_ERRORS, UserError):
        return None
