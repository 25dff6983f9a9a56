"""What the launchers of clusters share: they start some workers through another program, and follow their jobs."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from augment.support.errors import UserError, missing_package
from augment.support.files import shown
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

    def launch(self, jobs: Sequence[Job], worker: Worker) -> None:
        """Start the workers, and follow the jobs until all have ended.

        Raises:
            KeyboardInterrupt: a signal asked to stop.
            UserError: the program is not installed or refuses its settings, or the workers ended before the jobs did.
        """
        folder = jobs[0].folder.parent
        command = Command.of(folder, worker, (job.id for job in jobs))
        with self.started(command, min(self.n_jobs, len(jobs)), folder, worker) as ended:
            for _ in watch(jobs, worker):
                if ended() and unfinished(jobs):
                    logs = f"; see their logs in {shown(folder / self.logs)}" if self.logs else ""
                    raise UserError(f"hydra/launcher={self.name}: the workers ended before the jobs did{logs}.")

    def started(
        self, command: Command, count: int, folder: Path, worker: Worker
    ) -> AbstractContextManager[Callable[[], bool]]:
        """Start workers, and return a context of a function that says whether all of them have ended.

        Args:
            command: the command of a worker.
            count: number of workers.
            folder: the folder of the sweep.
            worker: what a worker in this process would need.
        """
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
