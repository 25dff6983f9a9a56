"""References to images, which are files or parts of larger files, and their names, bytes and pixels.

`Paths` stores the paths of many files in one array: a million paths need 0.1 GB instead of 0.8 GB.
`to_rgb` rotates Pillow images, and scales their levels to 8 bits, in the same way as DALI's decoder.
"""

import inspect
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from augment.data.display import Limits, displayable, stretch_limits
from augment.params.pixel_format import PixelFormat
from augment.support.errors import UserError
from augment.support.files import open_file, read_file

V = TypeVar("V")

# The formats that Pillow decodes by starting Ghostscript. IPTC files may contain an EPS file.
_UNSAFE_FORMATS = ("EPS", "IPTC")

# The bytes of a value in a TIFF by the type of its tag.
_TAG_BYTES = dict(enumerate((1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4), 1)) | {16: 8}


class Paths(Sequence[Path]):
    """Paths of files in one array. Indexing creates a `Path`.

    Attributes:
        names: (N,) the paths in bytes, in the encoding of the file system.
    """

    def __init__(self, files: Iterable[str | Path] | NDArray[np.bytes_]) -> None:
        self.names = files if isinstance(files, np.ndarray) else np.array(list(map(os.fsencode, files)), np.bytes_)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        found = self.names[index]
        return Paths(found) if isinstance(found, np.ndarray) else Path(os.fsdecode(found))

    def __iter__(self) -> Iterator[Path]:
        return map(Path, self.texts())

    def __add__(self, others: Any) -> Any:
        paths = as_paths(others)
        return (*self, *others) if paths is None else Paths(np.concatenate([self.names, paths.names]))

    def __radd__(self, others: Any) -> Any:
        paths = as_paths(others)
        return (*others, *self) if paths is None else paths + self

    def __eq__(self, others: object) -> bool:
        if isinstance(others, Paths):
            return np.array_equal(self.names, others.names)
        return isinstance(others, Sequence) and list(self) == list(others)

    __hash__ = None  # type: ignore[assignment]

    def texts(self) -> Iterator[str]:
        for start in range(0, len(self), 65536):
            some = self.names[start : start + 65536].tolist()
            yield from os.fsdecode(b"\0\n".join(some)).split("\0\n")  # decoding them one by one is several times slower


def as_paths(images: Sequence[Any]) -> Paths | None:
    """Return images as paths, or None if some are stored in larger files."""
    if isinstance(images, Paths):
        return images
    return Paths(images) if all(issubclass(kind, Path) for kind in kinds_of(images)) else None


def kinds_of(images: Sequence[Any]) -> set[type]:
    return {Path} if isinstance(images, Paths) else set(map(type, images))


def image_keys(images: Sequence[Any]) -> list[Any]:
    """Return keys that are equal for equal images. The keys of `Paths` are bytes, because `Path` objects are larger."""
    return images.names.tolist() if isinstance(images, Paths) else list(images)


def take_images(images: Sequence[Any], indices: NDArray[np.int64]) -> Any:
    return images[indices] if isinstance(images, Paths) else tuple(images[index] for index in indices.tolist())


def known_of(images: Sequence[Any], known: Mapping[Any, V]) -> dict[int, V]:
    """Look up images in a mapping, and return the values found, keyed by image index."""
    if not known:
        return {}
    if isinstance(images, Paths):
        names = {os.fsencode(image): value for image, value in known.items() if isinstance(image, Path)}
        return {index: names[name] for index, name in enumerate(images.names.tolist()) if name in names}
    return {index: known[image] for index, image in enumerate(images) if image in known}


class ImageError(UserError):
    """The error of one of several images that are read together. `key` identifies the image."""

    def __init__(self, key: int, text: str) -> None:
        super().__init__(key, text)  # pickle creates the copy from both arguments
        self.key = key

    def __str__(self) -> str:
        return str(self.args[1])


