"""Files that are written whole or not at all, JSON that everyone can read, and what is installed."""

import json
import os
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
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


def write_json(path: Path, values: object) -> None:
    """Write plain values as JSON, whole or not at all; a number that is not finite, which JSON has not, becomes null.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(path, json.dumps(_finite(values), indent=2, allow_nan=False) + "\n")


def as_line(values: Mapping[str, object]) -> str:
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


def near_file(path: Path) -> str:
    """Return the tail of a message that something is missing: the nearest name in its folder, if one is near."""
    if not path.parent.is_dir():
        return near_file(path.parent) if "*" in str(path.parent) else f" There is no folder {path.parent} either."
    names = sorted(other.name for other in path.parent.iterdir() if not other.name.startswith("."))
    near = get_close_matches(path.name, names, n=1, cutoff=0.5)
    return f" Did you mean {path.with_name(near[0])}?" if near else ""


def shown(path: Path) -> Path:
    """Return a path as people would type it: from the current folder, if it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path != here and path.is_relative_to(here) else path


def installed_version(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
