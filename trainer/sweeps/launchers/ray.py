"""The Ray launcher: workers on this machine, or on a Ray cluster."""

from collections.abc import Sequence
from dataclasses import dataclass

from augment.support.errors import UserError
from trainer.run.sweeping import RaySettings
from trainer.sweeps.launchers.base import Launcher, import_extra
from trainer.sweeps.ledger import Job, unfinished
from trainer.sweeps.processes import Command, watch
from trainer.sweeps.work import Worker


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
        ray = import_extra("ray", self.name)
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
