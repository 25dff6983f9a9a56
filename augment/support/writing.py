"""Write into folders of runs and sweeps that exist already, which may come from strangers.

A run writes many files, some of them through Hydra, Matplotlib and trackers. So a folder is checked as a whole before
the first of them: with no way out of it, whatever is written stays inside.
"""

import os
import stat
from pathlib import Path

from augment.support.errors import UserError
from augment.support.files import special_kind
from augment.support.reading import open_regular


class UnwritableError(UserError):
    """Writing into a folder could reach beyond it, or never end."""


def check_folder(folder: Path) -> None:
    """Check that a run or a sweep may write into a folder, whether or not it exists.

    Links that lead to somewhere inside are allowed, as trackers make them.

    Raises:
        UnwritableError: a link leads out of it, or it holds a pipe, a socket or a device.
    """
    top = folder.resolve()
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            check_path(Path(path, name), top)


def check_path(file: Path, folder: Path | None = None) -> Path:
    """Return a path in a folder, by default its own, that may be written; see `check_folder`."""
    try:
        mode = file.lstat().st_mode
    except FileNotFoundError:
        return file
    kind = special_kind(mode)
    if stat.S_ISLNK(mode) and not file.resolve().is_relative_to(folder or file.parent.resolve()):
        kind = "link that leads elsewhere"
    if kind:
        raise UnwritableError(f"{file}: cannot be written: it is a {kind}. Allowed: to remove it.")
    return file


def append(file: Path, text: str) -> None:
    """Append lines to a file, and wait until they are on the disk.

    Raises:
        UserError: it is a link, or no regular file.
        OSError: it cannot be written.
    """
    with open(open_regular(file, flags=os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
