"""Decode images with any number of channels: NumPy arrays, TIFF, 16-bit PNG, DICOM, and 8-bit images.

The content of a file decides how it is decoded. Sizes are checked before pixels are unpacked.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import chain
from math import prod
from threading import Lock, local
from typing import IO, Any, Literal
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from augment.data.image_faults import (
    DECODER_ERRORS,
    MAX_PIXELS,
    NOT_DECODED,
    PixelsError,
    describe_failure,
    exif_of_png,
)
from augment.data.images import (
    MIRRORED,
    SIDEWAYS,
    ImageRef,
    encoded_ref,
    is_decoded,
    open_image,
    open_with_pillow,
    orientation_of,
    read_encoded,
    read_exif,
)
from augment.params.param_types import MAX_CHANNELS
from augment.params.pixel_format import DTYPES
from augment.support.errors import UserError, first_line, import_extra
from augment.support.formatting import amount

# Extensions of the formats that only this module decodes.
RASTER_EXTENSIONS = frozenset({".npy", ".npz", ".dcm"})

# Extensions of formats that may hold 8-bit or other images. The content of a file decides.
MIXED_EXTENSIONS = frozenset({".png", ".tif", ".tiff"})

# The modes to which Pillow converts ordinary 8-bit images.
MODES = {1: "L", 3: "RGB", 4: "RGBA"}

# Maximum size of a decoded image in bytes.
MAX_DECODED_BYTES = 2**31

# Do not log faults, because errors report them with the name of the file.
for _name in ("PIL.TiffImagePlugin", "pydicom", "tifffile"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

# Data types that are converted to a supported type.
_READ_AS = {"float16": "float32", "float64": "float32"}

# The first bytes of TIFF files, and numbers of TIFF tags.
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_BITS_PER_SAMPLE, _ORIENTATION, _SAMPLES_PER_PIXEL, _SAMPLE_FORMAT = 258, 274, 277, 339

# The largest number of pages of a TIFF. `tifffile.imwrite` may save each row as a page, so its TIFFs may have more.
# tifffile compares all other pages with each other, and never reaches the end of pages that form a circle.
_MAX_ROWS, _MAX_PAGES = 2**16, 1000

# The metadata that tifffile reads here. Other kinds may claim billions of planes or name other files, and are ignored.
_READ_METADATA = {"shaped", "imagej", "uniform"}

# The compressions of TIFF files that tifffile never decodes to more than a strip or tile, and the formats of strips and
# tiles whose size Pillow can read.
_TIFF_CODECS = ("NONE", "LZW", "ADOBE_DEFLATE", "DEFLATE", "PACKBITS", "LZMA", "ZSTD")
_FORMATS_IN_TIFF = ("JPEG", "JPEG2000", "PNG", "WEBP")

# Kinds of TIFF colors whose values are not levels from black to white.
_NOT_LEVELS = {"PALETTE": "a palette", "SEPARATED": "CMYK colors", "CIELAB": "CIELAB colors"}

# The tag of an item in a DICOM file, little- and big-endian.
_DICOM_ITEM, _MAX_DICOM_ITEMS = (b"\xfe\xff\x00\xe0", b"\xff\xfe\xe0\x00"), 100_000

Content = bytes | memoryview


@dataclass(frozen=True)
class OpenedRaster:
    """An encoded image whose header has been read, but not its pixels.

    Attributes:
        shape: height, width and number of channels. An EXIF orientation may swap height and width.
        dtype: name of the data type of its decoded pixels.
        load: decodes the pixels, (height, width, channels), and turns them upright.
        orientation: the orientation of the stored pixels, if Pillow cannot open the image. 1 is upright.
    """

    shape: tuple[int, int, int]
    dtype: str
    load: Callable[[], NDArray[Any]]
    orientation: int = 1


def stored_orientation(image: ImageRef) -> int:
    """Return the orientation that makes an image's stored pixels upright, 1 to 8. Targets are in stored pixels.

    The images that `open_image` makes of rasters are already upright, so they have no orientation.
    """
    image = encoded_ref(image)
    if is_decoded(image):
        return 1
    with suppress(*DECODER_ERRORS, UserError), open_image(image) as opened:
        return orientation_of(opened)
    with suppress(*DECODER_ERRORS, UserError):  # Pillow does not open it
        return open_raster(read_encoded(image)).orientation
    return 1


def is_ordinary(content: Content) -> bool:
    """Return whether an encoded image has 1, 3 or 4 channels of at most 8 bits, as its header states."""
    return _opener(content) is None


def open_raster(content: Content, channels: int = 3) -> OpenedRaster:
    """Read the header of an encoded image.

    Args:
        content: the encoded image.
        channels: number of channels to which an ordinary 8-bit image is converted, a key of `MODES`.

    Raises:
        PixelsError: the image is damaged, too large, or has a data type that is not supported.
        UserError: a package is missing.
    """
    if not content:
        raise PixelsError("is empty (0 bytes)")
    with _faults():
        opener = _opener(content)
        return _checked(opener(content) if opener else _open_ordinary(content, channels))


def _opener(content: Content) -> Callable[[Content], OpenedRaster] | None:
    """Return the function that opens an image, or None for an ordinary image."""
    head = bytes(content[:132])
    if head.startswith(b"\x93NUMPY"):
        return _open_npy
    if head.startswith(b"PK\x03\x04"):
        return _open_npz
    if head[128:] == b"DICM":
        return _open_dicom
    if head.startswith(b"\x89PNG") and head[24:25] == b"\x10":
        return _open_png
    return _open_tiff if head.startswith(_TIFF) and not _is_ordinary_tiff(content) else None


def _checked(opened: OpenedRaster) -> OpenedRaster:
    """Reject unusual sizes and data types before the pixels are decoded."""
    dtype = _READ_AS.get(opened.dtype, opened.dtype)
    if dtype not in DTYPES:
        raise PixelsError(f"has {opened.dtype} pixels. Save it as one of {', '.join(DTYPES)}")
    height, width, channels = opened.shape
    if is_channels_first(opened.shape):
        raise PixelsError(f"has the shape {opened.shape}. Save it with its channels last: numpy.moveaxis(image, 0, 2)")
    if not (0 < channels <= MAX_CHANNELS and height > 0 and width > 0):
        raise PixelsError(f"has the shape {opened.shape}. Allowed: (height, width, 1 to {MAX_CHANNELS} channels)")
    if height * width > MAX_PIXELS or prod(opened.shape) * np.dtype(dtype).itemsize > MAX_DECODED_BYTES:
        raise PixelsError(
            f"claims {width} x {height} pixels with {amount(channels, 'channel')}. The limit is {MAX_PIXELS:,} pixels "
            f"and {MAX_DECODED_BYTES:,} bytes"
        )

    def load() -> NDArray[Any]:
        with _faults(), np.errstate(over="ignore"):
            found = np.asarray(opened.load(), dtype)  # in the byte order of the machine
            return found if found.ndim == 3 else found[:, :, None]

    return replace(opened, dtype=dtype, load=load)


def is_channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether a shape, (height, width, channels), is probably (channels, height, width)."""
    height, width, channels = shape
    return height != width and (height <= 4 < channels or height <= MAX_CHANNELS < channels)


