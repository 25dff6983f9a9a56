"""Worker processes of a sweep, and what people see of them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augment.cli.conf import CONFIG_DIR_FLAG, config_folders
from augment.cli.trust import TRUST_FLAG
from augment.support.secrets import for_worker
from trainer.run.summary import RUNNING
from trainer.sweeps.ledger import ENDED, FAILED, PLANNED, Job
from trainer.sweeps.work import NO_FURTHER_JOB, POLL, Worker, label, pause

# Flags of workers: one ends with the process that started it; `--job=-` reads the ids of jobs from standard input.
WITH_PARENT, NAMED_LATER = "--with-parent", "-"

# Root of the package, for processes that start elsewhere.
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Command:
    """The command of a worker process, which claims jobs of a sweep.

    Attributes:
        arguments: the command.
        environment: environment variables in addition to those of the process that starts it.
        folder: folder to start it in.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str

    @classmethod
    def of(cls, folder: Path, worker: Worker, names: Iterable[str]) -> "Command":
        """Return the command for some jobs of the sweep in a folder, by their ids; or for `NAMED_LATER`."""
        search = [str(folder) for folder in config_folders()[1:]][-1:]
        flags = [TRUST_FLAG, WITH_PARENT, "--config-name", worker.config_name]  # the jobs are checked before
        flags += [CONFIG_DIR_FLAG, *search] if search else []
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        jobs = [f"--job={name}" for name in names]
        return cls(
            (sys.executable, "-m", "trainer", "sweep", "work", str(folder.resolve()), *flags, *jobs),
            {"PYTHONPATH": path} | for_worker(),
            str(Path.cwd()),
        )

    def start(self, log: Path | None = None) -> subprocess.Popen[bytes]:
        """Start it, in a session of its own, so that Ctrl-C reaches it only through this process.

        Args:
            log: file of its output, if its jobs are named later; None: it prints where this process does.
        """
        with log.open("ab") if log is not None else nullcontext() as output:
            return subprocess.Popen(
                self.arguments,
                cwd=self.folder,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL if log is None else subprocess.PIPE,
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


def watch(jobs: Sequence[Job], worker: Worker, at_a_time: int, seen: dict[str, str] | None = None) -> Iterator[None]:
    """Print what becomes of jobs that other processes run, and yield now and then, until all have ended.

    Args:
        jobs: the jobs.
        worker: where to print, and signals that end the watch.
        at_a_time: number of jobs that run at a time.
        seen: the statuses that were printed before; updated.

    Raises:
        KeyboardInterrupt: a signal asked to stop.
    """
    seen = {} if seen is None else seen
    for job in jobs:
        status = job.status()
        seen.setdefault(job.id, PLANNED if status in (RUNNING, *ENDED) else status)
    while True:
        begun = time.monotonic()
        now = {job.id: job.status() for job in jobs}
        news = [job for job in jobs if now[job.id] != seen[job.id]]
        seen |= now
        for job in news:
            ending, status = job.ending, now[job.id]
            about = f" {status}: {job.title}" if ending is None else f": {ending}"
            if ending is not None and ending.error:
                about = f" {status}: {ending.error}"
            worker.say(f"{label(job, jobs)}{about}", "red" if status == FAILED else None)
        if any(now[job.id] in ENDED for job in news) and (text := worker.left(jobs, at_a_time)):
            worker.say(text)
        if all(status in ENDED for status in now.values()):
            return
        worker.signals.check(NO_FURTHER_JOB)
        yield
        pause(begun)
