"""The `numpy` source: decoded pictures of one size in .npy files, mapped into memory."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.errors import UserError, first_line
from augment.files import near_file
from augment.records.kinds import told_by_content
from augment.records.spans import RecordFile, check_unchanged
from augment.stored import as_ppm


@dataclass(frozen=True, slots=True)
class ArrayPicture:
    """A picture in an array of pictures, (N, height, width, 3) uint8.

    Attributes:
        file: the .npy file as it was when it was listed.
        index: its place in the array.
    """

    file: RecordFile
    index: int

    @property
    def name(self) -> str:
        """File and place, "train.npy[17]"."""
        return f"{self.file.path.name}[{self.index}]"

    def read_pixels(self) -> NDArray[np.uint8]:
        """Return (height, width, 3), a view of the file.

        Raises:
            OSError: the file is not what it was.
        """
        check_unchanged(self.file)
        picture: NDArray[np.uint8] = _mapped(self.file)[self.index]
        return picture

    def read(self) -> bytes:
        """Return the picture as PPM, which is its pixels behind a header."""
        return as_ppm(self.read_pixels())


def read_arrays(file: str, targets: str, key: str) -> tuple[list[ArrayPicture], NDArray[Any]]:
    """Return the pictures and the targets, (N,) or (N, K), of a split.

    Args:
        file: a .npy file, (N, height, width, 3) uint8.
        targets: a .npy file, (N,) or (N, K) numbers.
        key: key path of `file`; that of `targets` is the same with "_targets".

    Raises:
        UserError: a file is missing, damaged, or of another shape or type.
    """
    path = Path(file).expanduser()
    pictures = _open(path, f"{key}={file}")
    state = RecordFile.of(path)
    if pictures.ndim != 4 or pictures.shape[3] != 3 or pictures.dtype != np.uint8 or 0 in pictures.shape:
        raise UserError(
            f"{key}={file}: is {pictures.shape} {pictures.dtype}. "
            f"Allowed: pictures of one size, (N, height, width, 3) uint8, RGB.{_advice(pictures)}"
        )
    found = _open(Path(targets).expanduser(), f"{key}_targets={targets}")
    rows = found.ndim in (1, 2) and len(found) == len(pictures) and found.size > 0
    if not rows or found.dtype.kind not in "biuf":
        raise UserError(
            f"{key}_targets={targets}: is {found.shape} {found.dtype}. Allowed: a number for each picture, "
            f"({len(pictures)},), or several, ({len(pictures)}, K)."
        )
    return [ArrayPicture(state, index) for index in range(len(pictures))], np.array(found)


_MARK, _ZIP = b"\x93NUMPY", b"PK\x03\x04"


@lru_cache(64)
def _mapped(file: RecordFile) -> NDArray[Any]:
    """Return an array, mapped."""
    return np.asarray(np.load(file.path, mmap_mode="r"))  # indexing a memmap costs ten times as much


def _advice(array: NDArray[Any]) -> str:
    """Say how an array becomes one that is allowed, if that is plain."""
    if array.ndim == 4 and array.shape[1] == 3 and array.dtype == np.uint8:
        return " With the channels in the second place: array.transpose(0, 2, 3, 1)."
    if array.ndim == 3 and array.dtype == np.uint8:
        return " Gray pictures: array[..., None].repeat(3, -1)."
    if array.ndim == 4 and array.shape[3] == 3 and array.dtype.kind == "f":
        return " Of floats in 0..1: (255 * array).round().astype('uint8')."
    return ""


def _open(file: Path, what: str) -> NDArray[Any]:
    if not file.exists():
        raise UserError(f"{what}: there is no file {file}.{near_file(file)} Allowed: one .npy file.")
    if file.is_dir():
        raise UserError(f"{what}: is a folder. Allowed: one .npy file.")
    try:
        with file.open("rb") as stream:
            mark = stream.read(len(_ZIP))
        if mark == _ZIP:
            raise UserError(f"{what}: holds several arrays. Allowed: a .npy file, as numpy.save writes it.")
        if mark != _MARK[: len(_ZIP)]:
            empty = " It is empty (0 bytes)." if not mark else ""
            raise UserError(
                f"{what}: is no .npy file, as numpy.save writes it.{empty or told_by_content(file, 'numpy')}"
            )
        array = np.load(file, mmap_mode="r")
    except OSError as error:
        raise UserError(f"{what}: cannot be read: {error.strerror or error}.") from None
    except (ValueError, EOFError) as error:
        if "object" in str(error):
            raise UserError(f"{what}: holds Python's objects. Allowed: an array of numbers.") from None
        raise UserError(f"{what}: is cut short or damaged ({first_line(error)}).") from None
    return np.asarray(array)
