"""The launchers of clusters, with Slurm and Ray on this machine; and settings of launchers that are refused."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jobs import FakeRuns
from rich.console import Console
from workers import where

from augment.cli.overrides import normalize
from augment.support.errors import UserError
from augment.support.signals import StopSignals
from trainer.sweeps.launchers import LAUNCHERS, Cluster, Slurm, parse_launcher
from trainer.sweeps.ledger import Job, unfinished
from trainer.sweeps.start import Request, sweep
from trainer.sweeps.work import Command, Worker


def start(*tokens: str) -> None:
    """Start a sweep in the folder a."""
    sweep(Request.of(normalize(["seed=0,1", "hydra.sweep.dir=a", *tokens])), StopSignals())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "locl"}, "hydra/launcher: 'locl' cannot run the jobs of a sweep. Did you mean 'local'?"),
        ({"_target_": "hydra_plugins.joblib"}, "hydra/launcher: 'plugin' cannot run the jobs of a sweep."),
        ({"kind": "local", "n_job": 2}, "hydra.launcher.n_job: unknown key. Did you mean 'n_jobs'?"),
        ({"kind": "local", "n_jobs": 0}, "hydra.launcher.n_jobs: 0 is not allowed."),
        ({"kind": "local", "gpus": "0,one"}, "hydra.launcher.gpus: '0,one' is not allowed. Allowed: numbers"),
        ({"kind": "slurm", "cluster": "slrm"}, "hydra.launcher"),
    ],
)
def test_mistakes(given: dict[str, Any], message: str, jobs: list[Job]) -> None:
    with pytest.raises(UserError) as refused:
        parse_launcher(given).run(jobs, FakeRuns().worker())
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("gpus", ["0,1", [0, 1], 0, None])
def test_gpus_can_be_given_in_any_way(gpus: object) -> None:
    launcher = parse_launcher({"kind": "local", "gpus": gpus})
    assert launcher.at_a_time == {None: 1, 0: 1}.get(gpus if not isinstance(gpus, list) else "many", 2)  # type: ignore[call-overload]


@pytest.mark.usefixtures("sample_drawn")
@pytest.mark.parametrize(("name", "module"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_missing_extra_is_named(
    name: str, module: str, jobs: list[Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    message = rf"needs the package {module}\. Allowed: pip install 'dali-trainer\[{name}\]'"
    with pytest.raises(UserError, match=message):
        LAUNCHERS[name]().run(jobs, FakeRuns().worker())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        start(f"hydra/launcher={name}")
    assert not Path("a").exists()


@pytest.mark.usefixtures("sample_drawn")
def test_options_that_slurm_does_not_know_are_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^hydra\.launcher: Unknown argument 'partiton'"):
        start("hydra/launcher=slurm", "hydra.launcher.options.slurm_partiton=gpu")
    assert not Path("a").exists()


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


@pytest.mark.long
def test_ray_runs_workers_on_this_machine(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    launcher = parse_launcher({"kind": "ray", "n_jobs": 2, "cpus_per_job": 0.5})
    launcher.run(jobs, FakeRuns().worker())
    assert not unfinished(jobs)
    assert len({process for process, _ in where(jobs)}) <= 2
    assert not ray.is_initialized()
