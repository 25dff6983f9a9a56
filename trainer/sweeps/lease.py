"""Leases: claims on jobs, each held by one process at a time, on one host or several that share a folder."""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import uuid4

from augment.support.errors import UserError
from augment.support.files import set_fence
from augment.support.reading import contents, read_object
from augment.support.text import printable

# A lease that was not renewed for this long is void, unless its process is known to live. Its holder stops writing
# after half of it.
EXPIRES = 60.0
RENEWED = 10.0

_PREFIX = ".lease."

# Exit code of a process that lost a lease.
LOST = 4


@dataclass(frozen=True)
class Holder:
    """The process that holds a lease.

    Attributes:
        process: its number.
        began: when it began, in the kernel's ticks, as numbers of processes are used again.
        host: the host, its start and its name space of processes, within which the number means this process.
        name: name of the host, for messages.
    """

    process: int
    began: int
    host: str
    name: str

    @classmethod
    def this(cls) -> "Holder":
        """Return the current process."""
        return cls(os.getpid(), _began(os.getpid()) or 0, _host(), socket.gethostname())

    def dead(self) -> bool:
        """Return whether the process is known to have ended; one on another host never is."""
        return self.host == _host() and _began(self.process) != self.began

    def __str__(self) -> str:
        return f"process {self.process} on {self.name}"


class Lease:
    """A claim on a folder, renewed in the background until it is released.

    Each claim is a file with the next number, which only one process can create. So nobody can take a lease that was
    taken meanwhile, and a holder notices that it lost its own by the file after it.

    Attributes:
        attempts: number of processes in a row, with this one, that claimed the folder; those before ended without
            progress and without releasing it.
    """

    def __init__(self, folder: Path, number: int, progress: int, attempts: int) -> None:
        self.attempts = attempts
        self._folder, self._number, self._progress = folder, number, progress
        self._renewed = _clock()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Renew the lease, let nothing be written once it is lost, and release it at the end.

        A process that lost its lease, because it was suspended for long, ends at once: another one works on the job.
        """
        self._thread.start()
        set_fence(self.check)
        try:
            yield
        finally:
            set_fence(None)
            self._ended.set()
            self._thread.join()
            self.release()

    def check(self) -> None:
        """End the process if it lost the lease."""
        with self._lock:
            if not self._file(self._number + 1).exists():
                if _clock() - self._renewed < EXPIRES / 2:
                    return
                # Another process may be about to take it; only one of them can.
                if _create(self._file(self._number + 1), self._progress):
                    self._number, self._renewed = self._number + 1, _clock()
                    return
            holder = holder_of(self._folder)
        with suppress(OSError):
            sys.stderr.write(printable(f"{self._folder}: suspended for too long; {holder} took over the job\n"))
            sys.stderr.flush()
        os._exit(LOST)

    def release(self) -> None:
        """Let others claim the folder."""
        with suppress(OSError):  # the folder was deleted
            self._file(self._number).write_text("")

    def _renew(self) -> None:
        while not self._ended.wait(RENEWED):
            self.check()
            with suppress(OSError), self._lock:  # if it cannot be renewed, it expires
                os.utime(self._file(self._number))
                self._renewed = _clock()

    def _file(self, number: int) -> Path:
        return self._folder / f"{_PREFIX}{number}"


def claim(folder: Path, progress: int = 0) -> Lease | None:
    """Claim a folder, or return None if another process holds it.

    Args:
        folder: the folder.
        progress: a number that changes when the work in the folder makes progress.

    Raises:
        OSError: it cannot be written.
    """
    last = _newest(folder)
    if last and holder_of(folder) is not None:
        return None
    if not _create(folder / f"{_PREFIX}{last + 1}", progress):
        return None
    attempts, number = 1, last
    while number and (found := _read(folder / f"{_PREFIX}{number}")) and found[1] == progress:
        attempts, number = attempts + 1, number - 1
    return Lease(folder, last + 1, progress, attempts)


def holder_of(folder: Path) -> Holder | None:
    """Return the process that holds a folder; None if no live one does."""
    number = _newest(folder)
    file = folder / f"{_PREFIX}{number}"
    found = _read(file) if number else None
    if found is None or found[0].dead():
        return None
    if found[0].host == _host():
        return found[0]
    try:
        # In the future: the clock was set back since, as after a restart; a live holder renews it soon.
        return found[0] if abs(_now(folder) - file.stat().st_mtime) < EXPIRES else None
    except OSError:
        return None


def _create(file: Path, progress: int) -> bool:
    """Create a lease, complete or not at all; return False if it is there already."""
    part = file.with_name(f".{uuid4().hex}.part")
    part.write_text(json.dumps({"holder": vars(Holder.this()), "progress": progress}))
    try:
        os.link(part, file)
    except FileExistsError:
        return False
    else:
        return True
    finally:
        part.unlink()


def _read(file: Path) -> tuple[Holder, int] | None:
    """Return the holder of a lease, and the progress when it began; None if it was released or cannot be read."""
    try:
        found = read_object(file)
        with contents(file):
            process, began = int(found["holder"]["process"]), int(found["holder"]["began"])
            host, name = str(found["holder"]["host"]), str(found["holder"]["name"])
            return Holder(process, began, host, name), int(found["progress"])
    except (OSError, UserError):
        return None


def _newest(folder: Path) -> int:
    numbers = (file.name.removeprefix(_PREFIX) for file in folder.glob(f"{_PREFIX}*"))
    return max((int(number) for number in numbers if number.isdecimal() and len(number) < 10), default=0)


def _now(folder: Path) -> float:
    """Return the time by the clock of the file system, which hosts that share it agree on."""
    probe = folder / f".{uuid4().hex}.part"
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _clock() -> float:
    """Return seconds that also pass while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def _host() -> str:
    """Return what tells apart hosts, their starts, and containers on them."""
    start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{start} {os.readlink('/proc/self/ns/pid')}"


def _began(process: int) -> int | None:
    """Return when a process began, in ticks; None if there is none, or only its exit code is left."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])
