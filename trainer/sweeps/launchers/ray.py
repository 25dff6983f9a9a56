"""The Ray launcher: workers on this machine, or on a Ray cluster."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainer.run.config import Config
from trainer.run.sweeping import RaySettings
from trainer.sweeps.launchers.cluster import Cluster
from trainer.sweeps.processes import Command
from trainer.sweeps.work import Worker


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
