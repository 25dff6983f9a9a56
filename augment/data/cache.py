"""A file that caches one line per image, such as the result of a check. A line is valid until its image changes."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from augment.data.image_faults import strict_pillow
from augment.data.images import ImageRef, encoded_ref, image_keys
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.files import digest, write_atomically
from augment.support.nested import chunks
from augment.support.process import cores

T = TypeVar("T")

_CHUNK = 4096  # images to look up at once
_SLOW_LOOKUP = 3e-5  # seconds per image. If looking up the first chunk takes longer, several threads look up the others
_VERSION = b"8\n"  # the first line of each cache. Increase the number when results change


def cached_lines(
    images: Sequence[ImageRef], compute: Callable[[Any], str], cache: Path | None, what: str = "Reading"
) -> list[str]:
    """Return a line for each image: from the cache if the image has not changed, otherwise from a function.

    Several threads call the function, once for each distinct image.

    Args:
        images: the images.
        compute: the function, which returns a line. Lines that begin with a space are not cached.
        cache: the file with lines by path, size and modification time. New lines are appended every minute. The file is
            created if missing. Datasets and processes may share it. Images without a file are never cached.
        what: title of the progress bar. Empty for no progress bar.
    """
    # Use file names as bytes, because a million `Path` objects need ten seconds and a gigabyte.
    refs = [os.fsencode(key) if isinstance(key, Path) else key for key in image_keys(images)]
    stored = _Lines(cache)
    known, unknown = _look_up(refs, stored)
    try:
        fresh = _compute_all(unknown, compute, stored, what)
    finally:  # also after Ctrl+C
        stored.write()
    return [fresh[ref] if line is None else line for ref, line in zip(refs, known, strict=True)]


def _compute_all(
    unknown: Mapping[Any, tuple[bytes, bytes]], compute: Callable[[Any], str], stored: "_Lines", what: str
) -> dict[Any, str]:
    """Return the line of each image in `unknown` from the function, and add it to the cache. See `cached_lines`."""

    def compute_some(some: Sequence[Any]) -> list[str]:
        return [compute(Path(os.fsdecode(ref)) if isinstance(ref, bytes) else ref) for ref in some]

    batches, found = chunks(list(unknown), 64), dict[Any, str]()
    with (
        strict_pillow(),
        progress_bar(quiet=len(unknown) <= 1000 or not what) as progress,
        in_threads(compute_some, batches, cores()) as computed,
    ):
        task = progress.add_task(what, total=len(unknown))
        for some, lines in zip(batches, computed, strict=True):
            for ref, line in zip(some, lines, strict=True):
                found[ref] = line
                if not line.startswith(" "):
                    stored.add(*unknown[ref], line)
            progress.advance(task, len(some))
            stored.write(every=60)  # an interrupted check loses at most a minute
    return found


def _look_up(refs: list[Any], stored: "_Lines") -> tuple[list[str | None], dict[Any, tuple[bytes, bytes]]]:
    """Return the stored line of each image or None, and the key and state of each image without a line."""
    to_look_up = chunks(refs, _CHUNK)
    known: list[str | None] = []
    unknown: dict[Any, tuple[bytes, bytes]] = {}

    def look_up(some: Sequence[Any]) -> tuple[list[tuple[bytes, bytes]], list[str | None]]:
        entries = list(zip(_keys(some), map(_state_of, some), strict=True))
        return entries, [stored.get(key, state) for key, state in entries]

    began, first = monotonic(), [look_up(some) for some in to_look_up[:1]]
    # Threads help on slow drives, such as network drives. On fast drives, they only wait for each other.
    threads = cores() if monotonic() - began > _SLOW_LOOKUP * _CHUNK else 1
    with in_threads(look_up, to_look_up[1:], threads) as others:
        for some, (entries, found) in zip(to_look_up, chain(first, others), strict=True):
            if None in found:
                unknown |= {ref: entry for ref, entry, line in zip(some, entries, found, strict=True) if line is None}
            known += found
    return known, unknown


def cached_result(images: Sequence[ImageRef], compute: Callable[[], str], parse: Callable[[str], T], cache: Path) -> T:
    """Compute a line from images, and return it parsed. If no image has changed, the line comes from the cache.

    Args:
        images: the images.
        compute: the function, which returns a line.
        parse: parses a line. Errors mean that the cache is damaged.
        cache: the file with the line. It is not written if the state of an image is unknown.
    """
    refs: list[Any] = [os.fsencode(image) if isinstance(image, Path) else image for image in images]
    keys, states = _keys(refs), list(map(_state_of, refs))
    stored, key = _Lines(cache), b"all"
    state = f"{digest(keys, states)} ".encode() if all(keys) and all(states) else b""
    if (line := stored.get(key, state)) is not None:
        with suppress(UserError, ValueError, TypeError, LookupError, RecursionError):
            return parse(line)
    line = compute()
    stored.add(key, state, line)
    stored.write()
    return parse(line)


class _Lines:
    """The lines of a cache: rows "key NUL size mtime_ns line NUL". If a key has several rows, the last one counts.

    Incomplete rows and files of another version are ignored.
    """

    def __init__(self, cache: Path | None) -> None:
        self._cache, self._rows, self._written = cache, list[bytes](), monotonic()
        self._known: dict[bytes, bytes] = {}
        self._is_new = True  # whether the next write creates the file, or replaces one of another version
        with suppress(OSError), open(cache or os.devnull, "rb") as stream:
            if stream.readline() == _VERSION:
                self._is_new = False
                for row in stream:
                    if row.endswith(b"\0\n"):
                        key, _, line = row[:-2].partition(b"\0")
                        self._known[key] = line

    def get(self, key: bytes, state: bytes) -> str | None:
        """Return the line of an image, or None if its state has changed."""
        line = self._known.get(key, b"")
        return line[len(state) :].decode(errors="surrogateescape") if state and line.startswith(state) else None

    def add(self, key: bytes, state: bytes, line: str) -> None:
        """Add a line, unless the image has no key or no state."""
        row = b"%b\0%b%b\0\n" % (key, state, line.encode(errors="surrogateescape"))
        if key and state and row.count(b"\n") == 1:
            self._rows.append(row)

    def write(self, every: float = 0) -> None:
        """Write new lines, unless the last write was less than `every` seconds ago. Log a failure."""
        if self._cache is None or not self._rows or monotonic() < self._written + every:
            return
        try:
            if self._is_new:
                write_atomically(self._cache, b"".join([_VERSION, *self._rows]), durable=False)
            else:
                with self._cache.open("ab") as stream:
                    stream.write(b"".join([b"\n\0\n", *self._rows]))  # the last row may be incomplete
            self._is_new = False
        except OSError as error:  # the next start will be slower
            notice = "%s cannot be written (%s), so the files will be checked again next time"
            logging.getLogger(__name__).info(notice, self._cache, error.strerror)
        self._rows, self._written = [], monotonic()


def _keys(refs: Iterable[Any]) -> list[bytes]:
    """Return the key of each image: its path, or its slot in a larger file. Images that cannot be cached get b""."""
    folders: dict[bytes, bytes] = {}
    keys = []
    for image in refs:
        ref = image if isinstance(image, bytes) else _encoded(image)
        reading = b"" if ref is image else os.fsencode(f" {image.reading}")
        if isinstance(ref, bytes):
            folder, slash, name = ref.rpartition(b"/")
            if folder not in folders:
                folders[folder] = os.path.abspath(folder + slash) + b"/"
            keys.append(folders[folder] + name + reading)
        else:
            slot = f"{os.path.abspath(ref.file.path)} {ref.slot}" if hasattr(ref, "slot") else ""
            keys.append(os.fsencode(slot) + reading if slot else b"")
    return keys


def _encoded(ref: Any) -> Any:
    """Return an image in a larger file unchanged. For an image with its own file, return the path as bytes.

    A raster counts as the image that it decodes.
    """
    inner = encoded_ref(ref)
    return os.fsencode(inner) if isinstance(inner, Path) else inner


def _state_of(ref: Any) -> bytes:
    """Return the size and modification time of the file that holds an image, or b"" if they are unknown.

    For an image in a larger file, these are the values from when the file was indexed.
    """
    ref = ref if isinstance(ref, bytes) else _encoded(ref)
    if not isinstance(ref, bytes):
        return b"%d %d " % (ref.file.size, ref.file.mtime_ns) if hasattr(ref, "slot") else b""
    try:
        stat = os.stat(ref)
    except (OSError, ValueError):
        return b""
    return b"%d %d " % (stat.st_size, stat.st_mtime_ns)
