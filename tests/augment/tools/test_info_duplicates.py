"""Duplicates are found, and different images are not taken for duplicates."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from photos import draw_photo
from PIL import Image

from augment.data.dataset import ImageRef
from augment.tools.info.duplicates import Copies, find_copies, near_hashes, tally
from augment.tools.info.luma import MAX_BITS, perceptual_hash, read_luma
from augment.tools.info.scan import scan_images


def photo(seed: int, width: int = 200, height: int = 150) -> Image.Image:
    return Image.fromarray(draw_photo(width, height, seed))


def write(folder: Path, **images: tuple[Image.Image, dict[str, object]]) -> list[ImageRef]:
    files = []
    for name, (image, options) in images.items():
        files.append(folder / f"{name}.{'png' if options.pop('png', False) else 'jpg'}")
        image.save(files[-1], **options)
    return files


def copies(files: list[ImageRef]) -> Copies:
    return find_copies(files, scan_images(files))


def test_images_with_the_same_bytes_are_a_group_but_no_pair(tmp_path: Path):
    first, other = write(tmp_path, first=(photo(0), {}), other=(photo(1), {}))
    (tmp_path / "again.jpg").write_bytes((tmp_path / "first.jpg").read_bytes())
    found = copies([first, other, tmp_path / "again.jpg"])
    assert found.groups == ((0, 2),)
    assert len(found.pairs) == 0


VARIANTS = {
    "quality": lambda image: (image, {"quality": 30}),
    "smaller": lambda image: (image.resize((90, 68)), {"quality": 60}),
    "png": lambda image: (image, {"png": True}),
    "gray": lambda image: (image.convert("L"), {}),
    "brighter": lambda image: (image.point(lambda level: min(255, level * 1.2)), {}),
    "squeezed": lambda image: (image.resize((180, 150)), {}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_images_that_look_the_same_are_a_pair(variant: str, tmp_path: Path):
    image = photo(0)
    files = write(tmp_path, first=(image, {"quality": 92}), other=(photo(1), {}), changed=VARIANTS[variant](image))
    found = copies(files)
    assert found.groups == ()
    assert found.pairs.tolist() == [[0, 2]]


def test_an_image_with_an_exif_orientation_matches_its_rotated_copy(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6
    image = photo(0)
    upright = image.transpose(Image.Transpose.ROTATE_270)
    found = copies(write(tmp_path, noted=(image, {"exif": exif}), upright=(upright, {"quality": 90})))
    assert found.pairs.tolist() == [[0, 1]]


def test_different_images_are_not_paired(tmp_path: Path):
    images = {f"n{seed}": (photo(seed), {}) for seed in range(60)}
    mirrored = {"mirrored": (photo(0).transpose(Image.Transpose.FLIP_LEFT_RIGHT), {})}
    found = copies(write(tmp_path, **images, **mirrored))
    assert found.groups == ()
    assert len(found.pairs) == 0
    assert found.all_compared


def test_images_of_a_single_color_are_not_paired(tmp_path: Path):
    files = write(tmp_path, black=(Image.new("RGB", (50, 50)), {}), white=(Image.new("RGB", (50, 50), "white"), {}))
    assert scan_images(files).facts["blank"].all()
    assert len(copies(files).pairs) == 0


def test_tiny_images_are_not_paired(tmp_path: Path):
    small = photo(0).resize((40, 15))
    found = copies(write(tmp_path, first=(small, {"quality": 95}), again=(small, {"quality": 90})))
    assert len(found.pairs) == 0


def test_the_search_finds_the_same_as_comparing_all_pairs():
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


def test_too_many_candidates_are_truncated_and_reported(monkeypatch):
    monkeypatch.setattr("augment.tools.info.duplicates._MOST", 500)
    found, complete = near_hashes(np.zeros(1000, np.uint64))
    assert len(found) == 500
    assert not complete


def test_no_hashes_give_no_pairs():
    found, complete = near_hashes(np.empty(0, np.uint64))
    assert found.shape == (0, 2)
    assert complete


def test_sixteen_bit_gray_is_not_clipped():
    gray = np.asarray(photo(0).convert("L"))
    deep = gray.astype(np.uint16) * 257
    png = BytesIO()
    Image.fromarray(deep).save(png, "PNG")
    pgm = BytesIO(b"P5 %d %d 65535\n" % gray.shape[::-1] + deep.astype(">u2").tobytes())
    for stream in (png, pgm):
        with Image.open(stream) as image:
            assert perceptual_hash(read_luma(image)) == perceptual_hash(read_luma(Image.fromarray(gray)))


def test_duplicates_are_counted_by_split():
    # Train has indices 0..4, val 5..9.
    found = tally([(0, 1, 2), (3, 5, 6), (7, 8)], 5, [0, 0, 1, 0, 0, 0, 0, 1, 1, 0], compare=True)
    assert (found.train, found.val, found.leaked) == (2, 2, 2)
    assert found.contradicting == ((0, 1, 2),)
    assert tally([(0, 2)], 5, [0, 0, 1], compare=False).contradicting == ()
