"""The launchers of clusters: they start some workers through another program, and follow their jobs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from augment.support.errors import UserError, missing_package
from augment.support.files import shown
from augment.support.text import amount
from trainer.run.config import Config
from trainer.run.sweeping import RaySettings, SlurmSettings
from trainer.sweeps.launchers.base import Launcher
from trainer.sweeps.ledger import Job, unfinished
from trainer.sweeps.processes import Command, watch
from trainer.sweeps.work import Worker


class Cluster(Launcher):
    """Workers that another program starts, on hosts that share the folder of the sweep.

    Attributes:
        n_jobs: number of workers, each of which runs a job at a time.
        logs: where in the folder of the sweep the program writes logs; empty: nowhere.
    """

    n_jobs: int
    logs: ClassVar[str] = ""

    @property
    def at_a_time(self) -> int:
        """Number of jobs that run at a time."""
        return self.n_jobs

    def launch(self, jobs: Sequence[Job], worker: Worker, *, until_one_ends: bool = False) -> None:
        """Start the workers, and follow the jobs until all have ended.

        Raises:
            KeyboardInterrupt: a signal asked to stop.
            UserError: the program is not installed or refuses its settings, or the workers ended before the jobs did.
        """
        folder = jobs[0].folder.parent
        command = Command.of(folder, worker, (job.id for job in jobs))
        with self.started(command, min(self.n_jobs, len(jobs)), folder, worker) as ended:
            for _ in watch(jobs, worker, self.n_jobs):
                if ended() and unfinished(jobs):
                    logs = f"; see their logs in {shown(folder / self.logs)}" if self.logs else ""
                    raise UserError(f"hydra/launcher={self.name}: the workers ended before the jobs did{logs}.")

    def started(
        self, command: Command, count: int, folder: Path, worker: Worker
    ) -> AbstractContextManager[Callable[[], bool]]:
        """Start workers of the sweep in a folder; in the context, a function says whether all of them have ended."""
        raise NotImplementedError

    def import_package(self, package: str) -> Any:
        """Import a package that the extra of the launcher's name installs.

        Raises:
            UserError: it is not installed.
        """
        try:
            return import_module(package)
        except ImportError as error:
            raise missing_package(f"hydra/launcher={self.name}", package, self.name) from error


@dataclass(frozen=True, kw_only=True)
class Slurm(SlurmSettings, Cluster):
    """Workers that Slurm starts, through submitit; preempted, or at the time limit, they save and are queued again.

    Ctrl-C leaves them alone.
    """

    name, logs = "slurm", "submitit"

    def check(self, configs: Iterable[Config]) -> None:
        """Check that submitit is installed, finds the cluster and takes the options."""
        with TemporaryDirectory() as folder:
            self._executor(Path(folder))

    @contextmanager
    def started(self, command: Command, count: int, folder: Path, worker: Worker) -> Iterator[Callable[[], bool]]:
        """Submit the workers, and wait for them at the end of the context."""
        executor = self._executor(folder / self.logs)
        with executor.batch():
            submitted = [executor.submit(command) for _ in range(count)]
        worker.say(f"submitted {amount(count, 'worker')}: {', '.join(str(one.job_id) for one in submitted)}")
        yield lambda: all(one.done() for one in submitted)
        for one in submitted:
            one.wait()

    def _executor(self, logs: Path) -> Any:
        """Return what submits workers, which makes the folder of their logs."""
        submitit = self.import_package("submitit")
        try:
            executor = submitit.AutoExecutor(folder=logs, cluster=self.cluster)
            executor.update_parameters(**(self.options or {}))
        except (RuntimeError, ValueError, TypeError, NameError, AssertionError) as error:
            raise UserError(f"hydra.launcher: {error}") from error
        return executor


@dataclass(frozen=True, kw_only=True)
class Ray(RaySettings, Cluster):
    """Workers that Ray starts, on this machine or on a cluster; Ctrl-C ends them."""

    name = "ray"

    def check(self, configs: Iterable[Config]) -> None:
        """Check that Ray is installed."""
        self.import_package("ray")

    @contextmanager
    def started(self, command: Command, count: int, folder: Path, worker: Worker) -> Iterator[Callable[[], bool]]:
        """Start the workers as tasks, and cancel them at the end of the context."""
        ray = self.import_package("ray")
        begun = not ray.is_initialized()
        if begun:
            ray.init(address=self.address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        try:
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
        finally:
            if begun:
                ray.shutdown()
