"""Files that hold many images: find them by a pattern, index their records once, and read images as byte ranges.

Images are read with `pread` instead of a memory map. Truncating a mapped file would kill the process. Each map would
also keep a file open, and a dataset may have a thousand shards.
"""

import errno
import json
import logging
import mmap
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from glob import iglob
from pathlib import Path
from threading import Event
from typing import ClassVar, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from augment.data.targets.class_names import Label, Labels, pack
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError, first_line
from augment.support.expansion import combinations, expanded_values
from augment.support.files import atomic_path, digest, expanded, near_file
from augment.support.untrusted_files import damage_errors

OPEN_FILES = 256  # a quarter of Linux's default limit per process
_MAX_RECORD = 2**31  # bytes. A sparse file could claim records larger than the memory


@dataclass(frozen=True)
class RecordFile:
    """A file of records, with the size and modification time that it had when it was indexed."""

    path: Path
    size: int  # in bytes
    mtime_ns: int

    stays: ClassVar[bool] = True  # False: the file may be removed to make room for others

    @classmethod
    def of(cls, path: Path) -> "RecordFile":
        """Return a file with its current size and time."""
        stat = path.stat()
        return cls(path, stat.st_size, stat.st_mtime_ns)

    def open(self, stopped: Event | None = None) -> int:
        """Return a descriptor that reads the file. The caller closes it. Setting `stopped` stops a download.

        Raises:
            OSError: the file cannot be opened.
        """
        return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def is_here(self) -> bool:
        """Whether the file exists and is unchanged."""
        with suppress(OSError):
            self.require_unchanged()
            return True
        return False

    def require_unchanged(self, descriptor: int | None = None) -> None:
        """Check the size and time of the file, or of an open descriptor.

        Raises:
            OSError: the file has changed, or is gone.
        """
        stat = os.stat(self.path) if descriptor is None else os.fstat(descriptor)
        if (stat.st_size, stat.st_mtime_ns) != (self.size, self.mtime_ns):
            raise self.changed()

    def changed(self) -> OSError:
        """Return the error for a file that has changed."""
        return OSError(errno.ESTALE, "it has changed since it was indexed", str(self.path))


@dataclass(frozen=True, slots=True)
class Span:
    """An image inside a file."""

    file: RecordFile
    key: str  # identifies the image in its file, such as the number of its record
    offset: int  # of the first byte
    length: int  # in bytes
    unpack: Callable[[bytes], bytes] | None = None  # extracts the image from the bytes
    label: str = ""  # the file's name in messages, if it differs from its real name

    @property
    def name(self) -> str:
        return f"{self.label or self.file.path.name}/{self.key}"

    @property
    def slot(self) -> str:
        """Offset and length, which identify the image in its file."""
        return f"{self.offset} {self.length}"

    def read(self) -> bytes:
        """Return the encoded image.

        Raises:
            OSError: the file cannot be read, or has changed.
        """
        opened = _opened(self.file)
        # This check takes half a microsecond. A changed file could give wrong pixels.
        self.file.require_unchanged(opened.descriptor)
        found = os.pread(opened.descriptor, self.length, self.offset)
        return self.unpack(found) if self.unpack else found

    def prefetch(self) -> None:
        """Read the bytes ahead, in the background."""
        os.posix_fadvise(_opened(self.file).descriptor, self.offset, self.length, os.POSIX_FADV_WILLNEED)


class Opened:
    """An open file that is closed when no reference to it is left.

    Another thread can therefore still read it after the cache has dropped it.
    """

    def __init__(self, file: RecordFile, stopped: Event | None = None) -> None:
        self.descriptor = file.open(stopped)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


_opened = lru_cache(OPEN_FILES)(Opened)


def close_files() -> None:
    """Close the cached files that no thread or stream uses."""
    _opened.cache_clear()


@contextmanager
def mapped(file: RecordFile) -> Iterator[memoryview]:
    """Map a file that is not empty into memory inside the context. Only accessed pages are read."""
    with (
        file.path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as pages,
        memoryview(pages) as view,
    ):
        yield view


