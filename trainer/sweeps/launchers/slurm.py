"""The Slurm launcher: workers that are submitted to a cluster."""

from collections.abc import Sequence
from dataclasses import dataclass

from augment.support.errors import UserError
from augment.support.files import shown
from augment.support.text import amount
from trainer.run.sweeping import SlurmSettings
from trainer.sweeps.launchers.base import Launcher, import_extra
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
        submitit = import_extra("submitit", self.name)
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
