"""Read TIFF images that are not 8-bit gray or RGB."""

import json
import logging
import re
from contextlib import suppress
from io import BytesIO
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.data.formats.opened_raster import MAX_DECODED_BYTES, Content, OpenedRaster, upright, with_channels
from augment.data.image_faults import DECODER_ERRORS, PixelsError
from augment.data.images import open_with_pillow
from augment.support.errors import import_extra

# Do not log faults, because errors report them with the name of the file.
for _name in ("PIL.TiffImagePlugin", "tifffile"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

# Numbers of TIFF tags.
_BITS_PER_SAMPLE, _ORIENTATION, _SAMPLES_PER_PIXEL, _SAMPLE_FORMAT = 258, 274, 277, 339

# The largest number of pages of a TIFF. `tifffile.imwrite` may save each row as a page, so its TIFFs may have more.
# tifffile compares all other pages with each other, and never reaches the end of pages that form a circle.
_MAX_ROWS, _MAX_PAGES = 2**16, 1000

# The metadata that tifffile reads here. Other kinds may claim billions of planes or name other files, and are ignored.
READ_METADATA = {"shaped", "imagej", "uniform"}

# The compressions of TIFF files that tifffile never decodes to more than a strip or tile, and the formats of strips and
# tiles whose size Pillow can read.
_TIFF_CODECS = ("NONE", "LZW", "ADOBE_DEFLATE", "DEFLATE", "PACKBITS", "LZMA", "ZSTD")
_FORMATS_IN_TIFF = ("JPEG", "JPEG2000", "PNG", "WEBP")

# Kinds of TIFF colors whose values are not levels from black to white.
_NOT_LEVELS = {"PALETTE": "a palette", "SEPARATED": "CMYK colors", "CIELAB": "CIELAB colors"}


def is_ordinary_tiff(content: Content) -> bool:
    """Return whether a TIFF has 1, 3 or 4 channels of at most 8 bits, as its header states."""
    with suppress(*DECODER_ERRORS), open_with_pillow(BytesIO(content), ["TIFF"]) as image:
        tags: Any = image.tag_v2  # type: ignore[attr-defined]
        bits, formats = tags.get(_BITS_PER_SAMPLE, (1,)), tags.get(_SAMPLE_FORMAT, (1,))
        mode, size = image.mode, image.size
        most = 1 if mode == "L" else 4  # Pillow and DALI would read only the first channels
        if max(bits) > 8 or set(formats) != {1} or mode == "LA" or samples(image) > most:  # 1: unsigned integers
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
        return image.mode in ("RGB", "RGBA") and samples(image) == 4
    return False


def samples(image: Image.Image) -> int:
    """Return the number of channels of an opened TIFF, including channels that Pillow ignores."""
    return int(image.tag_v2.get(_SAMPLES_PER_PIXEL, 1))  # type: ignore[attr-defined]


def open_tiff(content: Content) -> OpenedRaster:
    """Read the header of a TIFF."""
    what = "a TIFF image that is not 8-bit gray or RGB"
    tifffile = import_extra(what, "tifffile", "tiff")
    import_extra(what, "imagecodecs", "tiff")  # decompresses for tifffile
    file = tifffile.TiffFile(BytesIO(content))
    for kind in tifffile.TIFF.FILE_FLAGS - READ_METADATA:
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
        return upright(found, orientation)

    shape = (sizes["Y"], sizes["X"], *(sizes[axis] for axis in channels))
    return OpenedRaster(with_channels(shape), page.dtype.name, load, orientation)


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
