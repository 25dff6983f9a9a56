"""Pictures in larger files beside those that are files: their names, their bytes, and how Pillow opens them."""

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from augment.dataset import Picture, Raw

# Files that are mapped into memory at a time; each takes a file descriptor, of which a process often has 1,024.
_MAPPED = 512


def name_of(picture: Picture) -> str:
    """Return what people call a picture: its path, or its name within its file."""
    return str(picture) if isinstance(picture, Path) else picture.name


def file_name(picture: Picture) -> str:
    """Return the last part of a picture's name."""
    return name_of(picture).rpartition("/")[2]


def read_encoded(picture: Picture) -> bytes | memoryview:
    """Return a picture's encoded bytes.

    Raises:
        OSError: they cannot be read.
    """
    return picture.read_bytes() if isinstance(picture, Path) else picture.read()


def as_ppm(pixels: NDArray[np.uint8]) -> bytes:
    """Return a picture, (height, width, 3), as PPM, which is its pixels behind a header."""
    return b"P6\n%d %d\n255\n" % (pixels.shape[1], pixels.shape[0]) + pixels.tobytes()


@contextmanager
def open_picture(picture: Picture) -> Iterator[Image.Image]:
    """Open a picture with Pillow.

    Raises:
        OSError: it cannot be read, or is of no format that Pillow knows.
    """
    if isinstance(picture, Path):
        with Image.open(picture) as image:
            yield image
    elif is_raw(picture):
        yield Image.fromarray(picture.read_pixels())
    else:
        with Image.open(BytesIO(picture.read())) as image:
            yield image


# `augment.export` writes this one out as it stands, so it uses nothing but Pillow and NumPy.
def to_rgb(image: Image.Image) -> Image.Image:
    """Return the picture in RGB, 8 bit a channel, upright as its EXIF block says; transparency is dropped."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bit, which Pillow would clip at 255
        image = Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    if image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("RGB")


def are_paths(pictures: Sequence[Picture]) -> bool:
    """Whether all pictures are files of their own."""
    return all(issubclass(kind, Path) for kind in set(map(type, pictures)))


def are_raw(pictures: Sequence[Picture]) -> bool:
    """Whether all pictures are stored decoded."""
    return all(hasattr(kind, "read_pixels") for kind in set(map(type, pictures)))


def is_raw(picture: Picture) -> TypeGuard[Raw]:
    """Whether a picture is stored decoded."""
    return hasattr(picture, "read_pixels")


@lru_cache(_MAPPED)
def mapped(file: Path) -> memoryview:
    """Return the bytes of a file, read when they are looked at; kept mapped while it is in use and a while after.

    Raises:
        OSError: it cannot be read.
        ValueError: it is empty.
    """
    with file.open("rb") as stream:
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def read_ahead(file: Path, start: int, size: int) -> None:
    """Have the system read a part of a mapped file, which will be looked at soon; returns at once."""
    mapping = mapped(file).obj
    assert isinstance(mapping, mmap.mmap)
    page = start // mmap.PAGESIZE * mmap.PAGESIZE
    mapping.madvise(mmap.MADV_WILLNEED, page, start + size - page)
