"""Files from `torch.save` that contain only plain values and tensors. Reading them cannot run code.

PyTorch itself does not verify checksums, and reads files that unpack to any size.
"""

from __future__ import annotations

import os
import pickle
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from augment.support.errors import UserError, first_line
from augment.support.lazy_torch import Tensor, torch
from augment.support.process import host_memory
from augment.support.untrusted_files import MAX_DEPTH, damage_errors
from trainer.loop.pickle_check import MAX_VALUES, ForeignTypeError, check_pickle

_BROKEN = damage_errors(OSError, zipfile.BadZipFile, zlib.error)

# The maximum number of bytes of values that are not in tensors. No model reaches it. Such values are slow to read.
MAX_PICKLE = 2**23

# The first bytes of files that PyTorch before version 1.6 wrote.
_OLD = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")

_OLD_PICKLES = 5  # pickles in such a file

_REMEDY = "Restore it, or use another file."


class DamagedError(UserError):
    """A checkpoint is missing, truncated or damaged."""


def is_whole(path: Path) -> bool:
    """Return whether a file matches its checksums, which PyTorch does not verify."""
    with suppress(UserError, *_BROKEN), _open(path) as archive:
        return archive.testzip() is None
    return False


def read_plain(path: Path, device: torch.device | None = None, *, old: bool = False) -> Any:
    """Read a file from `torch.save` that contains only plain values and tensors.

    Args:
        path: the file.
        device: the device of the tensors. None: the CPU.
        old: whether to accept files from PyTorch before version 1.6, which have no checksums.

    Raises:
        DamagedError: the file is truncated, or is not a checkpoint.
        UserError: the file is compressed or too large, or contains other objects.
    """
    try:
        with open(path, "rb") as stream:
            is_old = old and stream.read(len(_OLD)) == _OLD
            stream.seek(0)
            for _ in range(_OLD_PICKLES if is_old else 0):
                check_pickle(stream)
        if not is_old:
            with _open(path) as archive:
                (name,) = filter(_is_pickle, archive.namelist())
                # PyTorch before 2.10 would read beyond a storage that is too short, into other memory.
                if archive.testzip() is not None or any(
                    archive.getinfo(f"{name[:-8]}data/{key}").file_size != size
                    for key, size in check_pickle(BytesIO(archive.read(name)))
                ):
                    raise zipfile.BadZipFile
    except ForeignTypeError as error:
        raise _foreign_types(path, f" ({error})") from error
    except _BROKEN as error:
        raise DamagedError(f"{path} is truncated, or is not a checkpoint. {_REMEDY}") from error
    try:
        return torch.load(path, map_location=device or "cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # its message recommends loading the file without checks
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise _foreign_types(path, f" ({found[1]})" if found else "") from error
    except _BROKEN as error:
        raise UserError(f"{path} is truncated, or is not a checkpoint ({first_line(error)}). {_REMEDY}") from error


def _open(path: Path) -> zipfile.ZipFile:
    """Open an archive from `torch.save`.

    Raises:
        BadZipFile: the file is truncated, or is not an archive.
        UserError: PyTorch cannot have written the archive.
    """
    start, length, end = _directory(path)
    if path.stat().st_size > host_memory():  # a sparse file takes no disk space, but reading it takes hours
        reason = "it is larger than the memory of this machine"
    elif start + length != end:  # otherwise, Python could find another directory
        reason = "it contains more than one archive"
    elif length > MAX_PICKLE:  # Python takes a minute to read 100 MB
        reason = f"its list of tensors has more than {MAX_PICKLE:,} bytes"
    else:
        archive = zipfile.ZipFile(path)
        if not (reason := _why_foreign(archive.infolist(), end)):
            return archive
        archive.close()
    raise UserError(f"{path} is not a checkpoint: {reason}. {_REMEDY}")


def _why_foreign(entries: Sequence[zipfile.ZipInfo], size: int) -> str:
    """Return why PyTorch cannot have written the entries of an archive, or "" if PyTorch may have written them."""
    if len({entry.filename.lower() for entry in entries}) < len(entries):  # PyTorch ignores case
        return "it contains a name twice"
    # For some methods of compression, Python ignores the size in the directory, and unpacks everything.
    if any(entry.compress_type for entry in entries) or sum(entry.file_size for entry in entries) > size:
        return "it is compressed, but PyTorch never compresses checkpoints"
    if any(entry.file_size > MAX_PICKLE for entry in entries if _is_pickle(entry.filename)):
        return f"it contains more than {MAX_PICKLE:,} bytes of values that are not in tensors"
    return ""


def _is_pickle(name: str) -> bool:
    return name.lower().endswith("/data.pkl")  # PyTorch ignores case


def _directory(path: Path) -> tuple[int, int, int]:
    """Return where the directory of an archive starts, how long it is, and where the records after it start.

    Raises:
        BadZipFile: the file does not end with these records, or they disagree. Python's zipfile also accepts other
            files, such as an archive with a comment.
    """
    with open(path, "rb") as stream:
        at = stream.seek(-98, os.SEEK_END)
        wide, locator, end = (stream.read(size) for size in (56, 20, 22))
    is_wide = locator[:4] == b"PK\6\7"
    found = is_wide and wide[:4] == b"PK\6\6" and int.from_bytes(locator[8:16], "little") == at
    if end[:4] != b"PK\5\6" or end[20:] != bytes(2) or found != is_wide:
        raise zipfile.BadZipFile
    size, start = (wide[40:48], wide[48:]) if is_wide else (end[12:16], end[16:20])
    return int.from_bytes(start, "little"), int.from_bytes(size, "little"), at if is_wide else at + 76


def _foreign_types(path: Path, what: str) -> UserError:
    remedy = "Save only the model's state_dict(), or use another file."
    return UserError(f"{path} is not a checkpoint: it contains more than plain values and tensors{what}. {remedy}")


def check_tensors(tensors: Iterable[object], path: Path) -> None:
    """Check that values are dense tensors, and that the file contains all their elements.

    Raises:
        UserError: a value is not a dense tensor, or is an expanded tensor, which repeats its elements.
    """
    for value in tensors:
        if not isinstance(value, torch.Tensor) or value.is_meta or value.is_quantized:
            raise UserError(f"{path} contains values of the wrong type. Use another checkpoint.")
        if value.layout is not torch.strided or value.nbytes > value.untyped_storage().nbytes():
            raise UserError(f"{path} contains a sparse or expanded tensor. Use another checkpoint.")


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield all tensors in plain values. A shared value counts each time it occurs."""
    pending, found, tensor = [(value, 0)], 0, torch.Tensor  # each look-up in `torch` takes a microsecond
    kinds = (tensor, dict, list, tuple, set)
    while pending:
        one, depth = pending.pop()
        if isinstance(one, tensor):
            yield one
            continue
        inner = one.values() if isinstance(one, dict) else one
        found += len(inner)
        if found > MAX_VALUES or depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_VALUES:,} values, or {MAX_DEPTH} levels")
        pending += [(each, depth + 1) for each in inner if isinstance(each, kinds)]
