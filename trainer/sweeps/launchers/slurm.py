"""The Slurm launcher: workers that are submitted to a cluster."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from augment.support.errors import UserError
from augment.support.text import amount
from trainer.run.sweeping import SlurmSettings
from trainer.sweeps.launchers.cluster import Cluster
from trainer.sweeps.processes import Command


@dataclass(frozen=True, kw_only=True)
class Slurm(SlurmSettings, Cluster):
    """Workers that Slurm starts, through submitit; preempted, or at the time limit, they save and are queued again.

    Ctrl-C leaves them alone.
    """

    name, logs = "slurm", "submitit"

    @contextmanager
    def started(self, command: Command, count: int, folder: Path, console: Console) -> Iterator[Callable[[], bool]]:
        """Submit the workers, and wait for them at the end of the context."""
        submitit = self.import_package("submitit")
        try:
            executor = submitit.AutoExecutor(folder=folder / self.logs, cluster=self.cluster)
            executor.update_parameters(**(self.options or {}))
        except (RuntimeError, ValueError, TypeError, NameError, AssertionError) as error:
            raise UserError(f"hydra.launcher: {error}") from error
        with executor.batch():
            workers = [executor.submit(command) for _ in range(count)]
        names = ", ".join(str(worker.job_id) for worker in workers)
        console.print(f"submitted {amount(count, 'worker')}: {names}", highlight=False, markup=False)
        yield lambda: all(worker.done() for worker in workers)
        for worker in workers:
            worker.wait()
