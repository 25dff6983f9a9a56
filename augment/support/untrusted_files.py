"""Read the files of run and sweep folders, which may come from strangers, and write into such folders.

Readers open only regular files and follow no links, because a link could lead to a file elsewhere, and a pipe could
block forever. Sizes and nesting are limited. Damaged contents raise an `UnreadableError` that names the file. Writers
replace links, see `augment.support.files.write_atomically`, or append to regular files.
"""

import fcntl
import json
import math
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from augment.support.errors import UserError, first_line
from augment.support.files import shown

T = TypeVar("T")

# Limits far above the needs of any run: bytes of a file, levels and values of a JSON text, and bits of an integer.
MAX_BYTES, MAX_DEPTH, MAX_VALUES, MAX_BITS = 2**26, 40, 2_000_000, 64

# The largest number in the results of a run, because statistics of larger numbers overflow.
MAX_RESULT = 1e100

# The flags of `open_regular` that append to a file, and create it if it is missing.
APPENDING = os.O_RDWR | os.O_CREAT | os.O_APPEND

# The errors of damaged contents. PyTorch raises RuntimeErrors. Invalid numbers raise ArithmeticErrors.
_DAMAGE_ERRORS = (
    *(ValueError, TypeError, LookupError, AttributeError, RuntimeError, AssertionError, ArithmeticError, MemoryError),
    *(EOFError, struct.error),
)


class UnreadableError(UserError):
    """A file of a run or sweep folder is not a regular file, or has invalid contents."""


def open_regular(file: Path, folder: Path | None = None, flags: int = os.O_RDONLY) -> int:
    """Open a file in the folder of a run or sweep, and return its descriptor.

    Args:
        file: the file.
        folder: the folder, which may be a link. Default: the file's parent.
        flags: as for `os.open`.

    Raises:
        UnreadableError: the file is not a regular file, or a link below the folder leads to it. It would be changed,
            but is also a hard link of another file.
        OSError: the file cannot be opened.
    """
    inside = [path for path in file.parents if folder is not None and path != folder and path.is_relative_to(folder)]
    if linked := next((path for path in (*inside, file) if path.is_symlink()), None):
        raise UnreadableError(f"{linked} is a link, which is not followed. Replace it with a regular file.")
    descriptor = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and not (flags & (os.O_RDWR | os.O_WRONLY) and status.st_nlink > 1):
        return descriptor
    os.close(descriptor)
    if stat.S_ISREG(status.st_mode):
        raise UnreadableError(f"{file} is a hard link of another file, which would change. Replace it with a copy.")
    raise UnreadableError(f"{file} is not a regular file. Remove it.")


def regular(file: Path, folder: Path | None = None) -> Path:
    """Check a file that other code will open, and return its path. See `open_regular`."""
    os.close(open_regular(file, folder))
    return file


def read_bytes(file: Path, folder: Path | None = None, most: int = MAX_BYTES) -> bytes:
    """Read a file of at most `most` bytes. See `open_regular`."""
    with open(open_regular(file, folder), "rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise UnreadableError(
            f"{file}: the file has {file.stat().st_size:,} bytes, but at most {most:,} are allowed. Restore it."
        )
    return content


def read_text(file: Path, folder: Path | None = None, most: int = MAX_BYTES) -> str:
    """Read a text file. Bytes that are not UTF-8 are replaced. See `read_bytes`."""
    return read_bytes(file, folder, most).decode(errors="replace")


def read_object(file: Path, folder: Path | None = None, most: int = MAX_BYTES) -> dict[str, Any]:
    """Read a JSON object. See `read_bytes` and `parse_json`."""
    text = read_text(file, folder, most)
    with explained_damage(file):
        values = parse_json(text)
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
    return values


def read_as(kind: type[T], file: Path, **known: Any) -> T:
    """Read a JSON object as a dataclass. See `read_object`.

    Fields in `known` are not read. Missing fields get their defaults, and unknown names are ignored.
    """
    found = read_object(file)
    with explained_damage(file):
        made: T = _typed(kind, found, **known)
    return made


