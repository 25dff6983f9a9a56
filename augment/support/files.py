"""Atomic writing, JSON that any program can read, paths in messages, and installed versions."""

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from augment.support.errors import UserError
from augment.support.formatting import as_bytes, list_some


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with ~ and ~user replaced by home folders; where there is none, it stays as it is."""
    return Path(os.path.expanduser(path))


def write_atomically(
    path: Path, content: bytes | str, *, durable: bool = True, folder: Path | None = None, follow: bool = False
) -> None:
    """Write a file completely or not at all, see `atomic_path`; until it is complete, readers see the old one.

    Args:
        path: the file. A link in its place is replaced, not followed, as a stranger may have put it there.
        content: bytes, or a text.
        durable: see `atomic_path`.
        folder: a folder above it, below which no link is followed; None: the file's own.
        follow: whether the user named the file, so that the target of a link is written, and a device or a pipe.
    """
    data = as_bytes(content) if isinstance(content, str) else content
    if follow and path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(data)
        return
    with (
        _parent(path, folder) as parent,
        atomic_path(path.resolve() if follow else parent / path.name, durable=durable) as part,
    ):
        part.write_bytes(data)


@contextmanager
def _parent(path: Path, folder: Path | None) -> Iterator[Path]:
    """Yield the parent of a file; below the folder it is made if it is missing, and no link is followed."""
    if folder is None or path.parent == folder:
        yield path.parent
        return
    folder.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(folder, flags)
    try:
        for name in path.parent.relative_to(folder).parts:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=descriptor)
            try:
                inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=descriptor)
            except NotADirectoryError:
                raise UserError(f"{path.parent}: a link or a file is in its place. Remove it.") from None
            os.close(descriptor)
            descriptor = inner
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@contextmanager
def atomic_path(path: Path, *, durable: bool = False, parents: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`; the file or folder made there is renamed to `path` at the end.

    After an exception, nothing is left behind; `remove_parts` removes what a killed process leaves.

    Args:
        path: the file or folder.
        durable: whether to wait until a file is on the disk before it is renamed, and then for its new name: after a
            power failure there is the old file or the new one. This takes milliseconds; caches do without it.
        parents: whether to create the parent folder if it is missing.

    Raises:
        OSError: it cannot be written, or `path` is a folder that is not empty.
    """
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{uuid4().hex}.part")
    try:
        yield part
        if durable:
            sync(part)
        os.replace(part, path)
        if durable:
            with suppress(OSError):  # some file systems sync no folders
                sync(path.parent)
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_parts(folder: Path) -> None:
    """Remove unfinished writes that killed processes left in a folder that no other process is writing to."""
    for part in folder.glob(f".{'[0-9a-f]' * 32}.part"):  # as `atomic_path` names them
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)


def special_kind(mode: int) -> str:
    """Return what a path with this `st_mode` is, such as "named pipe", if reading it might never end; else ""."""
    kinds = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
    return kinds.get(stat.S_IFMT(mode), "")


def open_file(path: Path) -> BinaryIO:
    """Open a file to read it, unless reading might never end.

    Raises:
        OSError: there is none, or it is a named pipe, a socket or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, f"it is a {special_kind(mode)}", str(path))


def read_file(path: Path) -> bytes:
    """Return the content of a file; see `open_file`."""
    with open_file(path) as stream:
        return stream.read()


def digest(*parts: object) -> str:
    """Return a short name for some values, the same in every process."""
    return blake2b("\0".join(map(str, parts)).encode(errors="surrogateescape"), digest_size=12).hexdigest()


def write_json(path: Path, values: object, *, follow: bool = False) -> None:
    """Write plain values as JSON, see `write_atomically`; numbers that are not finite become null."""
    write_atomically(path, json.dumps(_finite(values), indent=2, allow_nan=False) + "\n", follow=follow)


def json_line(values: Mapping[str, object]) -> str:
    """Return plain values as a line of a .jsonl file; see `write_json`."""
    return json.dumps(_finite(values), allow_nan=False) + "\n"


def _finite(values: object) -> object:
    if isinstance(values, float):
        return values if isfinite(values) else None
    if isinstance(values, Mapping):
        return {key: _finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    return values


def near_file(path: Path, *, folder: bool = False) -> str:
    """Return the end of a "no such file" (or folder) message: the closest name beside it, else what is there."""
    if url := re.match(r"(\w{2,}):/+(.*)", str(path)):  # a path has lost one of its slashes
        return f" {url[1]}://{url[2]} is a URL: download it, and give its path here."
    if not path.parent.is_dir():
        return f" There is no folder {path.parent} either."
    kind, wanted = ("folders", Path.is_dir) if folder else ("files", Path.is_file) if path.suffix else ("", Path.exists)
    names = sorted(other.name for other in path.parent.iterdir() if other.name[0] != "." and wanted(other))
    if near := get_close_matches(path.name, names, n=1):
        return f" Did you mean {path.with_name(near[0])}?"
    where = "The current folder" if path.parent == Path() else path.parent
    return f" {where} holds {list_some(names) if names else f'no {kind}' if kind else 'nothing'}."


def require_in(folder: Path, *names: str, key: str = "", allowed: str) -> None:
    """Check that there are files of some names in a folder.

    The message says what named the folder, such as "fit.resume=", and what is allowed.
    """
    if all((folder / name).is_file() for name in names):
        return
    what = f"no {' and '.join(names)} in it."
    if not folder.exists():
        what = f"there is no such folder.{near_file(folder, folder=True)}"
    if folder.is_file():
        what = f"a file. Did you mean {folder.parent}?"
    raise UserError(f"{key}{folder}: {what} Allowed: {allowed}.")


def shown(path: Path) -> Path:
    """Return a path as a user would type it: relative to the current folder if it lies below it."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was deleted
        return path
    return path.relative_to(here) if path != here and path.is_relative_to(here) else path


def installed_version(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
