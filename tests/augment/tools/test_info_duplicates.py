"""Duplicates are found, and different images are not taken for duplicates."""

from pathlib import Path

import numpy as np
import pytest
from photos import draw_photo
from PIL import Image

from augment.data.dataset import ImageRef
from augment.tools.info.scan import MAX_BITS, Copies, find_copies, near_hashes, scan_images, tally


def photo(seed: int, width: int = 200, height: int = 150) -> Image.Image:
    return Image.fromarray(draw_photo(width, height, seed))


def copies(folder: Path, *images: tuple[Image.Image, dict[str, object]]) -> Copies:
    """Write images with their options, and return the copies among them."""
    files: list[ImageRef] = []
    for number, (image, options) in enumerate(images):
        files.append(folder / f"{number}.{options.get('format', 'jpeg')}")
        image.save(files[-1], **options)
    return find_copies(files, scan_images(files))


def test_images_with_the_same_bytes_are_paired_with_the_first_of_them(tmp_path: Path) -> None:
    found = copies(tmp_path, (photo(0), {}), (photo(1), {}), (photo(0), {}), (photo(0), {}))
    assert found.same.tolist() == [[0, 2], [0, 3]]
    assert found.alike.tolist() == []


VARIANTS = {
    "quality": lambda image: (image, {"quality": 30}),
    "smaller": lambda image: (image.resize((90, 68)), {"quality": 60}),
    "png": lambda image: (image, {"format": "png"}),
    "gray": lambda image: (image.convert("L"), {}),
    "brighter": lambda image: (image.point(lambda level: min(255, level * 1.2)), {}),
    "squeezed": lambda image: (image.resize((180, 150)), {}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_images_that_look_the_same_are_a_pair(variant: str, tmp_path: Path) -> None:
    image = photo(0)
    found = copies(tmp_path, (image, {"quality": 92}), (photo(1), {}), VARIANTS[variant](image))
    assert found.same.tolist() == []
    assert found.alike.tolist() == [[0, 2]]


@pytest.mark.parametrize("orientation", [2, 5, 6])
def test_an_image_with_an_exif_orientation_matches_its_upright_copy(orientation: int, tmp_path: Path) -> None:
    turns = {value: way for way, value in zip(("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE",
             "ROTATE_270", "TRANSVERSE", "ROTATE_90"), range(2, 9), strict=True)}  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = photo(0).transpose(Image.Transpose[turns[orientation]])
    found = copies(tmp_path, (photo(0), {"exif": exif}), (upright, {"quality": 90}))
    assert found.alike.tolist() == [[0, 1]]


def test_different_images_are_not_paired(tmp_path: Path) -> None:
    tiny, flat = photo(0).resize((40, 15)), Image.new("RGB", (50, 50))
    found = copies(
        tmp_path,
        *((photo(seed), {}) for seed in range(60)),
        (photo(0).transpose(Image.Transpose.FLIP_LEFT_RIGHT), {}),
        *((tiny, {"quality": quality}) for quality in (90, 95)),  # too small to tell apart
        *((flat, {"quality": quality}) for quality in (90, 95)),
        (Image.new("RGB", (50, 50), "white"), {}),
    )
    assert found.all_compared
    assert found.alike.tolist() == []


def test_the_search_finds_the_same_as_comparing_all_pairs() -> None:
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**63, 400, dtype=np.uint64)
    for i in range(0, 200, 2):  # one to ten bits are flipped, so that some pairs are beyond the limit
        flipped = rng.choice(64, 1 + i // 20, replace=False).astype(np.uint64)
        hashes[i + 1] = hashes[i] ^ np.bitwise_or.reduce(np.uint64(1) << flipped)
    words = np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1).astype(int)
    distance = np.abs(words[:, None] - words[None]).sum(axis=2)
    wanted = [(a, b) for a, b in np.argwhere(distance <= MAX_BITS).tolist() if a < b]
    found, complete = near_hashes(hashes)
    assert complete
    assert sorted(map(tuple, found.tolist())) == wanted
    assert len(wanted) == 60


def test_duplicates_are_counted_by_split() -> None:
    # Train has indices 0..4, val 5..9.
    pairs = np.array([(0, 1), (0, 2), (1, 2), (3, 5), (3, 6), (7, 8)])
    assert tally(pairs, 5) == {"within_train": 2, "within_val": 1, "val_in_train": 2}
