"""Launchers (`hydra/launcher=NAME`) run jobs in this process, in worker processes, or through Slurm or Ray."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from augment.params import parse_settings
from augment.support.errors import UserError, import_extra, suggest
from augment.support.files import shown
from augment.support.formatting import amount, list_some
from augment.support.lazy_torch import torch
from trainer.run.config.fit import check_ranks
from trainer.run.config.schema import Config
from trainer.run.config.sweep_settings import LocalSettings, RaySettings, SlurmSettings
from trainer.run.folder.summary import FAILED, RUNNING, Summary
from trainer.sweeps.ledger import ENDED, Job, unfinished
from trainer.sweeps.workers import Command, Worker, job_line, watch

_VISIBLE = "CUDA_VISIBLE_DEVICES"

# A job fails after this many processes in a row have died without progress on it.
_ATTEMPTS = 5


class Launcher:
    """Runs the jobs of a sweep. This base class runs them in this process."""

    name: ClassVar[str]
    n_jobs: int | None
    gpus_per_job: float | None = None

    @property
    def at_a_time(self) -> int:
        """The number of jobs that run at a time."""
        return self.n_jobs or 1

    @property
    def ranks(self) -> int:
        """The number of processes that train a job together, one per GPU."""
        return max(1, int(self.gpus_per_job or 1))

    def run(self, jobs: Sequence[Job], worker: Worker, *, until_one_ends: bool = False) -> None:
        """Run the unfinished jobs, and wait for jobs that other processes run.

        With `until_one_ends`, it may return as soon as one job has ended.

        Raises:
            KeyboardInterrupt: a signal stops the sweep. Running jobs are saved.
            UserError: the jobs cannot run.
        """
        worker.work(jobs)

    def pool(self, folder: Path, worker: Worker) -> "AbstractContextManager[Launcher]":
        """Return a context manager that yields a launcher for the sweep in a folder, and then ends its workers."""
        return nullcontext(self)

    def check(self, configs: Iterable[Config]) -> None:
        """Check that the jobs can run with this launcher, and on its number of GPUs."""
        if self.ranks == 1:
            return
        for config in configs:
            fit, given = config.fit, f"hydra.launcher.gpus_per_job={self.ranks}"
            if fit.gpus is not None:
                raise UserError(f"fit.gpus={fit.gpus} does not work with {given}. Remove fit.gpus.")
            if ":" in fit.device:
                raise UserError(f"fit.device={fit.device} is one GPU, but {given}. Set fit.device=auto.")
            check_ranks(replace(fit, gpus=self.ranks), config.aug.size)

    def require_gpus(self) -> None:
        """Check that this machine has the GPUs of a job."""
        if (self.gpus_per_job or 0) > (seen := torch.cuda.device_count()):
            raise UserError(
                f"hydra.launcher.gpus_per_job={self.gpus_per_job:g}: PyTorch sees {amount(seen, 'GPU')} here. "
                + (f"Use at most {seen}." if seen else "Remove it, or use a machine with GPUs.")
            )


@dataclass(frozen=True, kw_only=True)
class Local(LocalSettings, Launcher):
    """Runs jobs on this machine, one after another in this process, or several at a time in worker processes."""

    name = "local"

    def __post_init__(self) -> None:
        if not all(name.isdecimal() for name in self._gpus):
            raise UserError(f"hydra.launcher.gpus: {self.gpus!r} is not a list of numbers. Write it like '0,1'.")
        if self.gpus_per_job and self.gpus and len(self._gpus) % self.ranks:
            raise UserError(
                f"hydra.launcher.gpus={self.gpus}: {amount(len(self._gpus), 'GPU')} cannot be divided among jobs with "
                f"hydra.launcher.gpus_per_job={self.ranks}. List a multiple of {self.ranks}."
            )

    @property
    def at_a_time(self) -> int:
        """The number of jobs that the user asked for, or that the GPUs allow."""
        return self.n_jobs or len(self._gpus) // self.ranks or 1

    def pool(self, folder: Path, worker: Worker) -> AbstractContextManager[Launcher]:
        """Return worker processes if several jobs run at a time, or if a job needs several processes or chosen GPUs."""
        gpus = self._gpus
        if self.at_a_time == self.ranks == 1 and not gpus:
            return nullcontext(self)
        # The GPU numbers of the settings count only the GPUs that this process sees.
        if seen := _names_in(os.environ.get(_VISIBLE, "")):
            gpus = [seen[int(number)] for number in gpus if int(number) < len(seen)]
        groups = [",".join(gpus[first : first + self.ranks]) for first in range(0, len(gpus), self.ranks)]
        slots = []
        for index in range(self.at_a_time):
            environment = {_VISIBLE: groups[index % len(groups)]} if groups else {}
            slots.append(_Slot(Command.of(folder, worker, (), environment), folder / f"worker-{index}.log"))
        return WorkerPool(slots, worker)

    def check(self, configs: Iterable[Config]) -> None:
        """Check that the GPUs exist."""
        configs = [*configs]
        devices, gpus = {config.fit.device for config in configs}, self._gpus
        if devices != {"cpu"}:
            self.require_gpus()
        # With fit.device=auto, jobs would silently train on the CPU instead.
        if gpus and devices != {"cpu"} and max(map(int, gpus)) >= (seen := torch.cuda.device_count()):
            remedy = f"Use numbers below {seen}, or fit.device=cpu." if seen else "Remove hydra.launcher.gpus."
            raise UserError(f"hydra.launcher.gpus={self.gpus}: PyTorch sees {amount(seen, 'GPU')} here. {remedy}")
        super().check(configs)

    @property
    def _gpus(self) -> list[str]:
        if self.gpus is None and self.gpus_per_job:
            count = torch.cuda.device_count()
            return [str(number) for number in range(count - count % self.ranks)]
        return _names_in(self.gpus or "")


def _names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@dataclass
class _Slot:
    """A worker process that gets one job after another, and is replaced when it ends."""

    command: Command
    log: Path
    process: subprocess.Popen[bytes] | None = None  # None until the first job
    job: Job | None = None
    progress: int = 0  # the job's progress when the process got it
    deaths: int = 0  # number of processes in a row that died without progress on the job

    def give(self, job: Job) -> None:
        if self.process is None or self.process.poll() is not None:
            self.close()
            self.process = self.command.start(self.log)
        self.job, self.progress = job, job.progress
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the process has died, which `poll` notices
            self.process.stdin.write(job_line(job).encode())
            self.process.stdin.flush()

    def poll(self) -> bool:
        """Return whether the process can take a job.

        If the process has died, start another one for the same job. After too many deaths, mark the job as failed.
        """
        if self.job is None or self.job.status() in ENDED:
            self.job, self.deaths = None, 0
        elif self.process is not None and (code := self.process.poll()) is not None:
            made_progress = self.job.progress != self.progress
            self.deaths = 0 if code == 0 or made_progress else self.deaths + 1
            if self.deaths < _ATTEMPTS:
                self.give(self.job)
            else:
                error = f"{_ATTEMPTS} processes in a row died while running this job. See {shown(self.log)}"
                Summary(FAILED, self.job.folder, error=error).write()
                self.job, self.deaths = None, 0
        return self.job is None

    def close(self) -> None:
        """Give the process no more jobs, so that it ends."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()


