"""Remember what a function says of images: a file of lines that grows, valid as long as the images are as they were."""

import logging
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

from augment.data.dataset import ImageRef, keys_of
from augment.data.faults import strict_pillow
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.files import write_atomically
from augment.support.process import cores

_VERSION = b"6\n"  # the first line; increase it when a verdict changes


def remember(
    images: Sequence[ImageRef], judge: Callable[[Any], str], cache: Path | None, what: str = "Reading"
) -> list[str]:
    """Return the line that a function says of each image; of images as they were, from a cache.

    Several threads call the function, each with one image at a time, and once for an image that occurs twice.

    Args:
        images: the images.
        judge: returns the line; one that begins with a blank is not cached.
        cache: a file of lines by path, size and modification time, to which new ones are appended every minute. It is
            created if missing, and may be shared between data sets and processes. Images that are neither files nor in
            one are judged each time.
        what: what is done, for the progress bar.
    """
    stored = _Lines(cache)
    with in_threads(_look, _chunks(images, 1024), cores(), 2 * cores()) as looked:
        lines = [line for some in looked for line in stored.find_next(some)]
    if missing := [index for index, line in enumerate(lines) if isinstance(line, tuple)]:
        for index, line in zip(missing, stored.find([lines[index] for index in missing]), strict=True):
            lines[index] = line
    unknown = {image[0]: image for image in lines if isinstance(image, tuple)}
    chunks, fresh = _chunks(list(unknown), 64), dict[Any, str]()
    try:
        with (
            strict_pillow(),
            progress_bar(quiet=len(unknown) <= 1000) as progress,
            in_threads(
                lambda some: [judge(Path(os.fsdecode(ref)) if isinstance(ref, bytes) else ref) for ref in some],
                chunks,
                cores(),
            ) as judged,
        ):
            task = progress.add_task(what, total=len(unknown))
            for some, said in zip(chunks, judged, strict=True):
                for ref, line in zip(some, said, strict=True):
                    fresh[ref] = line
                    if not line.startswith(" "):
                        stored.add(unknown[ref], line)
                progress.advance(task, len(some))
                stored.write(every=60)  # an interrupted check loses no more
    finally:  # also after Ctrl-C
        stored.write()
    return [fresh[line[0]] if isinstance(line, tuple) else line for line in lines]


# An image, as files by its name in bytes; and how its row begins, empty if it is not cached.
_Image = tuple[Any, bytes]


class _Lines:
    """The lines of a cache: rows "key NUL size mtime_ns line NUL", of which one with the present state counts.

    A row that is not complete is ignored, and so is a file of another version.
    """

    def __init__(self, cache: Path | None) -> None:
        self._cache, self._rows, self._written = cache, list[bytes](), monotonic()
        self._known: dict[bytes, bytes] = {}  # the last row of each key
        self._anew = True  # whether the next write replaces the file
        self._unread, self._next = self._read(), dict[bytes, bytes]()

    def _read(self) -> Generator[bytes]:
        """Yield the complete rows of the file."""
        with suppress(OSError), open(self._cache or os.devnull, "rb") as stream:
            if stream.readline() == _VERSION:
                yield from (row for row in stream if row.endswith(b"\0\n"))

    def find_next(self, images: Sequence[_Image]) -> list[Any]:
        """Return the lines of images, or the images themselves, if they come about in the order of the file's rows.

        All rows of a million images would take a second and 0.3 GB.
        """
        rows = list(islice(self._unread, len(images)))
        if not self._next and len(rows) == len(images):
            found = _matched(images, rows)
            if tuple not in set(map(type, found)):
                return found
        rows += islice(self._unread, 0 if self._next else 65536)
        self._next.update((_key(row), row) for row in rows)
        return _matched(images, [self._next.pop(_key(start), b"") for _, start in images])

    def find(self, images: Sequence[_Image]) -> list[Any]:
        """Return the lines of images, or the images themselves if they are not known as they are."""
        rows = list(self._read())
        self._known = {_key(row): row for row in rows}
        self._anew = not rows or len(rows) > 2 * len(self._known)  # most are out of date
        return _matched(images, [self._known.get(_key(start), b"") for _, start in images])

    def add(self, image: _Image, line: str) -> None:
        """Add a line, unless the image is not cached."""
        row = b"%b%b\0\n" % (image[1], line.encode(errors="surrogateescape"))
        if image[1] and row.count(b"\n") == 1:
            self._rows.append(row)

    def write(self, every: float = 0) -> None:
        """Append what was added, unless that was done less than some seconds ago; if it is impossible, log that."""
        if self._cache is None or not self._rows or monotonic() < self._written + every:
            return
        kept = self._known.values() if self._anew else ()
        try:
            if self._anew:
                write_atomically(self._cache, b"".join([_VERSION, *kept, *self._rows]), durable=False)
            else:
                with self._cache.open("ab") as stream:
                    stream.write(b"".join([b"\n\0\n", *self._rows]))  # the last row may be incomplete
            self._anew = False
        except OSError as error:  # the next start is slower
            notice = "%s: not written (%s), so the files are checked again next time"
            logging.getLogger(__name__).info(notice, self._cache, error.strerror)
        self._rows, self._written = [], monotonic()


def _key(row: bytes) -> bytes:
    return row.partition(b"\0")[0]


def _matched(images: Sequence[_Image], rows: Sequence[bytes]) -> list[Any]:
    """Return the line of each image if its row begins as it should, or the image itself."""
    return [
        row[len(image[1]) : -2].decode(errors="surrogateescape") if image[1] and row.startswith(image[1]) else image
        for image, row in zip(images, rows, strict=True)
    ]


def _chunks(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _look(images: Sequence[ImageRef]) -> list[_Image]:
    # Files by their names in bytes: a million paths as objects take ten seconds and a gigabyte.
    refs = [os.fsencode(ref) if isinstance(ref, Path) else ref for ref in keys_of(images)]
    return [
        (ref, b"%b\0%d %d " % (key, *state) if key and state[0] is not None else b"")
        for ref, key, state in zip(refs, _keys(refs), _states(refs), strict=True)
    ]


def _keys(refs: Sequence[Any]) -> list[bytes]:
    """Return the key of each image: its path, or its slot in a larger file; empty if it is not cached."""
    folders: dict[bytes, bytes] = {}
    keys = list[bytes]()
    for ref in refs:
        if isinstance(ref, bytes):
            folder, slash, name = ref.rpartition(b"/")
            if folder not in folders:
                folders[folder] = os.path.abspath(folder + slash) + b"/"
            keys.append(folders[folder] + name)
        else:
            keys.append(os.fsencode(f"{os.path.abspath(ref.file.path)} {ref.slot}") if hasattr(ref, "slot") else b"")
    return keys


def _states(refs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return size and mtime_ns of each file, or of the larger file when it was indexed; None: it has none."""
    if len(refs) > 100 and all(isinstance(ref, bytes) for ref in refs):
        from pyarrow import ArrowException, fs  # which does not hold up other threads

        with suppress(ArrowException, OSError):  # something is no path, or not allowed
            return [(file.size, file.mtime_ns) for file in fs.LocalFileSystem().get_file_info(refs)]
    return list(map(_state_of, refs))


def _state_of(ref: Any) -> tuple[Any, Any]:
    if not isinstance(ref, bytes):
        return (ref.file.size, ref.file.mtime_ns) if hasattr(ref, "slot") else (None, None)
    try:
        stat = os.stat(ref)
    except (OSError, ValueError):
        return None, None
    return stat.st_size, stat.st_mtime_ns
