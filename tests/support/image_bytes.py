"""Files of a small image, as they are and damaged."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

SOF = b"\xff\xc0\x00"  # baseline frame header: length (2), bits (1), height (2), width (2)


def image(mode: str = "RGB", size: tuple[int, int] = (60, 40)) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (size[1] // 4, size[0] // 4, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size).convert(mode)


def encoded(form: str, mode: str = "RGB", **options: object) -> bytes:
    stream = io.BytesIO()
    image(mode).save(stream, form, **options)
    return stream.getvalue()


def jpeg_with(offset: int, value: bytes) -> bytes:
    """Return a JPEG with bytes of its frame header replaced."""
    data = encoded("JPEG")
    start = data.index(SOF) + offset
    return data[:start] + value + data[start + len(value) :]


def with_scans(jpeg: bytes, count: int) -> bytes:
    """Return a progressive JPEG whose last scan is repeated."""
    return jpeg[:-2] + jpeg[jpeg.rindex(b"\xff\xda") : -2] * count + jpeg[-2:]


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def write(folder: Path, name: str, data: bytes) -> Path:
    if name.endswith(".jp2") and not features.check("jpg_2000"):
        pytest.skip("this Pillow has no JPEG 2000")
    (folder / name).write_bytes(data)
    return folder / name
