"""Workers of a sweep: processes that claim its jobs one after another and run them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from augment.cli.compose import plain_values
from augment.params import parse_settings, plain_value
from augment.support.errors import UserError, describe_error
from augment.support.files import shown
from augment.support.formatting import amount, duration
from augment.support.nested import section_of
from augment.support.process import launched_ranks
from augment.support.secrets import as_written
from augment.support.signals import StopSignals
from augment.support.untrusted_files import APPENDING, open_regular
from trainer.loop.callback import Callback, CancelFit, Phase
from trainer.loop.checkpoint import LAST
from trainer.loop.lazy_learner import Learner
from trainer.loop.ranks import LostRankError, leave, reported
from trainer.loop.torch_files import DamagedError
from trainer.run.config.schema import Config, parse_config
from trainer.run.config.sweep_settings import SearchSettings
from trainer.run.folder.locks import claimed, user_of
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.summary import FAILED, FINISHED, INTERRUPTED, PLANNED, RUNNING, Summary
from trainer.run.jobs import check_configs, run_job
from trainer.run.ranks import share
from trainer.sweeps.ledger import ENDED, Job, job_id, unfinished
from trainer.sweeps.trials import Search

NO_FURTHER_JOB = "Stopped. No more jobs will start."

# The minimum interval, in seconds, at which jobs of other processes are polled. See `pause`.
POLL = 0.1

# A worker with this flag ends with the process that started it, and reads its jobs from standard input.
WITH_PARENT = "--with-parent"

# A worker with this option starts that many processes, which train one job together.
RANKS = "--ranks"

# The folder of the package, for processes that start in another folder.
_ROOT = Path(__file__).parents[2]


def time_left(jobs: Sequence[Job], at_a_time: int, further: int = 0) -> str:
    """Return an estimate of the time for unfinished and further jobs. Empty if no job has finished, or none is left."""
    endings = (RunFolder(job.folder).summary for job in jobs)
    finished = [ending.seconds for ending in endings if ending.status == FINISHED]
    left = len(unfinished(jobs)) + further
    if not left or not finished:
        return ""
    seconds = left * mean(finished)
    return f"{amount(left, 'job')} left, about {duration(seconds / min(at_a_time, left))}"


class EndWithMain(Callback):
    """Ends the fit of the other ranks when rank 0 ends it after an epoch."""

    order = Phase.LAST

    def after_epoch(self, learner: "Learner") -> None:
        if learner.ranks.broadcast(value=False):
            raise CancelFit


@dataclass
class Worker:
    """Works on the jobs of a sweep in this process."""

    console: Console
    signals: StopSignals  # end the work between two jobs
    search: Search | None = None  # the search whose trials may be pruned
    estimate: Callable[[Sequence[Job], int], str] = time_left
    ranks: int = 1  # processes that train a job together

    def say(self, text: str, style: str | None = None) -> None:
        """Print text on one line, without markup."""
        self.console.print(text, style=style, highlight=False, soft_wrap=True, markup=False)

    def check(self, jobs: Sequence[Job]) -> None:
        """Check that at least one of the jobs can run. In the wrong folder, or without the data, all would fail.

        Raises:
            UserError: none can run. Nothing has been changed.
        """
        errors = []
        for job in jobs:
            if user_of(job.folder) is None:
                try:
                    # If a job needs several processes, they check its checkpoint after they have started.
                    self._config(job, resumed=self.ranks == 1 and (job.folder / LAST).is_file())
                    return
                except DamagedError:  # only this job fails
                    return
                except UserError as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    def work(self, jobs: Sequence[Job]) -> None:
        """Work until all jobs have ended, including jobs of other processes. A signal raises KeyboardInterrupt."""
        waited: set[str] = set()
        while left := unfinished(jobs):
            begun = time.monotonic()
            ran = any(self._try(job, jobs) for job in left)  # at most one of them
            if ran:
                others = sum(job.status() == RUNNING for job in left)
                if text := self.estimate(jobs, 1 + others):
                    self.say(text)
                continue
            for job in left:
                if (worker := user_of(job.folder)) and job.id not in waited:
                    waited.add(job.id)
                    self.say(f"waiting for job {job.id} ({worker})")
            self.signals.check(NO_FURTHER_JOB)
            pause(begun)

    def work_until_failure(self, jobs: Iterable[Job]) -> None:
        """Work on one job after another until one has failed.

        After a CUDA error, for example, all later jobs of the same process would also fail.
        """
        for job in jobs:
            self.work([job])
            if job.status() == FAILED:
                return

    def _try(self, job: Job, jobs: Sequence[Job]) -> bool:
        """Run a job unless another process works on it or has finished it. Return whether it ran."""
        self.signals.check(NO_FURTHER_JOB)
        if self.ranks > launched_ranks():
            return self._try_on_ranks(job)
        with claimed(job.folder) as mine:
            if not mine or job.status() in ENDED:  # another process was faster
                return False
            self._run(job, jobs)
        return True

    def _try_on_ranks(self, job: Job) -> bool:
        """Start processes that run a job together, unless another process works on it. Return whether it ran.

        Each job gets new processes, because a failure in one of them ends the others.
        """
        if user_of(job.folder):
            return False
        code = Command.of(job.folder.parent, self, [job], {}, self.ranks)(partial(self.signals.check, NO_FURTHER_JOB))
        if job.status() not in ENDED:
            raise UserError(
                f"job {job.id}: its {self.ranks} processes stopped with exit code {code}. To continue it, run: "
                f"python -m trainer sweep resume {shown(job.folder.parent)}"
            )
        return True

    def _run(self, job: Job, jobs: Sequence[Job]) -> None:
        resumed = (job.folder / LAST).is_file()
        title = f"{label(job, jobs)}: {job.title}{' (resumed)' if resumed else ''}"
        self.say(f"── {title}", "bold")
        try:
            config = self._config(job, resumed)
            share(config.resolved)
            summary = run_job(
                config,
                job.overrides,
                job.folder,
                again=not resumed,
                console=self.console,
                group=job.folder.parent.resolve().name,
                varied=job.varied,
                callbacks=self._callbacks(job),
                plan=False,  # plans would hide the scores
            )
        except Exception as error:
            self.say(f"job {job.id} failed: {describe_error(error)}", "red")
            if RunFolder(job.folder).summary.status != FAILED:  # the job failed before its run started
                Summary(FAILED, job.folder, error=describe_error(error)).write()
            if isinstance(error, LostRankError) and not reported():
                job.retry()  # a rank was killed, or stopped by a signal, so the job can continue
            if launched_ranks() > 1:
                raise SystemExit(1) from error  # ends the other ranks
            return
        self.say(str(summary))
        share(None)
        leave()
        if self.signals.asked or summary.status == INTERRUPTED:
            raise KeyboardInterrupt(NO_FURTHER_JOB)

    def _callbacks(self, job: Job) -> Sequence[Callback]:
        if self.search and (pruning := self.search.callbacks_of(job)):
            return pruning
        return (EndWithMain(),) if launched_ranks() > 1 else ()

    def _config(self, job: Job, resumed: bool) -> Config:
        """Return the checked configuration of a job. A resumed job continues from its own folder."""
        plain = dict(job.config or {})
        if resumed:
            plain["fit"] = {**section_of(plain, "fit"), "resume": str(job.folder)}
        try:
            check_configs([config := parse_config(plain)])
        except DamagedError as error:
            raise DamagedError(f"{error} To start the job again, delete this checkpoint.") from error
        if job_id(config) != job.id:
            raise UserError(
                f"{shown(job.folder)}: its configuration has changed since the sweep was planned, so its id is now "
                f"{job_id(config)}. A file in conf/, a default or the version differs. Start a new sweep."
            )
        return config


def header_line(search: Search | None, count: int, ranks: int = 1) -> str:
    """Return the first line that a worker process reads. It contains the search, the ranks and the number of jobs."""
    plain: dict[str, Any] = {"jobs": count, "ranks": ranks}
    if search is not None:
        settings = {name: plain_value(value) for name, value in vars(search.settings).items()}
        plain |= {"settings": settings, "metric": search.metric}
    return f"{json.dumps(plain)}\n"


def work_from_lines(folder: Path, worker: Worker, lines: Iterator[str]) -> None:
    """Work on jobs in a worker process.

    After the `header_line` come the jobs that all workers share. Each later line is a job for this worker only.
    """
    plain = json.loads(next(lines))
    worker.ranks = plain["ranks"]
    if "settings" in plain:
        settings = parse_settings(SearchSettings, plain["settings"], "hydra.sweeper")
        worker.search = Search(settings, folder, plain["metric"])
    worker.work([read_job(next(lines), folder) for _ in range(plain["jobs"])])
    worker.work_until_failure(read_job(line, folder) for line in lines)


def job_line(job: Job) -> str:
    """Return the line that describes a job to a worker process. See `read_job`."""
    assert job.config is not None
    return json.dumps(vars(job) | {"folder": job.id, "config": OmegaConf.to_yaml(as_written(job.config))}) + "\n"


def read_job(line: str, folder: Path) -> Job:
    """Parse a line of `job_line`. The process that wrote it has checked the configuration."""
    found = json.loads(line)
    plain = plain_values(DictConfig(OmegaConf.create(found["config"])))
    texts = {name: tuple(found[name]) for name in ("overrides", "varied")}
    return Job(**{**found, **texts, "folder": folder / found["folder"], "config": plain})


def label(job: Job, jobs: Sequence[Job]) -> str:
    if job.trial is not None:
        return f"job {job.id} (trial {job.trial})"
    return f"job {job.id}" + (f" ({jobs.index(job) + 1} of {len(jobs)})" if len(jobs) > 1 else "")


def pause(begun: float) -> None:
    """Sleep after a poll that started at `begun`, so that polling takes at most a fifth of the time."""
    time.sleep(max(POLL, 4 * (time.monotonic() - begun)))


@dataclass(frozen=True)
class Command:
    """The command that starts a worker process."""

    arguments: tuple[str, ...]
    environment: dict[str, str]  # variables to add
    folder: str  # the working directory
    text: str = ""  # the lines that the worker reads first. It reads no configuration from the folders of jobs

    @classmethod
    def of(
        cls, folder: Path, worker: Worker, jobs: Sequence[Job], environment: Mapping[str, str], ranks: int = 1
    ) -> "Command":
        """Return the command for some jobs of the sweep in a folder. Other jobs can be passed later.

        With `ranks` above 1, that many processes train the first job together, and then end.
        """
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        return cls(
            (sys.executable, "-m", "trainer", "sweep", "work", str(folder.resolve()), WITH_PARENT, RANKS, str(ranks)),
            {"PYTHONPATH": path, **environment},
            str(Path.cwd()),
            "".join([header_line(worker.search, len(jobs), worker.ranks), *map(job_line, jobs)]),
        )

    def start(self, log: Path | None = None) -> subprocess.Popen[bytes]:
        """Start the worker in a new session, so that Ctrl-C reaches it only through this process.

        With a log file, further jobs can be passed later. Without one, the worker prints to this process's output.
        """
        with nullcontext() if log is None else open(open_regular(log, flags=APPENDING), "ab") as output:
            process = subprocess.Popen(
                self.arguments,
                cwd=self.folder,
                env=os.environ | self.environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the worker has died, which callers notice
            process.stdin.write(self.text.encode())
            process.stdin.flush()
            if log is None:
                process.stdin.close()
        return process

    def __call__(self, check: Callable[[], None] = lambda: None) -> int:
        """Run the worker inside another process, such as one of submitit or Ray. Return its exit code.

        `check` is called repeatedly. If it raises an exception, the worker stops.
        """
        global _running
        _running = self.start()
        # Wait in another thread. `checkpoint` runs in a signal handler of this thread, so it must hold no lock.
        threading.Thread(target=_running.wait, daemon=True).start()
        try:
            while _running.returncode is None:
                check()
                time.sleep(POLL)
            return _running.returncode
        finally:
            _stop()

    def checkpoint(self) -> Any:
        """Save the current job before submitit queues this command again, after a preemption or at its time limit."""
        import submitit

        _stop()
        return submitit.helpers.DelayedSubmission(self)


# The worker process that `Command` runs.
_running: subprocess.Popen[bytes] | None = None


def _stop() -> None:
    """Stop the worker process, and wait until it has saved its job."""
    if _running is not None and _running.returncode is None:
        _running.send_signal(signal.SIGTERM)
        while _running.returncode is None:
            time.sleep(0.05)


def watch(jobs: Sequence[Job], worker: Worker, at_a_time: int, seen: dict[str, str] | None = None) -> Iterator[None]:
    """Print status changes of jobs in other processes. Yield after each poll, until all have ended."""
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
            ending, status = RunFolder(job.folder).summary, now[job.id]
            if ending.error:
                about = f" {status}: {ending.error}"
            elif ending.status in ("", RUNNING):
                about = f" {status}: {job.title}"
            else:
                about = f": {ending}"
            worker.say(f"{label(job, jobs)}{about}", "red" if status == FAILED else None)
        if any(now[job.id] in ENDED for job in news) and (text := worker.estimate(jobs, at_a_time)):
            worker.say(text)
        if all(status in ENDED for status in now.values()):
            return
        worker.signals.check(NO_FURTHER_JOB)
        yield
        pause(begun)
