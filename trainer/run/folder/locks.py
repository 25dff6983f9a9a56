"""Locks: a run's folder belongs to one run, and to one process at a time."""

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep

from augment.support.errors import UserError
from augment.support.files import shown
from augment.support.untrusted_files import open_regular, read_text, unlinked_folder
from trainer.callbacks.recorder import METRICS_FILE
from trainer.loop.checkpoint import BEST, LAST
from trainer.run.config.schema import CONFIG_FILE
from trainer.run.folder.summary import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    KILLED,
    PLANNED,
    PRUNED,
    RUNNING,
    SUMMARY_FILE,
    Summary,
)

# The operating system releases the lock when the process ends, even if it is killed. The file stays.
LOCK_FILE = ".lock"

# The command, launcher and sweeper of a sweep, and a search's space. A folder with this file belongs to a sweep.
SWEEP_FILE = "sweep.yaml"

# A folder with any of these files belongs to a run.
_FILES = (CONFIG_FILE, SUMMARY_FILE, METRICS_FILE, LAST, BEST)

# The file descriptors of the locks that this process holds.
_reserved: dict[Path, int] = {}  # by resolved folder, for runs that are about to start
_claimed: dict[Path, int] = {}  # by resolved folder, for jobs of a sweep
_held: set[int] = set()  # all of them, also while a run owns its folder

log = logging.getLogger(__name__)


def named_folder(name: str, key: str) -> Path:
    """Return the folder that a setting names.

    Raises:
        UserError: the name is empty, for example because a shell variable is not set.
    """
    if not name:
        raise UserError(f"{key}: the name of the folder is empty. Set it, for example to outputs/mine.")
    return Path(name)


def reserve(folder: Path, resumed: str | None = None, *, key: str = "folder", again: bool = False) -> None:
    """Lock a folder for a run until the run has ended or `release` is called.

    Only the lock file is written. If this process has already reserved or claimed the folder, nothing changes.

    Args:
        folder: the run's folder. Created if it is missing.
        resumed: the folder of the run to resume, which may be the same one.
        key: the setting that names the folder, for messages.
        again: whether the folder may hold a run, which then starts from the beginning.

    Raises:
        UserError: the folder holds another run, or cannot be written to.
    """
    path = folder.resolve()
    if path in _reserved or path in _claimed:
        return
    in_place = again or (resumed is not None and Path(resumed).resolve() == path)
    if not in_place:
        _reject_used(folder, key)
    _reserved[path] = _lock(folder, key)


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Hold the lock of a job's folder, including while the job runs. Yield False if another process holds the lock.

    Raises:
        UserError: the file system has no locks, and another process has not released this folder.
        OSError: the folder cannot be written to.
    """
    path = unlinked_folder(folder).resolve()
    lock = None if user_of(path) else open_regular(path / LOCK_FILE, flags=os.O_RDWR | os.O_CREAT)
    if lock is None or not _take(lock, folder, exclusive=True):
        yield False
        return
    _claimed[path] = lock
    try:
        yield True
    finally:
        _unlock(_claimed.pop(path))


@contextmanager
def owned(folder: Path, resumed: str | None = None) -> Iterator[None]:
    """Hold a folder's lock during its run, and reserve it first if necessary."""
    reserve(folder, resumed)
    lock = _reserved.pop(folder.resolve(), None)  # None: the folder was claimed, and stays locked after the run
    try:
        yield
    finally:
        if lock is not None:
            _unlock(lock)


def release() -> None:
    """Unlock the folders that were reserved for runs that did not start."""
    while _reserved:
        _unlock(_reserved.popitem()[1])


def user_of(folder: Path) -> str | None:
    """Return the process that is writing to a run's folder, such as "process 17 on HOST", or None."""
    try:
        lock = open_regular(folder / LOCK_FILE)
    except (OSError, UserError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(lock, 1000).decode(errors="replace").strip() or "a process"
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(lock)
    return None


def status_of(folder: Path, summary: Summary) -> str:
    """Return the status of a run. An unfinished run was killed if its process on this host no longer exists."""
    if summary.status in (FINISHED, FAILED, INTERRUPTED):
        return PRUNED if summary.stopped.startswith(PRUNED) else summary.status
    if user_of(folder):
        return RUNNING
    if not any(os.path.lexists(folder / name) for name in (SUMMARY_FILE, METRICS_FILE, CONFIG_FILE)):
        return PLANNED
    with suppress(OSError, UserError):
        _, _, host = read_text(folder / LOCK_FILE, most=1000).strip().partition(" on ")
        return KILLED if host in ("", socket.gethostname()) else RUNNING  # this host cannot see other hosts' processes
    return KILLED


def _reject_used(folder: Path, key: str) -> None:
    if (folder / SWEEP_FILE).exists():
        raise UserError(f"{key}={shown(folder)}: this folder holds a sweep. Use a separate folder for each run.")
    if not any((folder / name).exists() for name in _FILES):
        return
    if user := user_of(folder):
        raise UserError(_in_use(folder, key, user))
    remedy = "Use a separate folder for each run."
    if (folder / LAST).is_file():
        remedy += f" To continue that run, add fit.resume={shown(folder)}."
    raise UserError(f"{key}={shown(folder)}: this folder holds a run. {remedy}")


def _lock(folder: Path, key: str) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open_regular(folder / LOCK_FILE, flags=os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UserError(
            f"{key}={shown(folder)}: cannot write to this folder: {error.strerror}. Choose a writable folder."
        ) from error
    if not _take(lock, folder):
        raise UserError(_in_use(folder, key, user_of(folder) or "a process"))
    return lock


def _take(lock: int, folder: Path, *, exclusive: bool = False) -> bool:
    """Lock an open file, or close it and return False if another process holds the lock.

    On a file system without locks, return True, or with `exclusive`, raise an error if the file names another process.
    """
    for pause in (0.01, 0.1, None):  # other programs, such as a dashboard, may hold the lock for a moment
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if pause is None:
                os.close(lock)
                return False
            sleep(pause)
        except OSError as error:
            user = os.pread(lock, 1000, 0).decode(errors="replace").strip()
            if exclusive and user:
                os.close(lock)
                raise UserError(
                    f"{shown(folder)}: {user} uses this folder, and its file system has no locks ({error.strerror}). "
                    f"Wait for that process. If it has ended, delete {shown(folder / LOCK_FILE)}."
                ) from error
            log.warning("%s: not locked, because its file system has no locks: %s", shown(folder), error.strerror)
            break
    with suppress(OSError):  # the lock works on a full disk, but messages cannot name this process
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    _held.add(lock)
    return True


def _in_use(folder: Path, key: str, user: str) -> str:
    return (
        f"{key}={shown(folder)}: a run is writing to this folder ({user}). Use another folder, or wait until that run "
        "has ended."
    )


def _unlock(lock: int) -> None:
    with suppress(OSError):  # if the file system has no locks, an empty file means that the folder is free
        os.ftruncate(lock, 0)
    _held.discard(lock)
    os.close(lock)


def _close_in_child() -> None:
    """Close the locks that a worker process inherits, so that they end with its parent."""
    while _held:
        os.close(_held.pop())
    _reserved.clear()
    _claimed.clear()


os.register_at_fork(after_in_child=_close_in_child)
