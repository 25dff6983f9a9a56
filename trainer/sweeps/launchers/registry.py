"""Launchers by name, and those for clusters: how many jobs of a sweep run at a time, and where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from augment.params import parse_settings
from augment.support.errors import UserError, suggest
from augment.support.files import shown
from augment.support.text import amount
from trainer.run.sweeping import RaySettings, SlurmSettings
from trainer.sweeps.launchers.base import Launcher
from trainer.sweeps.launchers.local import Local
from trainer.sweeps.ledger import Job, unfinished
from trainer.sweeps.processes import Command, watch
from trainer.sweeps.work import Worker


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
        command = Command.of(folder.parent, worker, jobs)
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
            command = Command.of(jobs[0].folder.parent, worker, jobs)
            left = [run.remote(command) for _ in range(min(self.n_jobs, len(jobs)))]
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


def _extra(module: str, launcher: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise UserError(
            f"hydra/launcher={launcher}: needs the package {module}. Allowed: pip install 'dali-trainer[{launcher}]'."
        ) from error
