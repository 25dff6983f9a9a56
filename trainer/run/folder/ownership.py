"""The folder of a run: it belongs to one run, and to one process at a time."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from augment.support.errors import UserError, describe_error
from augment.support.files import shown, write_json
from augment.support.formatting import html_table, plural
from augment.support.untrusted_files import open_regular, own_folder, read_text
from trainer.callbacks.checkpoint import best_of
from trainer.callbacks.optimizer_steps import ending_of
from trainer.callbacks.recorder import METRICS_FILE, Recorder
from trainer.loop.checkpoint import BEST, LAST
from trainer.run.config.schema import CONFIG_FILE
from trainer.tasks.registry import describe_metrics, task_of

if TYPE_CHECKING:
    from trainer.loop.learner import Learner

SUMMARY_FILE, OVERRIDES_FILE = "summary.json", Path(".hydra") / "overrides.yaml"

# Statuses of runs; `status_of` tells them apart.
PLANNED, RUNNING, KILLED = "planned", "running", "killed"
FINISHED, FAILED, INTERRUPTED = "finished", "failed", "interrupted"
PRUNED = "pruned"  # finished early, as it was behind other trials of a search


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Attributes:
        status: finished, interrupted or failed.
        folder: the run's folder.
        epochs: number of finished epochs.
        best: row of the best epoch, by the checkpoint's monitor; empty if there is none. Its score on the validation
            data is optimistic, because the epoch was selected by it.
        last: row of the last epoch, which was not selected by its score; empty if there is none.
        seconds: duration of this process's part of the run; on the command line, since the process began.
        error: the error of a failed run; empty if there was none.
        stopped: why a callback ended it before the last epoch; empty if none did.
        monitor: the value that the best epoch was chosen by; empty: the task's own.
        planned: number of planned epochs; 0: unknown.
        name: what people call the run; empty: unknown.
        tags: its tags.
        first_step: the part of `seconds` before the first training batch was done; None: none was.
        metrics: how the metrics of plugins are read, see `trainer.tasks.registry.describe_metrics`.
    """

    status: str
    folder: Path
    epochs: int = 0
    best: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    stopped: str = ""
    monitor: str = ""
    planned: int = 0
    name: str = ""
    tags: tuple[str, ...] = ()
    first_step: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def write(self) -> None:
        """Write summary.json."""
        write_json(self.folder / SUMMARY_FILE, {**vars(self), "folder": str(self.folder)})

    def __repr__(self) -> str:
        return f"Summary({self})"

    def _repr_html_(self) -> str:
        """Draw the best and the last epoch, for notebooks."""
        rows = {name: row for name, row in (("best", self.best), ("last", self.last)) if row}
        keys = [key for key in self.last or self.best if key.startswith(("train_", "val_"))]
        cells = [
            (name, int(row["epoch"]) + 1, *(f"{row[key]:.4f}" if key in row else "-" for key in keys))
            for name, row in rows.items()
        ]
        head = ("", "epoch", *(key.replace("_", " ") for key in keys))
        return html_table(head, cells, title=self.name, last=str(self))

    def __str__(self) -> str:
        key = task_of([self.best, self.last]).monitor
        best = self.best.get(key)
        score = f"no {key}" if self.best or self.last else "no score"
        if best is not None:
            epoch, chosen = int(self.best["epoch"]) + 1, self.monitor in ("", key)
            score = f"best {key} {best:.4f} in epoch {epoch}" if chosen else f"{key} {best:.4f} in epoch {epoch}"
            score += "" if chosen else f", the best by {self.monitor}"
        final = f", last {self.last[key]:.4f}" if key in self.last else ""
        early = f" (stopped early: {self.stopped})" if self.stopped else ""
        first = "" if self.first_step is None else f" ({self.first_step:.1f} s to the first step)"
        took = f"{self.seconds:.0f} s{first}, in {shown(self.folder)}"
        fewer = f" of {self.planned}" if self.planned > self.epochs else ""
        epochs = f"{self.epochs}{fewer} {plural(self.planned or self.epochs, 'epoch')}"
        resumable = self.status == "interrupted" and (self.folder / LAST).is_file()
        on = f"; fit.resume={shown(self.folder)} continues it" if resumable else ""
        return f"{self.status} after {epochs}{early}: {score}{final}, {took}{on}"


def summarize(learner: Learner, folder: Path, seconds: float) -> Summary:
    """Return how a fit ended, `seconds` after the run began; from the after_fit of callbacks on."""
    recorder, error = learner.find(Recorder), learner.error
    rows = recorder.rows
    monitor, best = best_of(learner)
    return Summary(
        "failed" if error is not None else ending_of(learner),
        folder,
        len(rows),
        best=best,
        last=dict(rows[-1]) if rows else {},
        seconds=seconds,
        error="" if error is None else describe_error(error),
        stopped=next((callback.reason for callback in learner.callbacks if callback.reason), ""),
        monitor=monitor,
        planned=learner.progress.epochs,
        name=learner.run.name,
        tags=learner.run.tags,
        first_step=None if recorder.first is None else seconds - (monotonic() - recorder.first[0]),
        metrics=describe_metrics(learner.task),
    )


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
        UserError: the folder holds another run, or cannot be written to.
    """
    path = folder.resolve()
    if path in _reserved:
        return
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
    path = own_folder(folder).resolve()
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


def status_of(folder: Path, summary: Summary) -> str:
    """Return the status of a run, given what its summary.json says: killed, if its process on this host is gone."""
    if summary.status in (FINISHED, FAILED, INTERRUPTED):
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
