"""Work on the jobs of a sweep: claim one that nobody works on, run it, and so on until none is left."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from rich.console import Console

from augment.support.errors import UserError, describe_error
from augment.support.files import shown
from augment.support.signals import StopSignals
from augment.support.text import amount, duration
from trainer.loop.callback import Callback
from trainer.loop.checkpoint import LAST
from trainer.loop.plain import DamagedError
from trainer.run.config import Config
from trainer.run.jobs import check_jobs, run_job
from trainer.run.summary import RUNNING, Summary
from trainer.sweeps.ledger import ENDED, FAILED, FINISHED, INTERRUPTED, PRUNED, Job, job_id, read_ledger, unfinished

NO_FURTHER_JOB = "stopped; no further job was started"

# Least seconds between two looks at jobs that other processes work on; see `pause`.
POLL = 0.1

# Processes in a row that may die without progress on a job before it counts as failed.
ATTEMPTS = 5


def time_left(jobs: Sequence[Job], at_a_time: int, further: int = 0, later: int = 0) -> str:
    """Return how long the unfinished jobs will take, estimated from the finished ones; empty if there are none.

    Args:
        jobs: the jobs.
        at_a_time: number of jobs that run at a time.
        further: number of further jobs that are like them, of which a search may prune some.
        later: number of those that no search prunes.
    """
    finished = [ending for job in jobs if (ending := job.ending) is not None and ending.status == FINISHED]
    left = len(unfinished(jobs)) + further
    if not left + later or not finished:
        return ""
    whole = [ending for ending in finished if not ending.stopped.startswith(PRUNED)] or finished
    seconds = sum(count * mean(one.seconds for one in some) for count, some in ((left, finished), (later, whole)))
    of = " of the search" if later else ""
    return f"{amount(left + later, 'job')}{of} left, about {duration(seconds / min(at_a_time, left + later))}"


@dataclass
class Worker:
    """What a process needs to work on jobs.

    Attributes:
        console: where to print.
        signals: signals that end the work between two jobs.
        config_name: file of conf/ that the jobs start from.
        configs: configurations that were checked already, by job.
        watch: makes the callbacks of a job, in addition to those of its configuration.
        left: returns how long jobs will take, of which so many run at a time; see `time_left`.
        planned: whether the plan of a job was printed; those of further jobs would bury the scores.
    """

    console: Console
    signals: StopSignals
    config_name: str = "config"
    configs: dict[str, Config] = field(default_factory=dict)
    watch: Callable[[Job], Sequence[Callback]] = lambda job: ()
    left: Callable[[Sequence[Job], int], str] = time_left
    planned: bool = False

    def say(self, text: str, style: str | None = None) -> None:
        """Print a text as it is, in one line."""
        self.console.print(text, style=style, highlight=False, soft_wrap=True, markup=False)

    def check(self, jobs: Sequence[Job]) -> None:
        """Check that some of the jobs can be run: in another folder, or on a host without the data, all would fail.

        Raises:
            UserError: none can; nothing has been changed.
        """
        errors = []
        for job in jobs:
            if job.worker() is None:
                try:
                    self._config(job, resumed=(job.folder / LAST).is_file())
                    return
                except DamagedError:  # of this job alone: it fails
                    return
                except UserError as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    def work(self, jobs: Sequence[Job]) -> None:
        """Work until all jobs have ended, waiting for those of other processes.

        Raises:
            KeyboardInterrupt: a signal asked to stop; the current job is saved.
        """
        waited: set[str] = set()
        while left := unfinished(jobs):
            begun = time.monotonic()
            if any(self._try(job, jobs) for job in left):
                others = sum(job.status() == RUNNING for job in left)
                if text := self.left(jobs, 1 + others):
                    self.say(text)
                continue
            for job in left:
                if (worker := job.worker()) and job.id not in waited:
                    waited.add(job.id)
                    self.say(f"waiting for job {job.id} ({worker})")
            self.signals.check(NO_FURTHER_JOB)
            pause(begun)

    def follow(self, folder: Path, names: Iterable[str]) -> None:
        """Work on the jobs of a sweep that are named one after another, until one of them has failed.

        After an error of CUDA, for example, every further job of the same process would fail, too.

        Raises:
            KeyboardInterrupt: see `work`.
        """
        for name in names:
            jobs = [job for job in read_ledger(folder) if job.id == name.strip()]
            self.work(jobs)
            if any(job.status() == FAILED for job in jobs):
                return

    def _try(self, job: Job, jobs: Sequence[Job]) -> bool:
        """Run a job unless another process works on it or has finished it; return whether it ran."""
        self.signals.check(NO_FURTHER_JOB)
        with job.claimed() as attempts:
            if not attempts or job.status() in ENDED:  # finished meanwhile
                return False
            self._run(job, jobs, attempts)
        return True

    def _run(self, job: Job, jobs: Sequence[Job], attempts: int) -> None:
        resumed = (job.folder / LAST).is_file()
        title = f"{label(job, jobs)}: {job.title}{' (resumed)' if resumed else ''}"
        self.say(f"── {title}", "bold")
        try:
            if attempts > ATTEMPTS:
                raise UserError(f"{amount(attempts - 1, 'process')} in a row died while running it")
            config = self._config(job, resumed)
            planned, self.planned = self.planned, True
            summary = run_job(
                config,
                job.overrides,
                job.folder,
                again=not resumed,
                console=self.console,
                group=job.folder.parent.resolve().name,
                varied=job.varied,
                callbacks=self.watch(job),
                plan=not planned,
            )
        except Exception as error:
            self.say(f"job {job.id} failed: {describe_error(error)}", "red")
            if (ending := job.ending) is None or ending.status != FAILED:  # it failed before the run began
                Summary(FAILED, job.folder, 0, {}, {}, 0.0, describe_error(error)).write()
            return
        self.say(str(summary))
        if self.signals.asked or summary.status == INTERRUPTED:
            raise KeyboardInterrupt(NO_FURTHER_JOB)

    def _config(self, job: Job, resumed: bool) -> Config:
        """Return the checked configuration of a job; if it has a checkpoint, that of continuing in its folder."""
        if not resumed and job.id in self.configs:
            return self.configs[job.id]
        quoted = str(job.folder).replace('"', r"\"")
        again = [f'++fit.resume="{quoted}"'] if resumed else []
        try:
            (config,) = check_jobs([[*job.overrides, *again]], config_name=self.config_name)
        except DamagedError as error:
            raise DamagedError(f"{error} Allowed: delete it, and the job begins again.") from error
        if job_id(config) != job.id:
            raise UserError(
                f"{shown(job.folder)}: its configuration has changed since the sweep was planned (now "
                f"{job_id(config)}): a file of conf/, a default or the version is different. Allowed: a new sweep."
            )
        return config


def label(job: Job, jobs: Sequence[Job]) -> str:
    """Return what to call one of several jobs."""
    if job.trial is not None:
        return f"job {job.id} (trial {job.trial})"
    return f"job {job.id}" + (f" ({jobs.index(job) + 1} of {len(jobs)})" if len(jobs) > 1 else "")


def pause(begun: float) -> None:
    """Sleep until the next look at jobs, as looking takes at most a fifth of the time.

    Args:
        begun: when the last look began, by `time.monotonic`.
    """
    time.sleep(max(POLL, 4 * (time.monotonic() - begun)))