class Record(NamedTuple):
    offset: int  # of its image in the file
    length: int  # in bytes
    labels: Sequence[Label]  # or numbers to predict
    name: str = ""  # in the file, or empty if records have numbers only


# Yields the records of a file. Its `UserError` describes a fault without naming the file.
Reader = Callable[[RecordFile], Iterator[Record]]


def record_bytes(buffer: memoryview, start: int, stop: int, record: int) -> bytes:
    """Return the bytes of a record.

    Raises:
        UserError: the record is too large.
    """
    if stop - start > _MAX_RECORD:
        raise UserError(f"record {record} has {stop - start:,} bytes. The limit is {_MAX_RECORD:,}.")
    return bytes(buffer[start:stop])


def cut_short(size: int, record: int) -> UserError:
    """Return the error about a file that ends within a record."""
    return UserError(f"is truncated: it ends at byte {size:,}, within record {record}.")


def damaged(offset: int, record: int, kind: str) -> UserError:
    """Return the error about a file of the wrong kind, or a file that is damaged where a record should begin."""
    if offset == 0:
        return UserError(f"is compressed, or not a {kind} file.")
    return UserError(f"is damaged after record {record - 1}, at byte {offset:,}.")


@dataclass(frozen=True)
class Index:
    """The records of one file, in the file's order."""

    spans: NDArray[np.int64]  # (N, 2) int64, offset and length of each image
    labels: Labels
    names: list[str]  # or numbers, for records without a name


def load_indexes(
    named: Mapping[str, RecordFile],
    settings: str,
    cache: Path,
    read: Reader,
    companion: Callable[[RecordFile], Path | None],
    *,
    ahead: int,
) -> Iterator[tuple[RecordFile, Index, bool]]:
    """Yield each file, its index, and whether the index was built because the cache had no valid one.

    Args:
        named: the files by their names.
        settings: the source's name and the settings that an index depends on, as text.
        cache: the folder of caches.
        read: reads the records of a file, and creates its companion.
        companion: returns another file that an index depends on.
        ahead: how many files are opened before they are indexed.

    Raises:
        UserError: a file cannot be read, or is damaged.
    """
    files = list(named.values())
    entries = [cache / "index" / f"{digest(settings, file.path)}.npz" for file in files]
    cached = [_read(entry, _stamp(file, companion(file))) for entry, file in zip(entries, files, strict=True)]
    missing = [file for file, index in zip(files, cached, strict=True) if index is None]
    quiet = sum(file.size for file in missing) < 2**28  # indexing takes less than a second
    stopped = Event()
    opening = in_threads(lambda file: Opened(file, stopped), missing, 4, ahead, stopped)
    with progress_bar(quiet=quiet) as progress, opening as opened:
        columns = zip(named, files, entries, cached, strict=True)
        for name, file, entry, index in progress.track(columns, len(files), description="Indexing files"):
            if is_new := index is None:
                try:
                    held = next(opened)  # a remote file stays on this machine as long as it is open
                except OSError as error:
                    raise UserError(f"{name} cannot be read: {error.strerror}.") from None
                try:
                    index = build_index(file, read)
                except UserError as error:
                    raise UserError(f"{name}: {error}") from None
                del held
                _write(entry, _stamp(file, companion(file)), index)
            yield file, index, is_new


def build_index(file: RecordFile, read: Reader) -> Index:
    """Return the index of a file.

    Raises:
        UserError: the file is empty or damaged, or its labels cannot be used.
    """
    if file.size == 0:
        raise UserError("is empty (0 bytes).")
    try:
        records = list(read(file))
        spans = np.array([(record.offset, record.length) for record in records], np.int64).reshape(-1, 2)
    except damage_errors(OSError) as error:  # exceptions of the libraries that read the format
        why = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"is damaged, or cannot be read ({why}).") from error
    labels = pack([record.labels for record in records], lambda index: records[index].name or f"record {index}")
    return Index(spans, labels, [record.name or str(number) for number, record in enumerate(records)])


def _stamp(file: RecordFile, companion: Path | None) -> NDArray[np.int64]:
    """Return the sizes and modification times of the file and its companion, to detect changes."""
    stamp = [7, file.size, file.mtime_ns]  # 7 is the version of indexes. Raise it when their content changes.
    if companion and file.stays and companion.exists():
        stat = companion.stat()
        stamp += [stat.st_size, stat.st_mtime_ns]
    return np.array(stamp, np.int64)


