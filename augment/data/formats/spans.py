"""Images that are spans of larger files.

They are read by `pread`, not through a memory map: with a map, a file that is truncated during a run would kill the
process, and each map keeps its file open, which a set of a thousand shards cannot afford.
"""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from augment.support.errors import UserError

OPEN_FILES = 256  # a quarter of what Linux allows a process by default


@dataclass(frozen=True)
class RecordFile:
    """A file of records with its state when it was indexed."""

    path: Path
    size: int  # in bytes
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> "RecordFile":
        """Return a file with its present state.

        Raises:
            UserError: it cannot be read.
        """
        try:
            stat = path.stat()
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from None
        return cls(path, stat.st_size, stat.st_mtime_ns)

    def require_unchanged(self, descriptor: int | None = None) -> None:
        """Check that the file, open as `descriptor`, has not changed; mapping a truncated file would end the process.

        Raises:
            OSError: it has changed, or is gone.
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
    label: str = ""  # name of the file in messages, if it differs from the file's name

    @property
    def name(self) -> str:
        """The name of the file and the key."""
        return f"{self.label or self.file.path.name}/{self.key}"

    @property
    def slot(self) -> str:
        """Offset and length."""
        return f"{self.offset} {self.length}"

    def read(self) -> bytes:
        """Return the encoded image.

        Raises:
            OSError: the file cannot be read, or has changed.
        """
        opened = _opened(self.file)
        # Each time, for half a microsecond: a changed file could give wrong pixels.
        self.file.require_unchanged(opened.descriptor)
        found = os.pread(opened.descriptor, self.length, self.offset)
        return self.unpack(found) if self.unpack else found

    def expect(self) -> None:
        """Prefetch the bytes in the background."""
        os.posix_fadvise(_opened(self.file).descriptor, self.offset, self.length, os.POSIX_FADV_WILLNEED)


class _Opened:
    """An open file, closed with its last reference, even if the cache drops it while another thread reads."""

    def __init__(self, file: RecordFile) -> None:
        self.descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


_opened = lru_cache(OPEN_FILES)(_Opened)


@contextmanager
def mapped(file: RecordFile) -> Iterator[memoryview]:
    """Map a file into memory inside the context; only accessed pages are read.

    Raises:
        UserError: the file is empty.
    """
    if file.size == 0:
        raise UserError("is empty (0 bytes).")
    with (
        file.path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as pages,
        memoryview(pages) as view,
    ):
        yield view