_types_of = cache(get_type_hints)  # slow


def _typed(kind: Any, value: Any, **known: Any) -> Any:
    """Convert a JSON value to an annotated type. For a float, null becomes NaN."""
    inner = get_args(kind)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = _types_of(kind)
        given = value if isinstance(value, dict) else dict(zip(hints, value, strict=False))
        names = given.keys() & hints.keys() - known.keys()
        return kind(**{name: _typed(hints[name], given[name]) for name in names}, **known)
    if type(None) in inner:
        return None if value is None else _typed(inner[0], value)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise TypeError("not a list")
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(_typed(item_kind, item) for item_kind, item in zip(kinds, value, strict=True))
    if inner:
        return {str(name): _typed(inner[1], item) for name, item in value.items()}
    if kind is float and value is None:
        return math.nan
    allowed = int | float if kind is float else kind
    too_long = isinstance(value, int | float) and not is_result(value)
    if kind is not Any and (too_long or not isinstance(value, allowed)):
        raise TypeError(f"not a value of type {kind.__name__}")
    return value


def is_result(value: float) -> bool:
    """Return whether a number is NaN, or may be the result of a run."""
    return not abs(value) > MAX_RESULT if isinstance(value, float) else abs(value) < 2**53


def parse_json(text: str | bytes, *, any_numbers: bool = False) -> Any:
    """Parse JSON. Raise a ValueError if it is invalid or too large. `any_numbers`: without `check_numbers`."""
    if len(text) > MAX_VALUES:  # each value except the first follows one of these characters
        content = text.encode() if isinstance(text, str) else text
        if sum(map(content.count, (b",", b"[", b"{", b":"))) > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES:,} values")
    try:
        value = json.loads(text)
        if not any_numbers:
            check_numbers(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def check_numbers(value: Any, depth: int = 0) -> None:
    """Raise a ValueError if plain values are nested too deeply, or contain an integer that is too long."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError(f"an integer has more than {MAX_BITS} bits. Put long numbers into quotes")
    if isinstance(value, dict | list):
        for inner in (*value, *value.values()) if isinstance(value, dict) else value:
            check_numbers(inner, depth + 1)


def damage_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the exception types that reading damaged contents raises, and `others`."""
    return (*_DAMAGE_ERRORS, *others)


@contextmanager
def explained_damage(file: Path) -> Iterator[None]:
    """Turn errors while reading damaged contents into an UnreadableError that names the file."""
    try:
        yield
    except _DAMAGE_ERRORS as error:
        if type(error).__name__ == "OutOfMemoryError":  # a lack of GPU memory is not a fault of the contents
            raise
        raise UnreadableError(
            f"{file} is damaged, or was not written by a run ({first_line(error)}). Restore it."
        ) from error


def check_folder(folder: Path) -> None:
    """Reject links in a sweep folder that lead to folders outside it. The sweep folder may be missing."""
    top = folder.resolve()
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_symlink() and path.is_dir() and not path.resolve().is_relative_to(top):
            raise UnreadableError(f"{path} is a link, which is not followed. Remove it.")


def unlinked_folder(path: Path) -> Path:
    """Return a folder that other code will write into. Reject a link, which could lead out of the run folder."""
    if path.is_symlink():
        raise UnreadableError(f"{path} is a link, which is not followed. Remove it.")
    return path


def append(file: Path, text: str) -> None:
    """Append text to a file, and wait until it is on the disk."""
    with open(open_regular(file, flags=APPENDING), "a", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def locked(file: Path) -> Iterator[FileIO]:
    """Open or create a file, and hold its lock. The system releases the lock when the process ends."""
    with FileIO(open_regular(file, flags=os.O_RDWR | os.O_CREAT), "rb+") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
        except OSError as error:
            raise UserError(
                f"{shown(file.parent)}: this file system has no file locks ({error.strerror}). Use a folder on another "
                "file system: set hydra.sweep.dir or data.dir."
            ) from error
        try:
            yield opened
        finally:
            fcntl.flock(opened, fcntl.LOCK_UN)  # closing is not enough if a process was forked