@contextmanager
def _faults() -> Iterator[None]:
    """Turn the errors of decoders, which have many types, into a `PixelsError`."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise PixelsError(describe_failure(error)) from None
    except UnidentifiedImageError:
        raise PixelsError(NOT_DECODED) from None
    except Exception as error:
        raise PixelsError(f"is broken: {first_line(error)}") from error


def _with_channels(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) not in (2, 3):
        raise PixelsError(f"has the shape {shape}. Allowed: (height, width) or (height, width, channels)")
    return (shape[0], shape[1], shape[2] if len(shape) == 3 else 1)


# NumPy parses headers with `ast`, which can fail in several threads before Python 3.11.8 and 3.12.2 (gh-106905).
_HEADER_LOCK = Lock()


def _open_npy(content: Content) -> OpenedRaster:
    shape, order, dtype, start = _read_npy_header(BytesIO(content), len(content))

    def load() -> NDArray[Any]:
        return np.frombuffer(content, dtype, prod(shape), start).reshape(shape, order=order)

    return OpenedRaster(_with_channels(shape), dtype.name, load)


def _read_npy_header(stream: IO[bytes], size: int) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype[Any], int]:
    """Return the shape, the order of the axes, the data type, and the offset of the values. `size` is in bytes."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with _HEADER_LOCK:
        shape, is_fortran, dtype = read(stream)
    start = stream.tell()
    if not dtype.hasobject and size - start < prod(shape) * dtype.itemsize:
        raise PixelsError("is broken: it ends early")
    return shape, "F" if is_fortran else "C", dtype, start


