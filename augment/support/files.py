"""Write files atomically, read regular files, write standard JSON, and show paths in messages."""

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from augment.support.errors import UserError, closest
from augment.support.formatting import as_bytes, list_some

_MAX_BYTES = 2**31 - 2**12  # `read_file` reads no larger files, because a sparse file of any size takes no disk space


def expanded(path: str | os.PathLike[str]) -> Path:
    """Replace ~ and ~user with home folders. The name of an unknown user is not replaced."""
    return Path(os.path.expanduser(path))


def write_atomically(
    path: Path, content: bytes | str, *, durable: bool = True, folder: Path | None = None, follow: bool = False
) -> None:
    """Write a file completely or not at all. Until it is complete, readers see the old file. See `atomic_path`.

    Args:
        path: the file. A link at this path is replaced, not followed, because a stranger may have created it.
        content: bytes or a string.
        durable: see `atomic_path`.
        folder: a folder above the file. No link below this folder is followed. Default: the file's own folder.
        follow: whether the user named the file. Only then, follow links, and write to devices and pipes.
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
    """Yield the parent of a file. Below the folder, create missing parents and follow no link."""
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
                raise UserError(f"{path.parent} is a link or a file, not a folder. Remove it.") from None
            os.close(descriptor)
            descriptor = inner
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@contextmanager
def atomic_path(path: Path, *, durable: bool = False, parents: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`. At the end, rename the file or folder there to `path`.

    After an exception, the temporary file is deleted. `remove_parts` deletes the temporary files of killed processes.

    Args:
        path: the file or folder.
        durable: whether to wait until the file is on the disk. Either the old or the new file then survives a power
            failure. This takes milliseconds, and caches do not need it.
        parents: whether to create missing parent folders.

    Raises:
        OSError: `path` cannot be written, or is a folder that is not empty.
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
            with suppress(OSError):  # some file systems cannot sync folders
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
    """Remove the temporary files of killed processes from a folder. No other process may be writing to it."""
    for part in folder.glob(f".{'[0-9a-f]' * 32}.part"):  # the names that `atomic_path` gives
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: the file does not exist, or is a named pipe, a socket or a device, which may block readers.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is a named pipe, a socket or a device", str(path))


def read_file(path: Path) -> bytes:
    """Return the content of a regular file. Raise an OSError if it is too large. See `open_file`."""
    with open_file(path) as stream:
        if (size := os.fstat(stream.fileno()).st_size) > _MAX_BYTES:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and the limit is {_MAX_BYTES:,}", str(path))
        return stream.read()


def digest(*parts: object) -> str:
    """Return a short hash of some values. It is the same in every process."""
    return blake2b("\0".join(map(str, parts)).encode(errors="surrogateescape"), digest_size=12).hexdigest()


def write_json(path: Path, values: object, *, follow: bool = False) -> None:
    """Write plain values as JSON, see `write_atomically`. Infinite numbers and NaN become null."""
    write_atomically(path, json.dumps(_finite(values), indent=2, allow_nan=False) + "\n", follow=follow)


def json_line(values: Mapping[str, object]) -> str:
    """Return plain values as a line of a .jsonl file. See `write_json`."""
    return json.dumps(_finite(values), allow_nan=False) + "\n"


def _finite(values: object) -> object:
    return json.loads(json.dumps(values), parse_constant=lambda _: None)


def near_file(path: Path, *, folder: bool = False) -> str:
    """Return the end of a message about a missing file or folder: a similar name, the names that exist, or its kind."""
    if url := re.match(r"(\w{2,}):/+(.*)", str(path)):  # `Path` removes one of the slashes
        return f" {url[1]}://{url[2]} is a URL. Download the file, and give its local path."
    if path.is_dir():
        return f" {path} is a folder."
    if wrong := next((found for found in (path, path.parent) if found.is_file()), None):
        return f" {wrong} is a file, not a folder."
    if not path.parent.is_dir():
        hint = near_file(path.parent, folder=True)
        return hint if hint.startswith(" Did you mean") else f" The folder {path.parent} does not exist either."
    kind, wanted = "files", Path.exists
    if folder:
        kind, wanted = "folders", Path.is_dir
    elif path.suffix:
        wanted = Path.is_file
    names = sorted(other.name for other in path.parent.iterdir() if other.name[0] != "." and wanted(other))
    if near := closest(path.name, names):
        return f" Did you mean {path.with_name(near)}?"
    where = "The current folder" if path.parent == Path() else path.parent
    folders = sorted(f"{other.name}/" for other in path.parent.iterdir() if other.name[0] != "." and other.is_dir())
    only = f", only {list_some(folders)}" if folders else ""
    return f" {where} contains {list_some(names) or f'no {kind}{only}'}."


def require_in(folder: Path, *names: str, key: str = "", allowed: str) -> None:
    """Check that a folder contains the given files.

    Args:
        folder: the folder.
        names: the files.
        key: the text before the folder in the message, such as "fit.resume=".
        allowed: the kind of folder that the message asks for.
    """
    missing = [name for name in names if not (folder / name).is_file()]
    if not missing:
        return
    what = f"this folder contains no {' and no '.join(missing)}."
    if not folder.exists():
        what = f"this folder does not exist.{near_file(folder, folder=True)}"
    if folder.is_file():
        is_inside = all((folder.parent / name).is_file() for name in names)
        what = f"this is a file.{f' Did you mean {folder.parent}?' if is_inside else ''}"
    raise UserError(f"{key}{folder}: {what} Use {allowed}.")


def shown(path: Path) -> Path:
    """Return a path as a user would type it. A path below the current folder becomes relative."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the current folder was deleted
        return path
    return path.relative_to(here) if path != here and path.is_relative_to(here) else path


def installed_version(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
