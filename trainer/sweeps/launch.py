"""Launchers: how many jobs of a sweep run at a time, and where."""

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from augment.params import parse_settings
from augment.support.errors import UserError, suggest
from augment.support.files import shown
from augment.support.signals import StopSignals
from augment.support.text import amount
from trainer.run.config import Config
from trainer.run.sweeping import LocalSettings, RaySettings, SlurmSettings
from trainer.sweeps.ledger import Job, unfinished
from trainer.sweeps.processes import Command, watch
from trainer.sweeps.work import Worker

# Worker processes that may end without a word before the sweep gives up, in addition to one for each.
_RESTARTS = 5


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """Runs jobs; `hydra/launcher=NAME` chooses one, and its settings are `hydra.launcher.*`."""

    name: ClassVar[str]

    @property
    def at_a_time(self) -> int:
        """Number of jobs that run at a time."""
        raise NotImplementedError

    def run(self, jobs: Sequence[Job], worker: Worker) -> None:
        """Run the jobs that have not ended, and wait for those that other processes run.

        Args:
            jobs: the jobs, of one sweep.
            worker: what a worker in this process needs.

        Raises:
            KeyboardInterrupt: a signal asked to stop; running jobs are saved.
            UserError: the jobs cannot be run.
        """
        if left := unfinished(jobs):
            self.launch(left, worker)

    def launch(self, jobs: Sequence[Job], worker: Worker) -> None:
        """Run jobs of which none has ended; see `run`."""
        raise NotImplementedError

    def check(self, configs: Iterable[Config]) -> None:
        """Check that jobs can run where they would be run.

        Raises:
            UserError: one cannot.
        """


