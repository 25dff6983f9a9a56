"""Settings of launchers: what is refused, and which packages are missing."""

import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import FakeRuns

from augment.cli.overrides import normalize
from augment.support.errors import UserError
from augment.support.signals import StopSignals
from trainer.sweeps.launchers import LAUNCHERS, parse_launcher
from trainer.sweeps.ledger import Job
from trainer.sweeps.start import Request, sweep


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


def test_options_that_slurm_does_not_know_are_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^hydra\.launcher: Unknown argument 'partiton'"):
        start("hydra/launcher=slurm", "hydra.launcher.options.slurm_partiton=gpu")
    assert not Path("a").exists()
