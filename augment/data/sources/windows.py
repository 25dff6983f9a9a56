"""Shards that are elsewhere, of which some are here at a time: each is fetched when it is opened, unless it is here.

To make room, those are removed that no process has open: whoever opens one holds the system's lock of it.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from time import sleep, time_ns
from typing import ClassVar

from augment.data.formats.records import Opened, RecordFile, close_files
from augment.data.sources.fetcher import fetch
from augment.data.sources.remote import Shard, list_shards, space_of
from augment.support.errors import UserError
from augment.support.reading import locked

_PATIENCE_S = 5  # for others to close files, as a pass that has ended does


@dataclass(frozen=True)
class RemoteFile(RecordFile):
    """A shard that is fetched when it is opened, unless it is there; it is there as long as somebody has it open."""

    shard: Shard = field(compare=False)
    most_gb: float | None = field(compare=False)

    stays: ClassVar[bool] = False

    def open(self, stopped: Event | None = None) -> int:
        """Return a descriptor that reads it, after fetching it if it is not there, until an event stops that.

        Raises:
            UserError: it cannot be fetched, or there is no room for it.
        """
        try:
            while True:
                self._fetch(stopped or Event())
                with suppress(FileNotFoundError):  # another process needed room
                    descriptor = super().open()
                    fcntl.flock(descriptor, fcntl.LOCK_SH)  # as long as it is open, in whatever process
                    os.utime(descriptor, ns=(time_ns(), self.mtime_ns))
                    return descriptor
        except OSError as error:
            raise UserError(f"{self.shard.what}: {self.path}: {error.strerror or error}.") from None

    def _fetch(self, stopped: Event) -> None:
        folder = self.path.parent.parent
        if not self._is_here:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / f".{self.path.parent.name}{self.path.suffix}.lock"):
                if not self._is_here:
                    with _room(self, folder):
                        self._bring(stopped)

    @property
    def _is_here(self) -> bool:
        with suppress(FileNotFoundError):
            stat = self.path.stat()
            return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)
        return False

    def _bring(self, stopped: Event) -> None:
        fetch(self.shard, stopped)


@dataclass(frozen=True)
class UnpackedFile(RemoteFile):
    """What is made of a shard, next to it, whenever it is not there."""

    source: RemoteFile = field(compare=False)
    unpack: Callable[[RecordFile], object] = field(compare=False)

    def _fetch(self, stopped: Event) -> None:
        if not self._is_here:
            held = Opened(self.source, stopped)
            super()._fetch(stopped)
            del held

    def _bring(self, stopped: Event) -> None:
        self.unpack(self.source)


def list_files(what: str, pattern: str, folder: Path, most_gb: float | None) -> dict[str, RecordFile]:
    """Return the shards that a URL names by their URLs; none of them is fetched yet.

    Raises:
        UserError: a package, credentials or an object is missing.
    """
    shards = list_shards(f"{what}={pattern}", pattern, folder.absolute())
    return {shard.url: RemoteFile(shard.file, shard.size, shard.time_ns, shard, most_gb) for shard in shards}


# The files that this process is fetching, and their sizes.
_COMING: dict[RemoteFile, int] = {}
_COUNTING = Lock()


@contextmanager
def _room(wanted: RemoteFile, folder: Path) -> Iterator[None]:
    """Reserve room for a file that is fetched inside."""
    close_files()
    waited = 0.0
    while not _reserve(wanted, folder, final=waited > _PATIENCE_S):
        sleep(0.05)
        waited = 0 if _COMING else waited + 0.05
    try:
        yield
    finally:
        del _COMING[wanted]


def _reserve(wanted: RemoteFile, folder: Path, *, final: bool) -> bool:
    """Reserve room, made by removing files that no process has open, the least recently used first; False: none yet.

    Raises:
        UserError: there is none, and it is the final attempt.
    """

    def room() -> int:
        coming = sum(size for file, size in list(_COMING.items()) if file.path.is_relative_to(folder.parent))
        return space_of(folder, wanted.most_gb, coming=coming)[1]

    with _COUNTING, locked(folder / ".lock"):
        for file in sorted(folder.glob("*/[!.]*"), key=lambda file: file.stat().st_atime_ns):
            if room() >= wanted.size:
                break
            with suppress(OSError), file.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.unlink()
        if (left := room()) >= wanted.size:
            _COMING[wanted] = wanted.size
        elif final:
            size, free = (f"{max(count, 0) / 1e9:,.3g} GB" for count in (wanted.size, left))
            raise UserError(
                f"{wanted.shard.what}: a shard of {size} must be fetched, but {folder} has room for {free} beside "
                "those in use. Allowed: data.dir on a larger disk, a larger data.cache_gb, or a smaller data.window."
            )
        return wanted in _COMING
