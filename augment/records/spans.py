"""A picture that is a span of a larger file.

Read by `pread`, not through a memory map: a file that is cut short while a run reads it gives an error here and would
kill the process there, and a map holds a file open for good, of which a set of a thousand shards has too many.
"""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from augment.errors import UserError

OPEN_FILES = 256  # a quarter of what Linux allows a process by default


@dataclass(frozen=True)
class RecordFile:
    """A file of records as it was when it was indexed.

    Attributes:
        path: where it lies.
        size: in bytes.
        mtime_ns: time of its last change.
    """

    path: Path
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> "RecordFile":
        """Look at a file.

        Raises:
            UserError: it cannot be.
        """
        try:
            stat = path.stat()
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from None
        return cls(path, stat.st_size, stat.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Span:
    """A picture inside of a file.

    Attributes:
        file: the file.
        key: what tells it from the others of the file, as the number of its record.
        offset: where it begins, in bytes.
        length: in bytes.
        unpack: what takes the picture out of the bytes of the span, if they are more than it.
        label: what people call the file, if not by its name.
    """

    file: RecordFile
    key: str
    offset: int
    length: int
    unpack: Callable[[bytes], bytes | memoryview] | None = None
    label: str = ""

    @property
    def name(self) -> str:
        """The name of the file and the key."""
        return f"{self.label or self.file.path.name}/{self.key}"

    @property
    def place(self) -> str:
        """Where it begins, and its length."""
        return f"{self.offset} {self.length}"

    def read(self) -> bytes | memoryview:
        """Return the encoded picture.

        Raises:
            OSError: the file cannot be read, or is not the one that was indexed.
        """
        opened = _opened(self.file)
        opened.check()  # anew each time: half a microsecond, against pictures that are none in silence
        found = os.pread(opened.descriptor, self.length, self.offset)
        return self.unpack(found) if self.unpack else found


class _Opened:
    """An open file, closed when nobody uses it any more: also when it is dropped while another thread reads."""

    def __init__(self, file: RecordFile) -> None:
        self._file = file
        self.descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)

    def check(self) -> None:
        """Raise an OSError if the file is not what it was."""
        stat = os.fstat(self.descriptor)
        if (stat.st_size, stat.st_mtime_ns) != (self._file.size, self._file.mtime_ns):
            raise changed(self._file)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


_opened = lru_cache(OPEN_FILES)(_Opened)


def check_unchanged(file: RecordFile) -> None:
    """Check that a file that is mapped into memory is what it was: reading it would end the process otherwise.

    Raises:
        OSError: it has changed, or is gone.
    """
    # By its name, which takes a microsecond: to hold it open would be one more descriptor for each of them.
    stat = os.stat(file.path)
    if (stat.st_size, stat.st_mtime_ns) != (file.size, file.mtime_ns):
        raise changed(file)


def changed(file: RecordFile) -> OSError:
    """Return the error of a file that is not what it was when it was indexed."""
    return OSError(errno.ESTALE, "it has changed since it was indexed", str(file.path))


@contextmanager
def mapped(file: RecordFile) -> Iterator[memoryview]:
    """Hand out a file's bytes, of which only those are read that are looked at, for as long as the context lasts.

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
