"""The Ray launcher, with a cluster on this machine."""

import pytest
from jobs import FakeRuns
from workers import where

from trainer.sweeps.launchers import parse_launcher
from trainer.sweeps.ledger import Job, unfinished


@pytest.mark.long
def test_ray_runs_workers_on_this_machine(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    launcher = parse_launcher({"kind": "ray", "n_jobs": 2, "cpus_per_job": 0.5})
    launcher.run(jobs, FakeRuns().worker())
    assert not unfinished(jobs)
    assert len({process for process, _ in where(jobs)}) <= 2
    assert not ray.is_initialized()