def _open_npz(content: Content) -> OpenedRaster:
    archive = ZipFile(BytesIO(content))
    members = archive.infolist()
    if len(members) != 1:
        raise PixelsError(f"has {len(members)} arrays. Save each image in its own file")
    if members[0].compress_type not in (ZIP_STORED, ZIP_DEFLATED):  # Python unpacks other methods without a limit
        raise PixelsError("is compressed by a method that NumPy does not use. Use numpy.savez_compressed")
    size = members[0].file_size
    with archive.open(members[0]) as stream:
        head = BytesIO(stream.read(2**16))  # NumPy would read headers of gigabytes before it rejects them
    shape, _, dtype, start = _read_npy_header(head, size)
    if size > start + prod(shape) * dtype.itemsize:  # a stranger's file may contain much more than the image
        raise PixelsError("is broken: it contains more than one array")
    return OpenedRaster(_with_channels(shape), dtype.name, lambda: _open_npy(archive.read(members[0])).load())


def _open_png(content: Content) -> OpenedRaster:
    """Open a 16-bit PNG. Pillow would reduce colors to 8 bits."""
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[content[25]]
    if b"IEND" not in bytes(content):
        raise PixelsError("is broken: it ends early")
    if channels == 2:
        raise PixelsError("is a 16-bit PNG with gray and transparency. Save it without transparency, or as TIFF")
    width, height = (int.from_bytes(content[start : start + 4]) for start in (16, 20))
    return OpenedRaster((height, width, channels), "uint16", lambda: _decode_png(content))


_OWN = local()  # each thread has its own decoder


def decode_on_cpu(content: Content, *, unchanged: bool) -> Any:
    """Decode an image with nvImageCodec, `unchanged` or to upright 8-bit RGB like DALI. Return None if it is damaged.

    Raises:
        RuntimeError: the header cannot be read.
    """
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "1")  # no warnings about bad images
    from nvidia import nvimgcodec as codec

    if not hasattr(_OWN, "decoder"):
        _OWN.decoder = codec.Decoder(codec.NVIMGCODEC_DEVICE_CPU_ONLY, 1, [codec.Backend(codec.CPU_ONLY)])
    colors = codec.ColorSpec.UNCHANGED if unchanged else codec.ColorSpec.SRGB
    # nvImageCodec rotates images with four unchanged channels wrongly.
    params = codec.DecodeParams(color_spec=colors, allow_any_depth=unchanged, apply_exif_orientation=not unchanged)
    (decoded,) = _OWN.decoder.decode([codec.CodeStream(content)], params=params)
    return decoded


def _decode_png(content: Content) -> NDArray[Any]:
    decoded = decode_on_cpu(content, unchanged=True)
    if decoded is None:
        raise PixelsError("is broken, or a PNG variant that is not supported")
    block = next(iter(exif_of_png(bytes(content))), b"")
    return _upright(np.asarray(decoded.cpu()), read_exif(block) or 1)


