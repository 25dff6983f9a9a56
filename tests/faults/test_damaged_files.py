"""Damaged images of seven formats: what the check passes never ends a run, and what it rejects has a reason."""

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from loaders import build_loader
from photos import draw_photo
from PIL import Image

from augment.data.check import check_files
from augment.data.dataset import Split
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug

pytestmark = pytest.mark.faults

FORMATS = {
    "jpg": {"format": "JPEG", "quality": 85},
    "progressive.jpg": {"format": "JPEG", "quality": 85, "progressive": True},
    "png": {"format": "PNG"},
    "webp": {"format": "WEBP", "quality": 80},
    "bmp": {"format": "BMP"},
    "tiff": {"format": "TIFF", "compression": "tiff_lzw"},
    "jp2": {"format": "JPEG2000"},
    "ppm": {"format": "PPM"},
}
EACH = 25  # files of a format and a kind of damage: 8 x 3 x 25 = 600


def flip_bits(content: bytes, random: np.random.Generator) -> bytes:
    """Flip one to twenty bits."""
    damaged = bytearray(content)
    for position in random.integers(0, len(damaged), random.integers(1, 21)):
        damaged[position] ^= 1 << int(random.integers(8))
    return bytes(damaged)


def truncate(content: bytes, random: np.random.Generator) -> bytes:
    """Cut anywhere."""
    return content[: random.integers(0, len(content))]


def overwrite(content: bytes, random: np.random.Generator) -> bytes:
    """Replace a run of bytes in the second half by noise; the checksums of a PNG are made right again."""
    start = int(random.integers(len(content) // 2, len(content) - 1))
    length = min(int(random.integers(1, 64)), len(content) - start)
    noise = random.integers(0, 256, length, np.uint8).tobytes()
    return repair_checksums(content[:start] + noise + content[start + length :])


def repair_checksums(content: bytes) -> bytes:
    """Write right checksums into the chunks of a PNG; other files stay as they are."""
    if not content.startswith(b"\x89PNG"):
        return content
    repaired, position = bytearray(content), 8
    while position + 12 <= len(repaired):
        (length,) = struct.unpack_from(">I", repaired, position)
        end = position + 8 + length
        if end + 4 > len(repaired):
            break
        struct.pack_into(">I", repaired, end, zlib.crc32(repaired[position + 4 : end]))
        position = end + 4
    return bytes(repaired)


def write_damaged(folder: Path, name: str, damage: Callable[[bytes, np.random.Generator], bytes]) -> list[Path]:
    """Write files of one format with one kind of damage, each different."""
    random = np.random.default_rng([sum(name.encode()), sum(damage.__name__.encode())])
    files = []
    for seed in range(EACH):
        stream = BytesIO()
        Image.fromarray(draw_photo(64, 48, seed)).save(stream, **FORMATS[name])
        files.append(folder / f"{seed}.{name}")
        files[-1].write_bytes(damage(stream.getvalue(), random))
    return files


@pytest.mark.parametrize("damage", [flip_bits, truncate, overwrite])
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.sample] * (name == "png")) for name in FORMATS])
def test_what_the_check_passes_never_ends_a_run(
    tmp_path: Path, name: str, damage: Callable[[bytes, np.random.Generator], bytes]
) -> None:
    files = write_damaged(tmp_path, name, damage)
    problems = check_files(files, cache=tmp_path / "cache.json")
    assert all(problems.values())
    assert problems == check_files(files, cache=tmp_path / "cache.json")
    good = tuple(file for file in files if file not in problems)
    if good:
        plan = build_plan(parse_aug({"size": 32}), "val")
        loader = build_loader(plan, Split(good, (0,) * len(good)), batch_size=4, seed=0, classes="a")
        try:
            assert sum(len(batch.images) for batch in loader) == len(good)
        finally:
            loader.close()
