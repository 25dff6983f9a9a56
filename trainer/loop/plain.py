"""Files of `torch.save`, read without running code: plain values and tensors, no objects."""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from augment.support.errors import UserError, first_line
from augment.support.lazy import torch

_BROKEN = (
    *(OSError, EOFError, LookupError, RuntimeError, ValueError, OverflowError, TypeError, AttributeError),
    *(zipfile.BadZipFile, struct.error, zlib.error),
)


class DamagedError(UserError):
    """A checkpoint is missing, cut short, or differs from what was written."""


def is_whole(path: Path) -> bool:
    """Return whether every part of a file matches its checksum, which PyTorch does not verify."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except _BROKEN:
        return False


def read_plain(path: Path, device: torch.device | None = None) -> Any:
    """Read what `torch.save` wrote, with its tensors on the device (default: the CPU).

    Raises:
        DamagedError: the file is cut short, or something else, such as one of PyTorch before version 1.6.
        UserError: it is compressed, or holds objects of other types.
    """
    # torch.load would mistake anything else for one of its own old formats, and fail in unpredictable ways.
    if not is_whole(path):
        raise DamagedError(f"{path}: not a checkpoint, or cut short.")
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                raise UserError(f"{path}: not a checkpoint: it is compressed, and those of PyTorch never are.")
        return torch.load(path, map_location=device or "cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # its message would advise loading it anyway
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f" ({found[1]})" if found else ""
        raise UserError(f"{path}: not a checkpoint: it holds more than plain values and tensors{what}.") from error
    except _BROKEN as error:
        raise UserError(f"{path}: not a checkpoint, or cut short ({first_line(error)}).") from error


def check_tensors(tensors: Iterable[object], path: Path) -> None:
    """Check that values are tensors that are no larger than what their file holds of them.

    Raises:
        UserError: one is something else, or repeats its numbers.
    """
    for value in tensors:
        if not isinstance(value, torch.Tensor):
            raise UserError(f"{path}: holds other types than a checkpoint does.")
        if value.layout is not torch.strided or value.nbytes > value.untyped_storage().nbytes():
            raise UserError(f"{path}: holds a tensor that is larger than its file.")