class StoredImage(Protocol):
    """An encoded image in a larger file. It can be hashed, and pickled without its content.

    Optional methods:

    - `expect() -> None` is called some time before `read`, to prefetch the bytes.
    - The class method `begin(images: Mapping[int, Self]) -> list[Future[dict[int, ...]]]` reads images in the
      background. Each future holds the results of `read` or `read_pixels` by the images' keys, or raises an
      `ImageError`.
    - `read_together(images: Sequence[Self]) -> list[NDArray]` reads decoded images faster than one by one.

    Optional attributes `file` (a `RecordFile`) and `slot` (a str) together identify the bytes. With them, the check of
    the image is cached. The name cannot identify the bytes, because the next run may give it to another image.
    """

    @property
    def name(self) -> str:
        """The name for messages, unique in the split: "train-000.tar/cat_0001.jpg"."""

    def read(self) -> bytes | memoryview:
        """Return the encoded image."""


class DecodedImage(StoredImage, Protocol):
    """An image that is stored decoded. `read` encodes it without losses."""

    def read_pixels(self) -> NDArray[Any]:
        """Return (height, width, channels) in an array that does not change later."""


ImageRef = Path | StoredImage
Images = Paths | tuple[ImageRef, ...]


def name_of(image: ImageRef) -> str:
    """Return an image's name for messages: its path, or its name in a larger file."""
    return str(image) if isinstance(image, Path) else image.name


def encoded_ref(image: ImageRef) -> ImageRef:
    """Return the file or stored image that a raster decodes. Other images are returned unchanged."""
    ref: ImageRef = getattr(image, "ref", image) if hasattr(image, "read_stored") else image
    return ref


def portable_name(image: ImageRef) -> str:
    """Return an image's folder and file name, which do not depend on the location of the dataset."""
    image = encoded_ref(image)
    return f"{image.parent.name}/{image.name}" if isinstance(image, Path) else image.name


def portable_names(images: Sequence[ImageRef]) -> Iterable[str]:
    """Return the `portable_name` of each image."""
    if isinstance(images, Paths):  # creating a `Path` for each would be slow
        return ("/".join(text.rsplit("/", 2)[-2:]) if "/" in text else f"/{text}" for text in images.texts())
    return map(portable_name, images)


def read_encoded(image: ImageRef) -> bytes | memoryview:
    """Return an image's encoded bytes.

    Raises:
        OSError: the file cannot be read, or is too large.
    """
    return read_file(image) if isinstance(image, Path) else image.read()


def as_ppm(pixels: NDArray[np.uint8]) -> bytes:
    """Encode an image, (height, width, 3) or (height, width, 1), as PPM or PGM."""
    height, width, channels = pixels.shape
    return b"P%d\n%d %d\n255\n" % (6 if channels == 3 else 5, width, height) + pixels.tobytes()


@dataclass(frozen=True, eq=False)
class MemoryImage:
    """A decoded image in memory. See `augment.data.images.DecodedImage`."""

    name: str
    pixels: NDArray[Any]  # (height, width, channels)

    def read(self) -> bytes:
        return as_ppm(self.pixels)

    def read_pixels(self) -> NDArray[Any]:
        return self.pixels


def as_jpeg(image: Image.Image, quality: int) -> bytes:
    stream = BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def open_with_pillow(stream: BinaryIO, formats: list[str] | tuple[str, ...] | None = None) -> ImageFile.ImageFile:
    """Open an encoded image, optionally only in some formats.

    Raises:
        OSError: the format is in `_UNSAFE_FORMATS` or not supported, or the tags of a TIFF are too large.
    """
    if _has_huge_tags(stream):
        raise OSError("its tags claim more bytes than the file has")
    image = Image.open(stream, formats=formats)
    if image.format in _UNSAFE_FORMATS:
        raise UnidentifiedImageError(f"{image.format} is not supported. Save it as PNG")
    return image