class WorkerPool(Launcher, AbstractContextManager[Launcher]):
    """Worker processes on this machine. They end with the context, or when this process dies."""

    def __init__(self, slots: Sequence[_Slot], worker: Worker) -> None:
        self._slots, self._signals, self.n_jobs = slots, worker.signals, len(slots)
        self._seen: dict[str, str] = {}

    def run(self, jobs: Sequence[Job], worker: Worker, *, until_one_ends: bool = False) -> None:
        """Run the jobs. If a process dies, replace it and resume its job."""
        if not self._seen and unfinished(jobs):
            logs = list_some(str(shown(slot.log)) for slot in self._slots[: len(jobs)])
            worker.say(f"the jobs print to {logs}")
        for _ in watch(jobs, worker, self.at_a_time, self._seen):
            if until_one_ends and any(self._seen[job.id] in ENDED for job in jobs):
                return
            free = [slot for slot in self._slots if slot.poll()]
            given = {slot.job.id for slot in self._slots if slot.job is not None}
            waiting = [job for job in jobs if job.id not in given and self._seen[job.id] not in (RUNNING, *ENDED)]
            for slot, job in zip(free, waiting, strict=False):
                slot.give(job)

    def __exit__(self, kind: object, *error: object) -> None:
        """Wait until the processes end. After an error or a signal, they save their jobs and stop."""
        processes = [slot.process for slot in self._slots if slot.process is not None]
        for slot in self._slots:
            slot.close()
        for process in () if kind is None else processes:
            process.send_signal(signal.SIGTERM)
        try:
            while any(process.poll() is None for process in processes):
                time.sleep(0.02)  # unlike `wait`, a loop also notices a signal that arrived just before it
        except KeyboardInterrupt:
            self._signals.hold()
            self.__exit__(KeyboardInterrupt)  # the second signal ends the processes at once
            raise


