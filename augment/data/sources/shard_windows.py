"""Remote shards that are downloaded when they are opened, and may be removed when no process has them open.

A process holds a shared lock on each shard that it has open.
"""

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import sleep, time_ns
from typing import ClassVar

from augment.data.formats.records import RecordFile, close_files
from augment.data.sources.fetch_processes import fetch
from augment.data.sources.remote import Shard, list_shards, space_of
from augment.support.errors import UserError
from augment.support.untrusted_files import locked

_PATIENCE_S = 5  # seconds to wait until other readers close files, such as the readers of a pass that has ended


@dataclass(frozen=True)
class RemoteFile(RecordFile):
    """A shard that is downloaded when it is opened, and stays on the disk as long as it is open."""

    shard: Shard = field(compare=False)
    most_gb: float | None = field(compare=False)

    stays: ClassVar[bool] = False

    def open(self, stopped: Event | None = None) -> int:
        """Return a descriptor that reads the shard. Download a missing shard first. Setting `stopped` stops this.

        Raises:
            UserError: the shard cannot be downloaded, or the disk has no room for it.
        """
        try:
            while True:
                self._fetch(stopped or Event())
                with suppress(FileNotFoundError):  # another process removed it to make room
                    descriptor = super().open()
                    fcntl.flock(descriptor, fcntl.LOCK_SH)  # closing the descriptor releases the lock
                    os.utime(descriptor, ns=(time_ns(), self.mtime_ns))
                    return descriptor
        except OSError as error:
            raise UserError(f"{self.shard.what}: {self.path}: {error.strerror or error}.") from None

    def _fetch(self, stopped: Event) -> None:
        folder = self.path.parent.parent
        if not self.is_here:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / f".{self.path.parent.name}{self.path.suffix}.lock"):
                if not self.is_here:
                    _reserve(self, folder)
                    try:
                        fetch(self.shard, stopped)
                    finally:
                        _DOWNLOADING.remove(self)


def list_files(what: str, pattern: str, folder: Path, most_gb: float | None) -> dict[str, RecordFile]:
    """Map the URL of each shard that a pattern names to its file, without downloading it.

    Raises:
        UserError: a package, credentials or an object is missing.
    """
    shards = list_shards(f"{what}={pattern}", pattern, folder.absolute())
    return {shard.url: RemoteFile(shard.path, shard.size, shard.mtime_ns, shard, most_gb) for shard in shards}


_DOWNLOADING: set[RemoteFile] = set()  # the files that this process is downloading


def _reserve(wanted: RemoteFile, folder: Path) -> None:
    """Wait until there is room for a file, then add the file to `_DOWNLOADING`.

    Raises:
        UserError: the disk has no room, although no download of this process is running.
    """
    close_files()
    waited = 0.0
    while (room := _make_room(wanted, folder)) < wanted.size:
        if waited > _PATIENCE_S:
            size, free = (f"{max(count, 0) / 1e9:,.3g} GB" for count in (wanted.size, room))
            raise UserError(
                f"{wanted.shard.what}: a shard of {size} must be downloaded, but {folder} has room for {free} next to "
                "the shards in use. Set data.dir to a larger disk, raise data.cache_gb, or lower data.window."
            )
        sleep(0.05)
        waited = 0 if _DOWNLOADING else waited + 0.05


def _make_room(wanted: RemoteFile, folder: Path) -> int:
    """Remove files that no process has open, least recently used first, and return the free bytes."""
    with locked(folder / ".lock"):
        coming = sum(file.size for file in list(_DOWNLOADING) if file.path.is_relative_to(folder.parent))
        room = space_of(folder, wanted.most_gb, coming=coming)[1]
        for file in sorted(folder.glob("*/[!.]*"), key=lambda file: file.stat().st_atime_ns):
            if room >= wanted.size:
                break
            with suppress(OSError), file.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.unlink()
                room += os.fstat(stream.fileno()).st_size
        if room >= wanted.size:
            _DOWNLOADING.add(wanted)
        return room