def _has_huge_tags(stream: BinaryIO) -> bool:
    """Return whether an image is a TIFF whose tags claim more bytes than the file has, on its first two pages.

    Pillow reads all tags of a page into memory. Thousands of tags may refer to the same megabyte.
    """
    total, size = 0, stream.seek(0, os.SEEK_END)
    stream.seek(0)
    head = stream.read(3)
    if is_tiff := head[:2] in (b"II", b"MM"):
        order = "<" if head[:1] == b"I" else ">"
        # Pillow reads BigTIFF only in little-endian order.
        at, count, number, step = (8, "Q", "Q", 20) if head[2:3] == b"+" else (4, "H", "I", 12)

        def read(position: int, kind: str) -> int:
            stream.seek(position)
            return int(struct.unpack(order + kind, stream.read(struct.calcsize(kind)))[0])

        with suppress(struct.error, OverflowError):  # a page is outside the file
            for _ in range(2):
                if (page := read(at, number)) == 0:
                    break
                tags = read(page, count)
                found, at = stream.read(min(tags * step, size)), stream.tell()
                entries = struct.iter_unpack(f"{order}HH{2 * number}", found[: len(found) // step * step])
                total += sum(_TAG_BYTES.get(kind, 0) * values for _, kind, values, _ in entries)
    stream.seek(0)
    return is_tiff and total > size


def shown_limits(image: ImageRef) -> Limits | None:
    """Return the levels of an image that become black and white, see `augment.data.display`, or None for 8-bit RGB."""
    form = getattr(image, "pixels", None)
    if isinstance(form, PixelFormat) and is_decoded(image):
        return stretch_limits(form.levels(image.read_pixels()))
    return None


@contextmanager
def open_image(ref: ImageRef) -> Iterator[Image.Image]:
    """Open an image with Pillow. A raster becomes 8-bit RGB for display, see `augment.data.display`.

    Raises:
        OSError: the image cannot be read, or Pillow does not support its format.
    """
    if isinstance(ref, Path):
        with open_file(ref) as stream, open_with_pillow(stream) as image:
            yield image
    elif is_decoded(ref):
        pixels, form = ref.read_pixels(), getattr(ref, "pixels", None)
        if isinstance(form, PixelFormat):
            pixels = displayable(form.levels(pixels), form)
        yield Image.fromarray(pixels)
    else:
        with open_with_pillow(BytesIO(ref.read())) as image:
            yield image


# Exported programs copy the functions of `READER`, so these functions use only Pillow, NumPy and each other.

# The first EXIF orientation that swaps width and height, and the orientations that mirror along x and along y.
SIDEWAYS = 5
MIRRORED = (2, 3, 6, 7), (3, 4, 7, 8)


def read_exif(block: bytes) -> int:
    """Return the orientation in an EXIF block, 1 to 8, as DALI reads it, or 0 if the block may crash DALI.

    DALI uses the first orientation tag and the first two bytes of its value, whatever the type. It also reads text and
    rational tags. The block is damaged if one of their values lies outside the block.
    """
    step = -1 if block[:2] == b"II" else 1  # byte order of numbers

    def number(start: int, size: int) -> int:
        return int.from_bytes(block[start : start + size][::step])

    texts = (0x10E, 0x10F, 0x110, 0x131, 0x132, 0x8298)
    fractions = {0x11A: 8, 0x11B: 8, 0x13E: 16, 0x13F: 48, 0x211: 24, 0x214: 48}  # size in bytes
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
    """Return the EXIF orientation of an opened image, 1 (upright) to 8. XMP is ignored."""
    if image.format == "TIFF":
        found = image.tag_v2.get(0x112, 1)  # type: ignore[attr-defined]
        return found if found in range(1, 9) else 1
    if image.format == "PNG" and "exif" not in image.info:
        image.load()  # the block may come after the pixels
    block = image.info.get("exif", b"")
    return read_exif(block if image.format == "WEBP" else block.removeprefix(b"Exif\0\0")) or 1


def turn_upright(image: Image.Image) -> Image.Image:
    """Rotate and mirror an opened image by its EXIF orientation. Pillow rotates TIFFs automatically."""
    if (turn := 1 if image.format == "TIFF" else orientation_of(image)) == 1:
        return image
    turns = (
        Image.Transpose.FLIP_LEFT_RIGHT,
        Image.Transpose.ROTATE_180,
        Image.Transpose.FLIP_TOP_BOTTOM,
        Image.Transpose.TRANSPOSE,
        Image.Transpose.ROTATE_270,
        Image.Transpose.TRANSVERSE,
        Image.Transpose.ROTATE_90,
    )
    return image.transpose(turns[turn - 2])


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to upright 8-bit RGB without transparency."""
    white = 65535
    if image.format == "TIFF":
        vars(image)["filename"] = ""  # otherwise, Pillow maps the file into memory and rotates some images wrongly
        white = 2 ** min(16, image.tag_v2.get(258, (16,))[0]) - 1  # type: ignore[attr-defined]
    image = turn_upright(image)
    if image.mode.startswith("I"):  # Pillow would clip more than 8 bits at 255
        image = Image.fromarray(np.rint(np.asarray(image) * (255 / white)).astype(np.uint8))
    if image.mode == "F":  # DALI expects floats from 0 to 1
        image = Image.fromarray(np.rint(np.asarray(image).clip(0, 1) * 255).astype(np.uint8))
    if image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("RGB")


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Return the upright width and height of an opened image. Call this before the pixels are read."""
    turned = orientation_of(image) >= SIDEWAYS and image.format != "TIFF"  # Pillow reports the upright size of TIFFs
    return (image.height, image.width) if turned else image.size


def stored_size(image: Image.Image) -> tuple[int, int]:
    """Return the stored width and height of an opened image. Call this before the pixels are read."""
    width, height = upright_size(image)
    return (height, width) if orientation_of(image) >= SIDEWAYS else (width, height)


def has_range(image: Image.Image) -> bool:
    """Return whether the levels of black and white are known. Pillow opens 16-bit PPMs in a 32-bit mode."""
    if image.format == "TIFF" and image.tag_v2.get(339, (1,))[0] != 1:  # type: ignore[attr-defined]
        return False  # signed
    return image.mode != "F" and (image.mode != "I" or image.format == "PPM")


READER = read_exif, orientation_of, turn_upright, to_rgb


def reader_source(*, is_rgb: bool = True) -> str:
    """Return the source code of `READER` for exported programs, without `to_rgb` if their images are not RGB."""
    return "\n\n".join(inspect.getsource(part) for part in READER if is_rgb or part is not to_rgb)


# The fault of an image whose targets may belong to the stored or to the upright image.
TURNED = (
    "a Pillow image with an EXIF orientation. For masks, boxes, keypoints or frames, "
    "pass ImageOps.exif_transpose(image)."
)


def is_turned(image: object) -> bool:
    """Return whether an image is a Pillow image that `to_rgb` rotates or mirrors."""
    return isinstance(image, Image.Image) and "exif" in image.info and orientation_of(image) > 1


def are_paths(images: Sequence[ImageRef]) -> bool:
    """Return whether DALI can open all images itself. They must be files with UTF-8 names."""
    if (paths := as_paths(images)) is None:
        return False
    try:
        starts = range(0, len(paths), 65536)
        return all(b"\n".join(paths.names[start : start + 65536].tolist()).decode() for start in starts)
    except UnicodeDecodeError:
        return False


def are_decoded(images: Sequence[ImageRef]) -> bool:
    return all(hasattr(kind, "read_pixels") for kind in kinds_of(images))


def is_decoded(image: ImageRef) -> TypeGuard[DecodedImage]:
    return hasattr(image, "read_pixels")


def turn_back(labels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn an array of an upright image, (height, width), to match the stored image with this EXIF orientation."""
    x, y = (slice(None, None, -1 if orientation in mirrored else 1) for mirrored in MIRRORED)
    return np.ascontiguousarray(labels[y, x].T if orientation >= SIDEWAYS else labels[y, x])


def points_back(points: NDArray[np.float64], orientation: int) -> NDArray[np.float64]:
    """Map points of an upright image to the stored image, (M, 2) in shares of width and height."""
    found = np.where([orientation in mirrored for mirrored in MIRRORED], 1 - points, points)
    return found[:, ::-1] if orientation >= SIDEWAYS else found