def _read(entry: Path, stamp: NDArray[np.int64]) -> Index | None:
    """Return the index in a file, or None if it is missing, damaged or out of date."""
    with (
        suppress(OSError, ValueError, KeyError, EOFError, BadZipFile),
        entry.open("rb") as stream,
        np.load(stream, allow_pickle=False) as stored,
    ):
        if np.array_equal(stored["stamp"], stamp):
            labels = Labels(stored["values"], stored["counts"], tuple(json.loads(stored["words"].tobytes())))
            names = stored["keys"].tobytes().decode(errors="surrogateescape").split("\0")
            return Index(stored["spans"], labels, names if len(stored["spans"]) else [])
    return None


def _write(entry: Path, stamp: NDArray[np.int64], index: Index) -> None:
    labels = index.labels
    keys = np.frombuffer("\0".join(index.names).encode(errors="surrogateescape"), np.uint8)
    words = np.frombuffer(json.dumps(labels.words).encode(), np.uint8)  # text arrays pad all words to one length
    arrays = {"stamp": stamp, "spans": index.spans, "values": labels.values, "counts": labels.counts}
    try:
        with atomic_path(entry) as part, part.open("wb") as stream:
            np.savez(stream, keys=keys, words=words, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        notice = "%s cannot be written (%s). The file is indexed again next time."
        logging.getLogger(__name__).warning(notice, entry, error.strerror)


GLOB = re.compile(r"[*?\[]")


def find_shards(pattern: str, key: str) -> list[Path]:
    """Return the files that match a pattern with braces, such as `{000..009}` or `{a,b}`, and wildcards.

    The wildcards are `*`, `?` and `[]`. Their matches are sorted.

    Raises:
        UserError: a file is missing or named twice, or nothing matches.
    """
    found: list[Path] = []
    for name in expand_braces(str(expanded(pattern)), f"{key}={pattern}"):
        if GLOB.search(name) and not Path(name).exists():
            paths = expanded_values(iglob(name, recursive=True), f"{key}={pattern}")
            matches = [Path(path) for path in sorted(paths) if Path(path).is_file()]
            if not matches:
                raise UserError(f"{key}={pattern}: no file matches.{near_file(Path(name))}")
            # train-* also matches index files next to the shards.
            shards = [match for match in matches if match.suffix not in (".idx", ".index", ".lst")]
            found += shards or matches
        elif Path(name).is_dir():
            raise UserError(f"{key}={pattern}: {name} is a folder. Use the names of files, such as {Path(name) / '*'}.")
        elif not Path(name).is_file():
            raise UserError(f"{key}={pattern}: the file {name} does not exist.{near_file(Path(name))}")
        else:
            found.append(Path(name))
    if len(set(found)) < len(found):
        raise UserError(f"{key}={pattern} names {Counter(found).most_common(1)[0][0]} twice. List each file once.")
    return found


def expand_braces(pattern: str, key: str) -> list[str]:
    """Expand {a,b} and {000..002} like a shell. Numbers keep their leading zeros.

    Raises:
        UserError: a brace has no partner, or braces contain neither a list nor a range.
    """
    choices: list[list[str]] = []
    for number, part in enumerate(re.split(r"\{([^{}]*)\}", pattern)):
        is_in_braces = number % 2 == 1
        limits = re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", part)
        if is_in_braces and limits and int(limits[1]) <= int(limits[2]):
            width = max(map(len, limits.groups())) if re.search(r"\b0\d", part) else 0
            numbers = expanded_values(range(int(limits[1]), int(limits[2]) + 1), key)
            choices.append([f"{n:0{width}}" for n in numbers])
        elif is_in_braces and "," in part:
            choices.append(part.split(","))
        elif is_in_braces or {"{", "}"} & set(part):
            raise UserError(f"{key}: braces must hold a range or a list, such as {{000..009}} or {{a,b}}.")
        else:
            choices.append([part])
    return ["".join(parts) for parts in combinations(choices, key)]
