"""Names, bytes and pixels of images, which may be files or parts of larger files.

An image is turned, scaled and sized as DALI's decoder does it, by all that reads images with Pillow.
"""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from augment.data.dataset import DecodedImage, ImageRef, Paths, as_paths, kinds_of
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


def open_with_pillow(stream: BinaryIO) -> Image.Image:
    """Open an encoded image, unless Pillow would start another program to decode it.

    Raises:
        OSError: it is EPS, or of no format that Pillow knows.
    """
    image = Image.open(stream)
    if image.format == "EPS":
        raise UnidentifiedImageError("EPS is not supported; save it as PNG")
    return image


@contextmanager
def open_image(ref: ImageRef) -> Iterator[Image.Image]:
    """Open an image with Pillow.

    Raises:
        OSError: it cannot be read, or is of no format that Pillow knows.
    """
    if isinstance(ref, Path):
        with open_file(ref) as stream, open_with_pillow(stream) as image:
            yield image
    elif is_decoded(ref):
        yield Image.fromarray(ref.read_pixels())
    else:
        with open_with_pillow(BytesIO(ref.read())) as image:
            yield image


# Exported programs copy the functions of `READER`, which therefore use only Pillow, NumPy and each other.

# The first of the orientations that swap width and height, and those that then mirror along x and along y.
SIDEWAYS = 5
MIRRORED = (2, 3, 6, 7), (3, 4, 7, 8)


def read_exif(block: bytes) -> int:
    """Return the orientation in an EXIF block, 1 to 8, as DALI reads it; 0 if the block is damaged and may crash DALI.

    DALI takes the first orientation and the first two bytes of its value, whatever the type. Of the other tags it reads
    texts and fractions, and the block is damaged if one of these is not in it.
    """
    step = -1 if block[:2] == b"II" else 1  # through the bytes of a number

    def number(start: int, size: int) -> int:
        return int.from_bytes(block[start : start + size][::step])

    texts = (0x10E, 0x10F, 0x110, 0x131, 0x132, 0x8298)
    fractions = {0x11A: 8, 0x11B: 8, 0x13E: 16, 0x13F: 48, 0x211: 24, 0x214: 48}  # their bytes
    start, whole, found = number(4, 4) + 2, True, 0
    if number(2, 2) != 42 or start > len(block):
        return 1
    for entry in range(start, start + 12 * number(start - 2, 2), 12):
        if entry + 10 > len(block):
            whole = False
            break
        tag, count, value = number(entry, 2), number(entry + 4, 4), number(entry + 8, 4)
        if tag == 0x112:
            found = found or number(entry + 8, 2) or 1
        elif tag in texts:
            whole &= (value if count > 4 else 8) + count <= len(block)
        elif tag in fractions:
            whole &= value + fractions[tag] <= len(block)
    if not 1 < found < 9:
        return 1
    return found if whole else 0


def orientation_of(image: Image.Image) -> int:
    """Return the orientation in the EXIF block of an opened image, 1 to 8. 1 is upright. XMP does not count."""
    if image.format == "TIFF":
        found = image.tag_v2.get(0x112, 1)  # type: ignore[attr-defined]
        return found if found in range(1, 9) else 1
    if image.format == "PNG" and "exif" not in image.info:
        image.load()  # the block may come after the pixels
    block = image.info.get("exif", b"")
    return read_exif(block if image.format == "WEBP" else block.removeprefix(b"Exif\0\0")) or 1


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image in RGB with 8 bits per channel, turned upright. Transparency is dropped."""
    white = 65535
    if image.format == "TIFF":  # which Pillow turns by itself
        vars(image)["filename"] = ""  # Pillow would map the file and then turn some wrongly
        turn, white = 1, 2 ** min(16, image.tag_v2.get(258, (16,))[0]) - 1  # type: ignore[attr-defined]
    else:
        turn = orientation_of(image)
    if turn > 1:
        turns = (
            Image.Transpose.FLIP_LEFT_RIGHT,
            Image.Transpose.ROTATE_180,
            Image.Transpose.FLIP_TOP_BOTTOM,
            Image.Transpose.TRANSPOSE,
            Image.Transpose.ROTATE_270,
            Image.Transpose.TRANSVERSE,
            Image.Transpose.ROTATE_90,
        )
        image = image.transpose(turns[turn - 2])
    if image.mode.startswith("I"):  # more than 8 bits, which Pillow would clip at 255
        image = Image.fromarray(np.rint(np.asarray(image) * (255 / white)).astype(np.uint8))
    if image.mode == "F":  # from 0 to 1, as DALI takes floats
        image = Image.fromarray(np.rint(np.asarray(image).clip(0, 1) * 255).astype(np.uint8))
    if image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("RGB")


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Return width and height of an opened image after it is turned; ask before its pixels are read."""
    turned = orientation_of(image) >= SIDEWAYS and image.format != "TIFF"  # whose size Pillow has turned already
    return (image.height, image.width) if turned else image.size


def stored_size(image: Image.Image) -> tuple[int, int]:
    """Return width and height of an opened image before it is turned; ask before its pixels are read."""
    width, height = upright_size(image)
    return (height, width) if orientation_of(image) >= SIDEWAYS else (width, height)


def has_range(image: Image.Image) -> bool:
    """Return whether it is known of an image which levels are black and white; PPM has 16 bits as 32."""
    if image.format == "TIFF" and image.tag_v2.get(339, (1,))[0] != 1:  # type: ignore[attr-defined]
        return False  # signed
    return image.mode != "F" and (image.mode != "I" or image.format == "PPM")


READER = read_exif, orientation_of, to_rgb


def reader_source() -> str:
    """Return the source of what reads images in exported programs: `to_rgb` and what it uses."""
    return "\n\n".join(inspect.getsource(part) for part in READER)


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
