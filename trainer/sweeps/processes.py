"""Worker processes of a sweep, and what people see of them."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augment.cli.conf import CONFIG_DIR_FLAG, config_folders
from augment.cli.trust import TRUST_FLAG
from augment.support.secrets import for_worker
from augment.support.signals import StopSignals
from trainer.run.jobs import import_run
from trainer.run.summary import read_summary
from trainer.sweeps.ledger import ENDED, Job
from trainer.sweeps.runs import FAILED, INTERRUPTED, PLANNED, RUNNING
from trainer.sweeps.work import NO_FURTHER_JOB, POLL, Worker, label, pause

# Flags of workers: one ends with the process that started it; one works on the jobs that this process names to it on
# its standard input, a line each, and writes to a log.
WITH_PARENT, LED = "--with-parent", "--led"

# Root of the package, for processes that start elsewhere.
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Command:
    """The command of a worker process, which claims jobs of a sweep.

    Attributes:
        arguments: the command.
        environment: environment variables in addition to those of the process that starts it.
        folder: folder to start it in.
        log: file of its output, if it is led by the process that starts it.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    log: str = ""

    @classmethod
    def of(cls, folder: Path, worker: Worker, jobs: Iterable[Job] = (), log: Path | None = None) -> "Command":
        """Return the command for some jobs of a sweep, or for those that will be named to the worker.

        Args:
            folder: the sweep's folder.
            worker: what a worker in this process would need.
            jobs: the jobs, until all of which have ended it works.
            log: file of its output, if the jobs will be named.
        """
        search = [str(folder) for folder in config_folders()[1:]][-1:]
        flags = [TRUST_FLAG, WITH_PARENT, "--config-name", worker.config_name]  # the jobs are checked before
        flags += [CONFIG_DIR_FLAG, *search] if search else []
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        which = [f"--job={job.id}" for job in jobs] if log is None else [f"{LED}={log.resolve()}"]
        return cls(
            (sys.executable, "-m", "trainer", "sweep", "work", str(folder.resolve()), *flags, *which),
            {"PYTHONPATH": path} | for_worker(),
            str(Path.cwd()),
            str(log or ""),
        )

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, in a session of its own, so that Ctrl-C reaches it only through this process."""
        # The log of a worker that is led may be in a folder that is not there yet; it opens the log itself.
        output = subprocess.DEVNULL if self.log else None
        return subprocess.Popen(
            self.arguments,
            cwd=self.folder,
            env=os.environ | self.environment,
            stdin=subprocess.PIPE if self.log else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def __call__(self) -> int:
        """Run it, where submitit or Ray wants it; return its exit code."""
        global _running
        _running = self.start()
        # A thread waits, as `checkpoint` runs in a signal handler of this one, which must hold no lock then.
        threading.Thread(target=_running.wait, daemon=True).start()
        try:
            while _running.returncode is None:
                time.sleep(POLL)
            return _running.returncode
        finally:
            _stop()

    def checkpoint(self) -> Any:
        """Save the current job, before submitit queues this command again: preempted, or at its time limit."""
        import submitit

        _stop()
        return submitit.helpers.DelayedSubmission(self)


# The process that `Command` runs.
_running: subprocess.Popen[bytes] | None = None


def _stop() -> None:
    """Ask the process to stop, and wait until it has saved its job."""
    if _running is not None and _running.returncode is None:
        _running.send_signal(signal.SIGTERM)
        while _running.returncode is None:
            time.sleep(0.05)


class Orders:
    """What the process that leads this one says on the standard input: the ids of jobs, a line each."""

    def __init__(self) -> None:
        self._rest = ""

    def first(self, log: Path, signals: StopSignals) -> Sequence[str] | None:
        """Import what jobs need, and wait for the first ids; return None if there will be none.

        Args:
            log: file for the output of this process, in the sweep's folder, which may not be there yet.
            signals: those of the command line.
        """
        if log.parent.is_dir():
            _write_to(log)
        import_run(signals)
        if (ids := self.next(None)) is not None:
            _write_to(log)
        return ids

    def next(self, seconds: float | None) -> Sequence[str] | None:
        """Return the ids that have come, waiting some seconds for one, or forever; None: there will be no more."""
        if not select.select([0], [], [], seconds)[0]:
            return []
        if not (read := os.read(0, 1 << 16)):
            return None
        *ids, self._rest = (self._rest + read.decode()).split("\n")
        return ids


def _write_to(log: Path) -> None:
    """Let the output of this process go to a file."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def watch(
    jobs: Sequence[Job],
    worker: Worker,
    before: dict[str, str] | None = None,
    *,
    at_a_time: int = 1,
    until_one_ends: bool = False,
) -> Iterator[None]:
    """Print what becomes of jobs that other processes run, and yield now and then, until all have ended.

    Args:
        jobs: the jobs.
        worker: where to print, and signals that end the watch.
        before: what was printed of jobs before; updated.
        at_a_time: number of jobs that run at a time, as far as it is known; between two jobs fewer do.
        until_one_ends: whether to end as soon as one of the jobs has ended.

    Raises:
        KeyboardInterrupt: a signal asked to stop.
    """
    before = {} if before is None else before
    for job in jobs:
        before.setdefault(job.id, INTERRUPTED if job.status() == INTERRUPTED else PLANNED)  # neither is news
    while True:
        begun = time.monotonic()
        now = {job.id: job.status() for job in jobs}
        news = [job for job in jobs if now[job.id] != before[job.id]]
        for job in news:
            summary, status = read_summary(job.folder), now[job.id]
            about = f": {summary}" if summary is not None else f" {status}: {job.title}"
            if summary is not None and summary.error:
                about = f" {status}: {summary.error}"
            text, style = f"{label(job, jobs)}{about}", "red" if status == FAILED else None
            worker.console.print(text, style=style, highlight=False, soft_wrap=True, markup=False)
        at_a_time = max(at_a_time, [*now.values()].count(RUNNING))
        ended = any(now[job.id] in ENDED for job in news)
        if ended and (text := worker.left(jobs, at_a_time)):
            worker.console.print(text, highlight=False)
        before |= now
        left = sum(status not in ENDED for status in now.values())
        if not left or (until_one_ends and left < len(now)):
            return
        worker.signals.check(NO_FURTHER_JOB)
        yield
        pause(begun)
