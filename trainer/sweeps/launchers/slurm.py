"""The Slurm launcher: workers that are submitted to a cluster."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from augment.support.errors import UserError
from augment.support.text import amount
from trainer.run.config import Config
from trainer.run.sweeping import SlurmSettings
from trainer.sweeps.launchers.cluster import Cluster
from trainer.sweeps.processes import Command
from trainer.sweeps.work import Worker


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
        names = ", ".join(str(one.job_id) for one in submitted)
        worker.say(f"submitted {amount(count, 'worker')}: {names}")
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
