"""The Slurm launcher, with submitit's local executor."""

from pathlib import Path

import pytest
from jobs import FakeRuns

from trainer.sweeps.launchers.registry import parse_launcher
from trainer.sweeps.ledger import Job, unfinished


@pytest.mark.long
def test_submitit_runs_workers_on_this_machine(jobs: list[Job], tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    launcher = parse_launcher({"kind": "slurm", "cluster": "local", "n_jobs": 2, "options": {"timeout_min": 5}})
    launcher.run(jobs, FakeRuns().worker())
    assert not unfinished(jobs)
    assert list((tmp_path / "submitit").iterdir())