def _is_ordinary_tiff(content: Content) -> bool:
    with suppress(*DECODER_ERRORS), open_with_pillow(BytesIO(content), ["TIFF"]) as image:
        tags: Any = image.tag_v2  # type: ignore[attr-defined]
        bits, formats = tags.get(_BITS_PER_SAMPLE, (1,)), tags.get(_SAMPLE_FORMAT, (1,))
        mode, size = image.mode, image.size
        most = 1 if mode == "L" else 4  # Pillow and DALI would read only the first channels
        if max(bits) > 8 or set(formats) != {1} or mode == "LA" or _samples(image) > most:  # 1: unsigned integers
            return False
        if mode == "L":
            with suppress(EOFError):
                image.seek(1)
                return image.size != size  # gray pages of one size are channels
        return True
    return False  # Pillow does not support this number of channels


def has_fourth_channel(content: Content) -> bool:
    """Return whether an image is an 8-bit TIFF with a fourth channel, which ordinary decoders treat as transparency."""
    with suppress(*DECODER_ERRORS), open_with_pillow(BytesIO(content), ["TIFF"]) as image:
        return image.mode in ("RGB", "RGBA") and _samples(image) == 4
    return False


def _samples(image: Image.Image) -> int:
    """Return the number of channels of an opened TIFF, including channels that Pillow ignores."""
    return int(image.tag_v2.get(_SAMPLES_PER_PIXEL, 1))  # type: ignore[attr-defined]


def _open_tiff(content: Content) -> OpenedRaster:
    what = "a TIFF image that is not 8-bit gray or RGB"
    tifffile = import_extra(what, "tifffile", "tiff")
    import_extra(what, "imagecodecs", "tiff")  # decompresses for tifffile
    file = tifffile.TiffFile(BytesIO(content))
    for kind in tifffile.TIFF.FILE_FLAGS - _READ_METADATA:
        setattr(file, f"is_{kind}", False)
    _require_few_pages(file)
    series = file.series[0]
    page = series.keyframe
    sizes = {axis: size for axis, size in zip(series.axes, series.shape, strict=True) if size > 1 or axis in "YX"}
    if series.kind == "shaped" and tuple(sizes) == ("Q", "Y", "X") and sizes["X"] < sizes["Q"]:
        # tifffile.imwrite saves an array, (height, width, channels), as a page of (width, channels) for each row.
        sizes = dict(zip("YXQ", series.shape, strict=True))
    planes = {axis: size for axis, size in re.findall('Size([CZT])="(.*?)"', page.description) if size != "1"}
    if len(series.pages) > 1 and len(planes) > 1:  # pages of an OME-TIFF
        sizes = planes | {axis: size for axis, size in sizes.items() if axis in "YX"}
    channels = sizes.keys() - {"Y", "X"}
    if len(channels) > 1 or not sizes.keys() >= {"Y", "X"}:
        raise PixelsError(
            f"has the axes {''.join(sizes)} of {' x '.join(map(str, sizes.values()))}. Save each image as a TIFF with "
            "height, width and one axis of channels"
        )
    if colors := _NOT_LEVELS.get(page.photometric.name):
        raise PixelsError(f"has {colors}. Save it as RGB")
    if prod(page.chunks) * page.dtype.itemsize > MAX_DECODED_BYTES:
        raise PixelsError(f"has tiles of {prod(page.chunks):,} values. Save it with smaller tiles")
    if prod(page.chunked) > len(page.dataoffsets):  # tifffile would fill missing tiles with zeros, which may take hours
        raise PixelsError("is broken: it lacks strips or tiles")

    _require_small_tiles(content, series)
    turn = file.pages.first.tags.valueof(_ORIENTATION)
    orientation = turn if turn in range(1, 9) else 1

    def load() -> NDArray[Any]:
        found = series.asarray(maxworkers=1).reshape(tuple(sizes.values()))
        found = np.moveaxis(found, [list(sizes).index(axis) for axis in ("Y", "X")], [0, 1])
        if page.photometric.name == "MINISWHITE" and found.dtype.kind == "u":
            found = 2**page.bitspersample - 1 - found
        return _upright(found, orientation)

    shape = (sizes["Y"], sizes["X"], *(sizes[axis] for axis in channels))
    return OpenedRaster(_with_channels(shape), page.dtype.name, load, orientation)


