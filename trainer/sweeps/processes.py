"""Worker processes of a sweep, and what people see of them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from augment.cli.conf import CONFIG_DIR_FLAG, config_folders
from augment.cli.trust import TRUST_FLAG
from augment.support.secrets import for_worker
from augment.support.signals import StopSignals
from trainer.run.summary import read_summary
from trainer.sweeps.ledger import Job, unfinished
from trainer.sweeps.runs import PLANNED, RUNNING
from trainer.sweeps.work import NO_FURTHER_JOB, POLL, Worker, time_left

# Flag of workers that end with the process that started them.
WITH_PARENT = "--with-parent"

# Root of the package, for processes that start elsewhere.
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Command:
    """The command of a worker process, which claims jobs of a sweep until none is left.

    Attributes:
        arguments: the command.
        environment: environment variables in addition to those of the process that starts it.
        folder: folder to start it in.
        log: file of its output; empty: that of the process that starts it.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    log: str = ""

    def __hash__(self) -> int:
        return hash(self.log)

    @classmethod
    def of(cls, jobs: Sequence[Job], worker: Worker) -> "Command":
        """Return the command for some jobs of a sweep."""
        search = [str(folder) for folder in config_folders()[1:]][-1:]
        flags = [TRUST_FLAG, WITH_PARENT, "--config-name", worker.config_name]  # the jobs were checked before
        flags += [CONFIG_DIR_FLAG, *search] if search else []
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        ids = [f"--job={job.id}" for job in jobs]
        folder = str(jobs[0].folder.parent.resolve())
        return cls(
            (sys.executable, "-m", "trainer", "sweep", "work", folder, *flags, *ids),
            {"PYTHONPATH": path} | for_worker(),
            str(Path.cwd()),
        )

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, in a session of its own, so that Ctrl-C reaches it only through this process."""
        output: Any = open(self.log, "ab") if self.log else None  # noqa: SIM115
        try:
            return subprocess.Popen(
                self.arguments,
                cwd=self.folder,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                start_new_session=True,
            )
        finally:
            if output:
                output.close()

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


def watch(jobs: Sequence[Job], console: Console, signals: StopSignals) -> Iterator[None]:
    """Print what becomes of jobs that other processes run, and yield now and then, until all have ended.

    Raises:
        KeyboardInterrupt: a signal asked to stop.
    """
    before: dict[str, str] = {}
    while True:
        now = {job.id: job.status() for job in jobs}
        left = unfinished(jobs)
        for job in jobs:
            if now[job.id] != before.get(job.id, PLANNED):
                summary = read_summary(job.folder)
                about = f": {summary}" if summary is not None else f": {job.title}"
                text = f"job {job.id} ({jobs.index(job) + 1} of {len(jobs)}) {now[job.id]}{about}"
                console.print(text, highlight=False, soft_wrap=True, markup=False)
        if now != before and (text := time_left(jobs, max(1, [*now.values()].count(RUNNING)))):
            console.print(text, highlight=False)
        before = now
        if not left:
            return
        signals.check(NO_FURTHER_JOB)
        yield
        time.sleep(POLL)
