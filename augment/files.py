"""Files that are written whole or not at all, and what is installed."""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file; whoever reads it meanwhile sees the old one. Its folder is made.

    A link stays and what it leads to is written. A device or a pipe is written to and never replaced.

    Raises:
        OSError: it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(data)
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{uuid4().hex}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def installed_version(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
