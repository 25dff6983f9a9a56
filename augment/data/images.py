"""Names and bytes of images, which may be files or parts of larger files; open them with Pillow."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from augment.data.dataset import DecodedImage, ImageRef, Paths, as_paths, kinds_of
from augment.data.faults import DECODER_ERRORS
from augment.support.files import open_file, read_file


def name_of(image: ImageRef) -> str:
    """Return an image's name for messages: its path, or its name within its file."""
    return str(image) if isinstance(image, Path) else image.name


def portable_name(image: ImageRef) -> str:
    """Return an image's name that does not depend on where its data set is: its folder and file name."""
    return f"{image.parent.name}/{image.name}" if isinstance(image, Path) else image.name


def portable_names(images: Sequence[ImageRef]) -> Iterable[str]:
    """Return the `portable_name` of each image."""
    if isinstance(images, Paths):  # without a `Path` for each
        return ("/".join(text.rsplit("/", 2)[-2:]) if "/" in text else f"/{text}" for text in images.texts())
    return map(portable_name, images)


def read_encoded(image: ImageRef) -> bytes | memoryview:
    """Return an image's encoded bytes.

    Raises:
        OSError: they cannot be read.
    """
    return read_file(image) if isinstance(image, Path) else image.read()


def as_ppm(pixels: NDArray[np.uint8]) -> bytes:
    """Return an image, (height, width, 3) or (height, width, 1), as PPM or PGM: a header and the pixels."""
    height, width, channels = pixels.shape
    return b"P%d\n%d %d\n255\n" % (6 if channels == 3 else 5, width, height) + pixels.tobytes()


def as_jpeg(image: Image.Image, quality: int) -> bytes:
    """Return an image as JPEG."""
    stream = BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


@contextmanager
def open_image(ref: ImageRef) -> Iterator[Image.Image]:
    """Open an image with Pillow.

    Raises:
        OSError: it cannot be read, or is of no format that Pillow knows.
    """
    if isinstance(ref, Path):
        with open_file(ref) as stream, Image.open(stream) as image:
            yield image
    elif is_decoded(ref):
        yield Image.fromarray(ref.read_pixels())
    else:
        with Image.open(BytesIO(ref.read())) as image:
            yield image


# `augment.pipeline.serving` copies the source of this function, so it uses only Pillow and NumPy.
def to_rgb(image: Image.Image) -> Image.Image:
    """Return the image in RGB, 8 bits per channel, upright by its EXIF orientation; transparency is dropped."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bit, which Pillow would clip at 255
        image = Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    if image.mode == "F":  # from 0 to 1, as DALI takes floats
        image = Image.fromarray(np.rint(np.asarray(image).clip(0, 1) * 255).astype(np.uint8))
    if image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("RGB")


def has_range(image: Image.Image) -> bool:
    """Return whether it is known of an image which levels are black and white; PPM has 16 bits as 32."""
    return image.mode != "F" and (image.mode != "I" or image.format == "PPM")


# The first of the EXIF orientations that swap width and height, and those that then mirror along x and along y.
SIDEWAYS = 5
MIRRORED = (2, 3, 6, 7), (3, 4, 7, 8)


def orientation_of(image: Image.Image) -> int:
    """Return the EXIF orientation of an opened image, 1 to 8; 1 is upright, as by a corrupt EXIF block."""
    found = 1
    with suppress(*DECODER_ERRORS):
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
    return found if found in range(1, 9) else 1


# What is wrong with an image whose targets may be in pixels of it before or after it is turned.
TURNED = "a Pillow image that its EXIF block turns. Allowed with targets in the image, or frames: exif_transpose of it."


def is_turned(image: object) -> bool:
    """Return whether an image is a Pillow image that `to_rgb` turns."""
    return isinstance(image, Image.Image) and "exif" in image.info and orientation_of(image) > 1


def are_paths(images: Sequence[ImageRef]) -> bool:
    """Whether DALI reads all images itself: they are files of their own, with names in UTF-8."""
    if (paths := as_paths(images)) is None:
        return False
    try:
        starts = range(0, len(paths), 65536)
        return all(b"\n".join(paths.names[start : start + 65536].tolist()).decode() for start in starts)
    except UnicodeDecodeError:
        return False


def are_decoded(images: Sequence[ImageRef]) -> bool:
    """Whether all images are stored decoded."""
    return all(hasattr(kind, "read_pixels") for kind in kinds_of(images))


def is_decoded(image: ImageRef) -> TypeGuard[DecodedImage]:
    """Whether an image is stored decoded."""
    return hasattr(image, "read_pixels")


def turn_back(labels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return an array of an upright image, (height, width), as the pixels of its file are, by its EXIF orientation."""
    x, y = (slice(None, None, -1 if orientation in mirrored else 1) for mirrored in MIRRORED)
    return np.ascontiguousarray(labels[y, x].T if orientation >= SIDEWAYS else labels[y, x])


def points_back(points: NDArray[np.float64], orientation: int) -> NDArray[np.float64]:
    """Return where points of an upright image, (M, 2), are in its file; both in shares of width and height."""
    found = np.where([orientation in mirrored for mirrored in MIRRORED], 1 - points, points)
    return found[:, ::-1] if orientation >= SIDEWAYS else found
