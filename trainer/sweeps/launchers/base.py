"""What a launcher does: it runs the jobs of a sweep, several at a time."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import ClassVar

from trainer.run.config import Config
from trainer.sweeps.ledger import Job, unfinished
from trainer.sweeps.work import Worker


class Launcher:
    """Runs jobs; `hydra/launcher=NAME` chooses one, and its settings are `hydra.launcher.*`."""

    name: ClassVar[str]

    @property
    def at_a_time(self) -> int:
        """Number of jobs that run at a time."""
        raise NotImplementedError

    def run(self, jobs: Sequence[Job], worker: Worker, *, until_one_ends: bool = False) -> None:
        """Run the jobs that have not ended, and wait for those that other processes run.

        Args:
            jobs: the jobs, of one sweep.
            worker: what a worker in this process needs.
            until_one_ends: whether it may return as soon as one of them has ended.

        Raises:
            KeyboardInterrupt: a signal asked to stop; running jobs are saved.
            UserError: the jobs cannot be run.
        """
        if left := unfinished(jobs):
            self.launch(left, worker, until_one_ends=until_one_ends)

    def launch(self, jobs: Sequence[Job], worker: Worker, *, until_one_ends: bool = False) -> None:
        """Run jobs of which none has ended; see `run`."""
        raise NotImplementedError

    def pool(self, folder: Path, worker: Worker) -> "AbstractContextManager[Launcher]":
        """Return a context of what runs the jobs of the sweep in a folder; its processes live until its end."""
        return nullcontext(self)

    def check(self, configs: Iterable[Config]) -> None:
        """Check that jobs can run where they would be run.

        Raises:
            UserError: one cannot.
        """
