"""Read images from NumPy's `.npy` and `.npz` files."""

from io import BytesIO
from math import prod
from threading import Lock
from typing import IO, Any, Literal
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
from numpy.typing import NDArray

from augment.data.formats.opened_raster import Content, OpenedRaster, with_channels
from augment.data.image_faults import PixelsError

# NumPy parses headers with `ast`, which can fail in several threads before Python 3.11.8 and 3.12.2 (gh-106905).
_HEADER_LOCK = Lock()


def open_npy(content: Content) -> OpenedRaster:
    shape, order, dtype, start = _read_npy_header(BytesIO(content), len(content))

    def load() -> NDArray[Any]:
        return np.frombuffer(content, dtype, prod(shape), start).reshape(shape, order=order)

    return OpenedRaster(with_channels(shape), dtype.name, load)


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


def open_npz(content: Content) -> OpenedRaster:
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
    return OpenedRaster(with_channels(shape), dtype.name, lambda: open_npy(archive.read(members[0])).load())