def _require_few_pages(file: Any) -> None:
    """Reject many pages and reduced images, unless `tifffile.imwrite` saved each row of an array as a page."""
    first = file.pages.first
    text = first.shaped_description or ""  # "shape=..." in old versions
    array = json.loads(text) if text.startswith("{") else {"shape": [0]}
    rows, rest = divmod(prod(array["shape"]), prod(first.shape))
    is_array = rows > _MAX_PAGES and not (rest or first.subifds or array.get("truncated"))
    most = min(rows, _MAX_ROWS) if is_array else _MAX_PAGES
    with suppress(IndexError):
        file.pages[most]
        raise PixelsError(f"has more than {most:,} pages. Save each image in its own file")
    if is_array:
        return
    reduced = sum(len(page.subifds or ()) for page in file.pages)
    if reduced > most:
        raise PixelsError(f"has more than {most:,} reduced images. Save it without them")
    if reduced:
        file.is_shaped = False  # otherwise, tifffile would follow the reduced images of reduced images


def _require_small_tiles(content: Content, series: Any) -> None:
    """Reject strips and tiles that decode to more pixels than the TIFF states, without decoding them.

    Raises:
        PixelsError: a strip or tile is too large, or its size cannot be read.
    """
    compression, most = series.keyframe.compression.name, prod(series.keyframe.chunks)
    if compression in _TIFF_CODECS:
        return
    tiles = (zip(page.dataoffsets, page.databytecounts, strict=False) for page in series.pages if page is not None)
    for start, length in chain.from_iterable(tiles):
        try:
            with Image.open(BytesIO(content[start : start + length]), formats=_FORMATS_IN_TIFF) as image:
                if image.width * image.height <= most:
                    continue
        except DECODER_ERRORS:
            pass
        raise PixelsError(f"is broken, or compressed as {compression}. Save it with another compression")


