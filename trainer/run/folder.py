"""The folder of a run: it belongs to one run, and to one process at a time."""

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
from augment.support.reading import check_folder, open_regular, read_text
from trainer.callbacks.recorder import METRICS_FILE
from trainer.loop.checkpoint import BEST, LAST
from trainer.run.config import CONFIG_FILE
from trainer.run.summary import FAILED, FINISHED, INTERRUPTED, KILLED, PLANNED, PRUNED, RUNNING, SUMMARY_FILE, Summary

# The system releases the lock when the process ends, however it ends; the file stays.
LOCK_FILE = ".lock"

# What is asked of a sweep: the overrides of its command. A folder with it belongs to a sweep.
SWEEP_FILE = "sweep.yaml"

# A folder with any of these files belongs to a run.
_FILES = (CONFIG_FILE, SUMMARY_FILE, METRICS_FILE, LAST, BEST)

# Locks that this process holds, by resolved folder: those reserved for runs that are about to start, and those of jobs
# that it claimed; and all of them.
_reserved: dict[Path, int] = {}
_claimed: dict[Path, int] = {}
_held: set[int] = set()

log = logging.getLogger(__name__)


def named_folder(name: str, key: str) -> Path:
    """Return the folder that a setting names.

    Raises:
        UserError: the name is empty, such as a variable of the shell that is not set.
    """
    if not name:
        raise UserError(f"{key}: a folder is missing. Allowed: such as outputs/mine.")
    return Path(name)


def reserve(folder: Path, resumed: str | None = None, *, key: str = "folder", again: bool = False) -> None:
    """Check that a run may start in a folder, and lock it until that run has ended or `release` is called.

    Nothing but the lock is written. A folder that this process has already reserved or claimed is accepted.

    Args:
        folder: the run's folder; created if it is missing.
        resumed: the folder of the run to resume, which may be the same one.
        key: the setting that the folder was given by, for messages.
        again: whether the folder may already hold a run, which then starts from the beginning.

    Raises:
        UserError: the folder holds another run or a way out of it, or cannot be written to.
    """
    path = folder.resolve()
    if path in _reserved:
        return
    check_folder(folder)
    if path in _claimed:
        return
    in_place = again or (resumed is not None and Path(resumed).resolve() == path)
    if not in_place:
        _refuse_used(folder, key)
    _reserved[path] = _lock(folder, key)


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Hold the lock of a job's folder, also during its run; yield False if another process holds it.

    Raises:
        UserError: the file system has no locks, and the last process to hold this one has not released it.
        OSError: the folder cannot be written to.
    """
    path = folder.resolve()
    lock = None if user_of(path) else open_regular(path / LOCK_FILE, flags=os.O_RDWR | os.O_CREAT)
    if lock is None or not _take(lock, folder, alone=True):
        yield False
        return
    _claimed[path] = lock
    try:
        yield True
    finally:
        _unlock(_claimed.pop(path))


@contextmanager
def owned(folder: Path, resumed: str | None = None) -> Iterator[None]:
    """Hold a folder's lock during its run; call `reserve` first if that has not been done yet."""
    reserve(folder, resumed)
    lock = _reserved.pop(folder.resolve(), None)  # None: it was claimed, which lasts longer
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
    """Return the process that is writing to a run's folder, as "process 17 on HOST"; None if there is none."""
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


def status_of(folder: Path, summary: Summary | None) -> str:
    """Return the status of a run, given what its summary.json says: killed, if its process on this host is gone."""
    if summary is not None and summary.status in (FINISHED, FAILED, INTERRUPTED):
        return PRUNED if summary.stopped.startswith(PRUNED) else summary.status
    if user_of(folder):
        return RUNNING
    if not any(os.path.lexists(folder / name) for name in (SUMMARY_FILE, METRICS_FILE, CONFIG_FILE)):
        return PLANNED
    with suppress(OSError, UserError):
        _, _, host = read_text(folder / LOCK_FILE, most=1000).strip().partition(" on ")
        return KILLED if host in ("", socket.gethostname()) else RUNNING  # one on another host is taken at its word
    return KILLED


def _refuse_used(folder: Path, key: str) -> None:
    if (folder / SWEEP_FILE).exists():
        raise UserError(f"{key}={shown(folder)}: holds a sweep. Allowed: a folder of its own for each run.")
    if not any((folder / name).exists() for name in _FILES):
        return
    if user := user_of(folder):
        raise UserError(_in_use(folder, key, user))
    allowed = "a folder of its own for each run"
    if (folder / LAST).is_file():
        allowed += f"; or fit.resume={shown(folder)} as well, which continues that run"
    raise UserError(f"{key}={shown(folder)}: holds a run. Allowed: {allowed}.")


def _lock(folder: Path, key: str) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open_regular(folder / LOCK_FILE, flags=os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UserError(
            f"{key}={shown(folder)}: cannot be written: {error.strerror}. Allowed: a folder that is writable."
        ) from error
    if not _take(lock, folder):
        raise UserError(_in_use(folder, key, user_of(folder) or "a process"))
    return lock


def _take(lock: int, folder: Path, *, alone: bool = False) -> bool:
    """Lock an open file, or close it and return False if another process holds it; without locks, `alone` needs one."""
    for pause in (0.01, 0.1, None):  # `user_of` and `clean` of others, such as a dashboard, may hold it for a moment
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
            if alone and user:
                os.close(lock)
                raise UserError(
                    f"{shown(folder)}: this file system has no locks ({error.strerror}), and {user} works here. "
                    f"Allowed: one process at a time; or, if that one has ended, to delete {shown(folder / LOCK_FILE)}."
                ) from error
            log.warning("%s: not locked, as this file system has no locks: %s", shown(folder), error.strerror)
            break
    with suppress(OSError):  # the disk is full; only messages use the text
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    _held.add(lock)
    return True


def _in_use(folder: Path, key: str, user: str) -> str:
    return (
        f"{key}={shown(folder)}: a run is writing to it ({user}). Allowed: another folder, or this one once that run "
        "has ended."
    )


def _unlock(lock: int) -> None:
    with suppress(OSError):  # where there are no locks, its text would be taken for a process that still works here
        os.ftruncate(lock, 0)
    _held.discard(lock)
    os.close(lock)


def _close_in_child() -> None:
    """Close the locks that a worker process inherits; otherwise it would keep them after its parent has died."""
    while _held:
        os.close(_held.pop())
    _reserved.clear()
    _claimed.clear()


os.register_at_fork(after_in_child=_close_in_child)
