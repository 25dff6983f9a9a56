"""The Slurm launcher, with submitit's local executor."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jobs import FakeRuns
from rich.console import Console

from trainer.sweeps.launchers import Slurm, parse_launcher
from trainer.sweeps.ledger import Job, unfinished
from trainer.sweeps.work import Command


@pytest.mark.long
def test_submitit_runs_workers_on_this_machine(jobs: list[Job], tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    launcher = parse_launcher({"kind": "slurm", "cluster": "local", "n_jobs": 2, "options": {"timeout_min": 5}})
    launcher.run(jobs, FakeRuns().worker())
    assert not unfinished(jobs)
    assert list((tmp_path / "submitit").iterdir())


def test_workers_are_submitted_as_one_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a cluster would show the difference."""
    submitit = pytest.importorskip("submitit")
    arrays: list[list[object]] = []

    class Executor:
        def __init__(self, **_: Any) -> None: ...

        def update_parameters(self, **_: Any) -> None: ...

        @contextmanager
        def batch(self) -> Iterator[None]:
            arrays.append([])
            yield

        def submit(self, command: object) -> SimpleNamespace:
            arrays[-1].append(command)
            return SimpleNamespace(job_id=f"7_{len(arrays[-1])}", done=lambda: True, wait=lambda: None)

    monkeypatch.setattr(submitit, "AutoExecutor", Executor)
    command, said = Command(("worker",), {}, "."), StringIO()
    launcher = parse_launcher({"kind": "slurm", "n_jobs": 2})
    assert isinstance(launcher, Slurm)
    with launcher.started(command, 2, tmp_path, replace(FakeRuns().worker(), console=Console(file=said))) as ended:
        assert ended()
    assert arrays == [[command, command]]
    assert said.getvalue() == "submitted 2 workers: 7_1, 7_2\n"
