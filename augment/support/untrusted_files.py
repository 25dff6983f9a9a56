"""Read the files of run and sweep folders, which may come from strangers, and write into such folders.

Only regular files are opened, and none through a link: a link could show a file from elsewhere, and a pipe never ends.
Sizes and depths are limited, and damaged contents raise one class of errors, which names the file. What is written
replaces a link, see `augment.support.files.write_atomically`, or is appended to a regular file.
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
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from augment.support.errors import UserError, first_line
from augment.support.files import shown

T = TypeVar("T")

# Far above what any run writes: bytes of a file; levels, and values, of a JSON text; binary digits of an integer.
MAX_BYTES, MAX_DEPTH, MAX_VALUES, MAX_BITS = 2**26, 40, 2_000_000, 64

# What damaged contents raise; a RuntimeError is PyTorch's, an OverflowError about a number that no float can hold.
_DAMAGE = (
    *(ValueError, TypeError, LookupError, AttributeError, RuntimeError, AssertionError, OverflowError, MemoryError),
    *(EOFError, struct.error),
)


class UnreadableError(UserError):
    """A file of a run or sweep folder is not a regular file, or does not hold what a run writes."""


def open_regular(file: Path, folder: Path | None = None, flags: int = os.O_RDONLY) -> int:
    """Open a file in the folder of a run or sweep, which may itself be a link, and return its descriptor.

    By default, the folder is the file's own; the flags are those of `os.open`.

    Raises:
        UnreadableError: it is not a regular file, or a link leads to it from the folder.
        OSError: it cannot be opened.
    """
    inside = [path for path in file.parents if folder is not None and path != folder and path.is_relative_to(folder)]
    if linked := next((path for path in (*inside, file) if path.is_symlink()), None):
        raise UnreadableError(f"{linked}: a link, which is not followed. Allowed: a regular file.")
    descriptor = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableError(f"{file}: not a regular file. Remove it.")
    return descriptor


def regular(file: Path, folder: Path | None = None) -> Path:
    """Return the path of a file that others will open; see `open_regular`."""
    os.close(open_regular(file, folder))
    return file


def read_bytes(file: Path, folder: Path | None = None, most: int = MAX_BYTES) -> bytes:
    """Read a file of at most some bytes; see `open_regular`."""
    with open(open_regular(file, folder), "rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise UnreadableError(f"{file}: {file.stat().st_size:,} bytes. Allowed: a file of at most {most:,} bytes.")
    return content


def read_text(file: Path, folder: Path | None = None, most: int = MAX_BYTES) -> str:
    """Read a text; bytes that are not UTF-8 are replaced. See `read_bytes`."""
    return read_bytes(file, folder, most).decode(errors="replace")


def read_object(file: Path, folder: Path | None = None) -> dict[str, Any]:
    """Read a JSON object; see `read_bytes` and `parse_json`."""
    text = read_text(file, folder)
    with contents(file):
        values = parse_json(text)
        if not isinstance(values, dict):
            raise ValueError("no JSON object")
    return values


def read_as(kind: type[T], file: Path, **known: Any) -> T:
    """Read a JSON object as a dataclass, but for its fields that are known; see `read_object`.

    What it lacks has its default, and what is no field is left out.
    """
    found = read_object(file)
    with contents(file):
        made: T = _typed(kind, found, **known)
    return made


def _typed(kind: Any, value: Any, **known: Any) -> Any:
    """Return a JSON value as what an annotation says; NaN for a number that is null."""
    inner = get_args(kind)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        given = value if isinstance(value, dict) else dict(zip(hints, value, strict=False))
        names = given.keys() & hints.keys() - known.keys()
        return kind(**{name: _typed(hints[name], given[name]) for name in names}, **known)
    if type(None) in inner:
        return None if value is None else _typed(inner[0], value)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise TypeError("no list")
        each = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(_typed(of, one) for of, one in zip(each, value, strict=True))
    if inner:
        return {str(name): _typed(inner[1], one) for name, one in value.items()}
    allowed = int | float | None if kind is float else kind
    if kind is not Any and (not isinstance(value, allowed) or (isinstance(value, int) and abs(value) >= 2**53)):
        raise TypeError(f"no {kind.__name__}")
    return math.nan if value is None and kind is float else value


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; a ValueError says that it is none, or too large."""
    if len(text) > MAX_VALUES:  # each value but the first follows one of these
        content = text.encode() if isinstance(text, str) else text
        if sum(map(content.count, (b",", b"[", b"{", b":"))) > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES:,} values")
    try:
        value = json.loads(text)
        check_numbers(value)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    return value


def check_numbers(value: Any, depth: int = 0) -> None:
    """Raise a ValueError if plain values are nested too deeply, or hold an integer of too many digits."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError(f"an integer of more than {MAX_BITS} bits; put long numbers into quotes")
    if isinstance(value, dict | list):
        for inner in (*value, *value.values()) if isinstance(value, dict) else value:
            check_numbers(inner, depth + 1)


def damage(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the classes of errors that damaged contents raise, and others."""
    return (*_DAMAGE, *others)


@contextmanager
def contents(file: Path) -> Iterator[None]:
    """Raise an UnreadableError that names the file for what damaged contents raise inside."""
    try:
        yield
    except _DAMAGE as error:
        if type(error).__name__ == "OutOfMemoryError":  # of a graphics card, not of the contents
            raise
        raise UnreadableError(f"{file}: damaged, or no run wrote it ({first_line(error)}).") from error


def check_folder(folder: Path) -> None:
    """Check that no folder in the folder of a sweep, which may not exist, is a link that leads elsewhere."""
    top = folder.resolve()
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_symlink() and path.is_dir() and not path.resolve().is_relative_to(top):
            raise UnreadableError(f"{path}: a link, which is not followed. Remove it.")


def own_folder(path: Path) -> Path:
    """Return a folder in the folder of a run that others will write into, unless it is a link."""
    if path.is_symlink():
        raise UnreadableError(f"{path}: a link, which is not followed. Remove it.")
    return path


def append(file: Path, text: str) -> None:
    """Append lines to a file, and wait until they are on the disk."""
    with open(open_regular(file, flags=os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def locked(file: Path) -> Iterator[FileIO]:
    """Open a file, which is made if there is none, and hold the system's lock of it, which ends with the process."""
    with FileIO(open_regular(file, flags=os.O_RDWR | os.O_CREAT), "rb+") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
        except OSError as error:
            raise UserError(
                f"{shown(file.parent)}: needs locks, and this file system has none ({error.strerror}). Allowed: a "
                "folder on another one, such as with hydra.sweep.dir or data.dir."
            ) from error
        try:
            yield opened
        finally:
            fcntl.flock(opened, fcntl.LOCK_UN)  # closing is not enough where a process was forked meanwhile
