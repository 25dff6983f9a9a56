"""A file that caches one line per image, such as the result of a check. A line is valid until its image changes."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice
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
_VERSION = b"10\n"  # the first line of each cache. Increase the number when results change


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
    stored = _Lines(cache)
    known, missing, unknown = _look_up(images, stored)
    try:
        fresh = _compute_all(unknown, compute, stored, what)
    finally:  # also after Ctrl+C
        stored.write()
    return [fresh[missing[index]] if line is None else line for index, line in enumerate(known)]


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


def _look_up(
    images: Sequence[ImageRef], stored: "_Lines"
) -> tuple[list[str | None], dict[int, Any], dict[Any, tuple[bytes, bytes]]]:
    """Return the stored line of each image or None, the images without a line by index, and their keys and states."""
    to_look_up = chunks(images, _CHUNK)
    known: list[str | None] = []
    missing: dict[int, Any] = {}
    unknown: dict[Any, tuple[bytes, bytes]] = {}

    def look_up(some: Sequence[ImageRef]) -> tuple[list[Any], list[tuple[bytes, bytes]]]:
        # Use file names as bytes, because a million `Path` objects need ten seconds and a gigabyte.
        refs = [os.fsencode(key) if isinstance(key, Path) else key for key in image_keys(some)]
        return refs, list(zip(_keys(refs), map(_state_of, refs), strict=True))

    began, first = monotonic(), [look_up(some) for some in to_look_up[:1]]
    # Threads help on slow drives, such as network drives. On fast drives, they only wait for each other.
    threads = cores() if monotonic() - began > _SLOW_LOOKUP * _CHUNK else 1
    with in_threads(look_up, to_look_up[1:], threads) as others:
        for refs, entries in chain(first, others):
            found = stored.find(entries)
            if None in found:
                for index, line in enumerate(found):
                    if line is None:
                        missing[len(known) + index] = refs[index]
                        unknown[refs[index]] = entries[index]
            known += found
    return known, missing, unknown


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
    if (line := stored.find([(key, state)])[0]) is not None:
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
        self._unread = _read(cache)
        # Whether the next write creates the file, or replaces one of another version.
        self._is_new = next(self._unread, None) is None

    @cached_property
    def _known(self) -> dict[bytes, bytes]:
        return {key: line for key, _, line in (row.partition(b"\0") for row in _read(self._cache))}

    def find(self, entries: Sequence[tuple[bytes, bytes]]) -> list[str | None]:
        """Return the line of each image by its key and state, or None if the state has changed."""
        begins = [b"%b\0%b" % entry if all(entry) else b"\n" for entry in entries]  # no row begins with a line feed
        # The rows are usually in the order of the images. A dictionary would need more time, and 0.2 GB for a million.
        rows = list(islice(self._unread, len(begins)))
        if len(rows) < len(begins) or not all(map(bytes.startswith, rows, begins)):
            rows = [b"%b\0%b" % (key, self._known.get(key, b"")) for key, _ in entries]
        return [
            row[len(begin) :].decode(errors="surrogateescape") if row.startswith(begin) else None
            for row, begin in zip(rows, begins, strict=True)
        ]

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


def _read(cache: Path | None) -> Iterator[bytes]:
    """Yield the version of a cache, and its complete rows without their ends. Yield nothing for another version.

    Rows without content are left out. They separate the rows of two writes.
    """
    with suppress(OSError), open(cache or os.devnull, "rb") as stream:
        if stream.readline() == _VERSION:
            yield _VERSION
            yield from (row[:-2] for row in stream if row.endswith(b"\0\n") and len(row) > 2)


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