class Cluster(Launcher):
    """Runs jobs in workers that another program starts, on hosts that share the sweep's folder."""

    logs: ClassVar[str] = ""  # the folder of the workers' logs in the sweep's folder. Empty without logs

    def run(self, jobs: Sequence[Job], worker: Worker, *, until_one_ends: bool = False) -> None:
        """Start the workers, and report on the jobs until all have ended."""
        if not (jobs := unfinished(jobs)):
            return
        folder = jobs[0].folder.parent
        command = Command.of(folder, worker, jobs, {})
        with self.started(command, min(self.at_a_time, len(jobs)), folder, worker) as ended:
            for _ in watch(jobs, worker, self.at_a_time):
                if ended() and unfinished(jobs):
                    logs = f" See their logs in {shown(folder / self.logs)}." if self.logs else ""
                    raise UserError(
                        f"hydra/launcher={self.name}: the workers ended before the jobs.{logs} Resume the sweep."
                    )

    def started(
        self, command: Command, count: int, folder: Path, worker: Worker
    ) -> AbstractContextManager[Callable[[], bool]]:
        """Start workers, and yield a function that returns whether all of them have ended."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Slurm(SlurmSettings, Cluster):
    """Runs jobs in workers that Slurm starts through submitit.

    After a preemption or at its time limit, a worker saves its job and is queued again. Ctrl-C does not stop workers.
    """

    name, logs = "slurm", "submitit"

    def check(self, configs: Iterable[Config]) -> None:
        """Check that submitit is installed, finds the cluster and accepts the options."""
        with TemporaryDirectory() as folder:
            self._executor(Path(folder))
        super().check(configs)

    @contextmanager
    def started(self, command: Command, count: int, folder: Path, worker: Worker) -> Iterator[Callable[[], bool]]:
        """Submit the workers. Wait for them at the end of the context."""
        executor = self._executor(folder / self.logs)
        with executor.batch():
            submitted = [executor.submit(command) for _ in range(count)]
        worker.say(f"submitted {amount(count, 'worker')}: {', '.join(str(one.job_id) for one in submitted)}")
        yield lambda: all(one.done() for one in submitted)
        for one in submitted:
            one.wait()

    def _executor(self, logs: Path) -> Any:
        """Return submitit's executor, which creates the log folder."""
        submitit = import_extra("hydra/launcher=slurm", "submitit", "slurm")
        options = dict(self.options or {})
        if self.gpus_per_job and not any("gpu" in name or "gres" in name for name in options):
            options["gpus_per_node"] = self.gpus_per_job
        if options.get("gpus_per_node", self.ranks) != self.ranks and self.gpus_per_job:
            raise UserError(
                f"hydra.launcher.options.gpus_per_node={options['gpus_per_node']} does not work with "
                f"hydra.launcher.gpus_per_job={self.ranks}. Remove one of them."
            )
        try:
            executor = submitit.AutoExecutor(folder=logs, cluster=self.cluster)
            executor.update_parameters(**options)
        except (RuntimeError, ValueError, TypeError, NameError, AssertionError) as error:
            raise UserError(f"hydra.launcher: {error}") from error
        return executor


@dataclass(frozen=True, kw_only=True)
class Ray(RaySettings, Cluster):
    """Runs jobs in workers that Ray starts, on this machine or on a cluster. Ctrl-C ends them."""

    name = "ray"

    def __post_init__(self) -> None:
        if self.gpus_per_job > 1 and self.gpus_per_job % 1:
            raise UserError(
                f"hydra.launcher.gpus_per_job={self.gpus_per_job:g}: only jobs that use less than one GPU can share a "
                "GPU. Use a whole number, or a number below 1."
            )

    def check(self, configs: Iterable[Config]) -> None:
        """Check that Ray is installed, and that it has the GPUs of a job if it runs on this machine."""
        import_extra("hydra/launcher=ray", "ray", "ray")
        if self.address is None:
            self.require_gpus()
        super().check(configs)

    @contextmanager
    def started(self, command: Command, count: int, folder: Path, worker: Worker) -> Iterator[Callable[[], bool]]:
        """Start the workers as tasks. Cancel them at the end of the context."""
        ray = import_extra("hydra/launcher=ray", "ray", "ray")
        ray.init(address=self.address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        run = ray.remote(num_cpus=self.cpus_per_job, num_gpus=self.gpus_per_job, max_retries=3)(Command.__call__)
        tasks = [run.remote(command) for _ in range(count)]

        def ended() -> bool:
            done, left = ray.wait(tasks, num_returns=count, timeout=0)
            ray.get(done)  # raises what a task raised
            return not left

        try:
            yield ended
        finally:
            for task in tasks:
                ray.cancel(task, recursive=True)
            ray.shutdown()


LAUNCHERS: Mapping[str, type[Launcher]] = {cls.name: cls for cls in (Local, Slurm, Ray)}


def parse_launcher(given: Mapping[str, Any]) -> Launcher:
    """Check Hydra's section `launcher`, and return its launcher."""
    target = str(given.get("_target_"))
    default = "local" if "basic_launcher" in target else target  # Hydra's own launcher has no kind
    kind = str(given.get("kind") or default)
    if kind not in LAUNCHERS:
        raise UserError(f"hydra/launcher: '{kind}' cannot run the jobs of a sweep.{suggest(kind, LAUNCHERS)}")
    rest = {str(name): value for name, value in given.items() if name not in ("kind", "_target_")}
    if isinstance(gpus := rest.get("gpus"), list | int):
        numbers = gpus if isinstance(gpus, list) else [gpus]
        rest["gpus"] = ",".join(map(str, numbers))
    return parse_settings(LAUNCHERS[kind], rest, "hydra.launcher")