def _upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Make stored pixels, (height, width, ...), upright, given their EXIF orientation."""
    if orientation == 1:
        return pixels
    turned = pixels.swapaxes(0, 1) if orientation >= SIDEWAYS else pixels
    x, y = (slice(None, None, -1 if orientation in mirrored else 1) for mirrored in MIRRORED)
    return turned[y, x]


def _open_ordinary(content: Content, channels: int) -> OpenedRaster:
    image = open_with_pillow(BytesIO(content))
    if image.mode.startswith(("I", "F")):
        raise PixelsError(f"is a {image.format} with more than 8 bits per channel. Save it as 16-bit PNG or TIFF")
    if channels == 4 and image.format == "TIFF" and _samples(image) == 4:
        return _open_tiff(content)  # the fourth channel may be near infrared, which Pillow drops
    mode = MODES.get(channels, "RGB")

    def load() -> NDArray[Any]:
        turn = 1 if image.format == "TIFF" else orientation_of(image)  # Pillow rotates TIFFs automatically
        shown = image.convert("RGBA") if image.mode == "P" else image
        return _upright(np.asarray(shown.convert(mode)), turn)

    return OpenedRaster((image.height, image.width, len(mode)), "uint8", load)


def _open_dicom(content: Content) -> OpenedRaster:
    pydicom = import_extra("a DICOM image", "pydicom", "dicom")
    data = bytes(content)
    if b"1.2.840.10008.1.2.1.99" in data:  # pydicom would unpack the whole file, of any size
        raise PixelsError("is a deflated DICOM file. Save it with another transfer syntax")
    if max(map(data.count, _DICOM_ITEM)) > _MAX_DICOM_ITEMS:  # a million items take a minute
        raise PixelsError(f"has more than {_MAX_DICOM_ITEMS:,} items in its header. Save it without them")
    header = pydicom.dcmread(BytesIO(data))
    _reject_dicom_variants(header)
    colors, samples, size = header.PhotometricInterpretation, header.SamplesPerPixel, (header.Rows, header.Columns)
    slope, intercept = _rescaling(header)
    dtype = f"{'int' if header.PixelRepresentation else 'uint'}{header.BitsAllocated}"
    is_rescaled = (slope, intercept) != (1, 0)
    if is_rescaled:
        dtype = "int16" if slope.is_integer() and intercept.is_integer() else "float32"  # int16: Hounsfield units

    def load() -> NDArray[Any]:
        if (syntax := header.file_meta.TransferSyntaxUID).is_compressed:
            frame = pydicom.encaps.get_frame(header.PixelData, 0, number_of_frames=1)
            with suppress(UnidentifiedImageError), open_with_pillow(BytesIO(frame)) as image:
                if image.size != size[::-1]:  # a stranger's image may be much larger
                    raise PixelsError("is broken: the size in its header differs from the size of its pixels")
        try:
            found = header.pixel_array
        except (RuntimeError, NotImplementedError) as error:
            raise PixelsError(
                f"cannot be decoded. It is damaged, or {syntax.name} needs a decoder: pip install 'pylibjpeg[all]'"
            ) from error
        if found.shape[:2] != size:
            raise PixelsError("has more pixels than its header states. Save each frame in its own file")
        is_used = found != header.get("PixelPaddingValue")
        if colors == "MONOCHROME1":
            found = (-1 if header.PixelRepresentation else 2**header.BitsStored - 1) - found
        if not is_rescaled:
            return np.asarray(found)
        values = np.asarray(found * slope + intercept)
        return values if dtype == "float32" else _clip_to_int16(values, is_used)

    return OpenedRaster((*size, samples), dtype, load)


def _reject_dicom_variants(header: Any) -> None:
    if (frames := int(header.get("NumberOfFrames") or 1)) > 1:
        raise PixelsError(f"has {frames} frames. Save each frame in its own file")
    if header.PhotometricInterpretation == "PALETTE COLOR":
        raise PixelsError("has a palette. Save it as RGB")
    if "ModalityLUTSequence" in header or header.get("HighBit", header.BitsStored - 1) != header.BitsStored - 1:
        raise PixelsError("stores its values as a lookup table or in high bits. Save it with plain values")


def _rescaling(header: Any) -> tuple[float, float]:
    """Return the rescale slope and intercept of a DICOM file, which may be nested in its functional groups."""
    groups = [*header.get("SharedFunctionalGroupsSequence", []), *header.get("PerFrameFunctionalGroupsSequence", [])]
    nested = [item for group in groups for item in group.get("PixelValueTransformationSequence", [])]
    rescale = next((item for item in (header, *nested) if "RescaleSlope" in item), header)
    return float(rescale.get("RescaleSlope") or 1), float(rescale.get("RescaleIntercept") or 0)


def _clip_to_int16(values: NDArray[Any], is_used: NDArray[np.bool_]) -> NDArray[Any]:
    """Clip padding to the range of int16, and reject used values beyond this range."""
    low, high = DTYPES["int16"]
    used = values[is_used]
    if used.min(initial=0) < low or used.max(initial=0) > high:
        raise PixelsError(
            f"has values from {used.min():g} to {used.max():g} after its rescale slope and intercept. Save it as a "
            "float32 TIFF or .npy file"
        )
    return np.asarray(values.clip(low, high))
