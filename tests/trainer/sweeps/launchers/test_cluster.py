"""What the launchers of clusters share: following the jobs of workers that another program starts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from jobs import FakeRuns

from augment.support.errors import UserError
from trainer.sweeps.launchers import Cluster
from trainer.sweeps.ledger import Job, unfinished
from trainer.sweeps.work import Command, Worker


@dataclass(frozen=True)
class Inline(Cluster):
    """Works in this process, or not at all."""

    work: Callable[[], None]
    n_jobs: int = 8
    name, logs = "inline", "logs"

    @contextmanager
    def started(self, command: Command, count: int, folder: Path, worker: Worker) -> Iterator[Callable[[], bool]]:
        assert count == 4, "no more workers than jobs"
        self.work()
        yield lambda: True


def test_jobs_are_followed_until_all_have_ended(jobs: list[Job]) -> None:
    Inline(lambda: FakeRuns().worker().work(jobs)).run(jobs, FakeRuns().worker())
    assert not unfinished(jobs)


def test_workers_that_end_before_the_jobs_are_an_error(jobs: list[Job], tmp_path: Path) -> None:
    message = f"hydra/launcher=inline: the workers ended before the jobs did; see their logs in {tmp_path}/logs."
    with pytest.raises(UserError) as refused:
        Inline(lambda: None).run(jobs, FakeRuns().worker())
    assert str(refused.value) == message