@dataclass(frozen=True, kw_only=True)
class Local(LocalSettings, Launcher):
    """Jobs on this machine: one after another in this process, or several at a time in processes of their own."""

    name = "local"

    @property
    def at_a_time(self) -> int:
        """Number of jobs that run at a time."""
        return self.n_jobs or len(self._gpus()) or 1

    def launch(self, jobs: Sequence[Job], worker: Worker) -> None:
        """Run the jobs; a worker process that dies is replaced, and its job resumed."""
        gpus = self._gpus()
        at_a_time = min(self.at_a_time, len(jobs))
        if at_a_time == 1 and not gpus:
            worker.work(jobs)
            return
        folder = jobs[0].folder.parent
        command = Command.of(jobs, worker)
        commands = [
            replace(
                command,
                log=str(folder / f"worker-{index}.log"),
                environment=command.environment | ({"CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)]} if gpus else {}),
            )
            for index in range(at_a_time)
        ]
        processes = {one: one.start() for one in commands}
        restarts = 0
        try:
            for _ in watch(jobs, worker.console, worker.signals):
                for one, process in processes.items():
                    # A worker ends well only when there is nothing left to do.
                    if process.poll() is not None and (process.returncode != 0 or unfinished(jobs)):
                        restarts += 1
                        if restarts > _RESTARTS + at_a_time:
                            raise UserError(f"{shown(Path(one.log))}: the worker processes keep dying; see this log.")
                        processes[one] = one.start()
        finally:
            with _undisturbed(worker.signals):
                for process in processes.values():
                    if process.poll() is None:
                        process.send_signal(signal.SIGTERM)  # save the job and end
                for process in processes.values():
                    process.wait()

    def check(self, configs: Iterable[Config]) -> None:
        """Check that no job names its GPU by a number if each worker sees a single one."""
        for device in {config.fit.device for config in configs}:
            if ":" in device and device != "cuda:0" and self._gpus():
                raise UserError(
                    f"fit.device={device}: with hydra.launcher.gpus={self.gpus} each job sees only the GPU that it is "
                    "given. Allowed: fit.device=cuda, or no hydra.launcher.gpus."
                )

    def _gpus(self) -> list[str]:
        names = [name.strip() for name in (self.gpus or "").split(",") if name.strip()]
        if not all(name.isdecimal() for name in names):
            raise UserError(f"hydra.launcher.gpus: {self.gpus!r} is not allowed. Allowed: numbers, such as '0,1'.")
        return names


@dataclass(frozen=True, kw_only=True)
class Slurm(SlurmSettings, Launcher):
    """Workers that Slurm starts, through submitit; preempted, or at the time limit, they save and are queued again."""

    name = "slurm"

    @property
    def at_a_time(self) -> int:
        """Number of jobs that run at a time."""
        return self.n_jobs

    def launch(self, jobs: Sequence[Job], worker: Worker) -> None:
        """Submit the workers and follow them; Ctrl-C leaves them alone."""
        submitit = _extra("submitit", self.name)
        folder = jobs[0].folder.parent / "submitit"
        try:
            executor = submitit.AutoExecutor(folder=folder, cluster=self.cluster)
            executor.update_parameters(**(self.options or {}))
        except (RuntimeError, ValueError, TypeError, NameError, AssertionError) as error:
            raise UserError(f"hydra.launcher: {error}") from error
        command = Command.of(jobs, worker)
        with executor.batch():
            started = [executor.submit(command) for _ in range(min(self.n_jobs, len(jobs)))]
        names = ", ".join(str(one.job_id) for one in started)
        worker.console.print(f"submitted {amount(len(started), 'worker')}: {names}", highlight=False, markup=False)
        for _ in watch(jobs, worker.console, worker.signals):
            if all(one.done() for one in started) and unfinished(jobs):
                raise UserError(f"{shown(folder)}: the workers ended before the jobs did; see their logs there.")
        for one in started:
            one.wait()


@dataclass(frozen=True, kw_only=True)
class Ray(RaySettings, Launcher):
    """Workers that Ray starts, on this machine or on a cluster that shares the folder."""

    name = "ray"

    @property
    def at_a_time(self) -> int:
        """Number of jobs that run at a time."""
        return self.n_jobs

    def launch(self, jobs: Sequence[Job], worker: Worker) -> None:
        """Start the workers and follow them; Ctrl-C ends them."""
        ray = _extra("ray", self.name)
        begun = not ray.is_initialized()
        if begun:
            ray.init(address=self.address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        try:
            run = ray.remote(num_cpus=self.cpus_per_job, num_gpus=self.gpus_per_job, max_retries=3)(Command.__call__)
            left = [run.remote(Command.of(jobs, worker)) for _ in range(min(self.n_jobs, len(jobs)))]
            try:
                for _ in watch(jobs, worker.console, worker.signals):
                    done, left = ray.wait(left, num_returns=len(left), timeout=0) if left else ([], [])
                    ray.get(done)
                    if not left and unfinished(jobs):
                        raise UserError("hydra/launcher=ray: the workers ended before the jobs did.")
            finally:
                for one in left:
                    ray.cancel(one, recursive=True)
        finally:
            if begun:
                ray.shutdown()


LAUNCHERS: Mapping[str, type[Launcher]] = {cls.name: cls for cls in (Local, Slurm, Ray)}


def parse_launcher(given: Mapping[str, Any]) -> Launcher:
    """Check Hydra's section `launcher` and return it typed.

    Raises:
        UserError: an unknown launcher or setting, or a value that is not allowed.
    """
    kind = str(given.get("kind") or ("local" if "basic_launcher" in str(given.get("_target_")) else "plugin"))
    if kind not in LAUNCHERS:
        raise UserError(f"hydra/launcher: '{kind}' cannot run the jobs of a sweep.{suggest(kind, LAUNCHERS)}")
    rest = {str(name): value for name, value in given.items() if name not in ("kind", "_target_")}
    if isinstance(gpus := rest.get("gpus"), list | int):
        rest["gpus"] = ",".join(map(str, gpus if isinstance(gpus, list) else [gpus]))
    launcher = parse_settings(LAUNCHERS[kind], rest, "hydra.launcher")
    assert launcher.at_a_time  # checks gpus
    return launcher


@contextmanager
def _undisturbed(signals: StopSignals) -> Iterator[None]:
    """Wait for workers even if a signal asks to stop again; they end at their own second signal only."""
    try:
        yield
    except KeyboardInterrupt:
        signals.hold()
        raise


def _extra(module: str, launcher: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise UserError(
            f"hydra/launcher={launcher}: needs the package {module}. Allowed: pip install 'dali-trainer[{launcher}]'."
        ) from error
