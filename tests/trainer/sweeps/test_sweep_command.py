"""The command line of sweeps: plan, run, extend, resume, retry, show; with runs that end at once."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import FakeRuns, runs
from omegaconf import OmegaConf

from augment.support.errors import UserError
from trainer.cli.main import main
from trainer.run.folder.locks import reserve
from trainer.sweeps.ledger import Job, read_ledger

__all__ = ["runs"]

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(
    runs: FakeRuns,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sample_drawn: None,
) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        try:
            code = main([*arguments])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call


def ledger() -> list[Job]:
    return read_ledger(Path("S"))


def ran(runs: FakeRuns) -> list[str]:
    titles = {job.id: job.title for job in ledger()}
    return [titles[name] for name, _ in runs.runs]


def test_a_sweep_runs_each_job_once_however_often_it_is_asked(call: Call, runs: FakeRuns) -> None:
    command = ("-m", "+aug=imagenette", "aug.train.rotate.p=0,0.2", "seed=0,1,1", "hydra.sweep.dir=S")
    code, text = call(*command)
    assert code == 0
    assert "2 jobs left out, because other jobs have the same settings" in text
    assert ran(runs) == [f"aug.train.rotate.p={p} seed={seed}" for p in (0, 0.2) for seed in (0, 1)]
    assert " (4 of 4): aug.train.rotate.p=0.2 seed=1\n" in text
    code, text = call(*command)
    assert (code, len(runs.runs)) == (0, 4)
    assert "4 jobs, 4 of them already done" in text
    call("-m", "+aug=imagenette", "aug.train.rotate.p=0.2,0.5", "seed=1,2", "hydra.sweep.dir=S")
    assert ran(runs)[4:] == [
        "aug.train.rotate.p=0.2 seed=2", "aug.train.rotate.p=0.5 seed=1", "aug.train.rotate.p=0.5 seed=2",
    ]  # fmt: skip
    assert len(json.loads(Path("S/sweep.json").read_text())["jobs"]) == 7


@pytest.mark.parametrize("kind", ["basic", "optuna"])
def test_a_configuration_can_say_what_varies(call: Call, runs: FakeRuns, kind: str) -> None:
    params = {"model": "cnn,xresnet18", "fit.lr": "0.1,0.2"}
    settings = {"n_trials": 2, "sampler": "random", "finalists": 0} if kind == "optuna" else {}
    defaults = ["config", *([{"override hydra/sweeper": "optuna"}] if kind == "optuna" else []), "_self_"]
    Path("conf").mkdir()
    own = {"fit": {"epochs": 7}, "hydra": {"sweeper": settings | {"params": params}}}
    OmegaConf.save({"defaults": defaults, **own}, "conf/mine.yaml")
    epochs = []
    runs.score = lambda config: epochs.append(config["fit"]["epochs"]) or 0.5
    code, text = call("-m", "--config-dir", "conf", "--config-name", "mine", "fit.lr=0.3", "hydra.sweep.dir=S")
    assert code == 0, text
    assert {*ran(runs)} <= {"model=cnn", "model=xresnet18"}
    assert {*epochs} == {7}


def test_a_failed_job_waits_for_retry(call: Call, runs: FakeRuns) -> None:
    runs.fail = lambda config: ValueError("no luck") if config["seed"] == 1 else None
    code, text = call("-m", "seed=0,1,2", "hydra.sweep.dir=S")
    assert code == 1
    assert f"job {ledger()[1].id} failed: ValueError: no luck" in text
    assert "1 job failed. Rerun failed jobs with: python -m trainer sweep retry S" in text
    assert call("sweep", "resume", "S")[0] == 1
    assert len(runs.runs) == 3
    runs.fail = lambda config: None
    assert call("sweep", "retry", "S")[0] == 0
    assert ran(runs)[3:] == ["seed=1"]


@pytest.mark.parametrize("action", ["resume", "work", "retry"])
def test_where_no_job_can_run_none_is_begun(
    call: Call, runs: FakeRuns, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """Such as in another folder, where the path of the data leads nowhere: all of them would fail."""
    runs.fail = lambda config: KeyboardInterrupt("stopped") if len(runs.runs) == 2 else ValueError("no luck")
    call("-m", "seed=0,1,2", "hydra.sweep.dir=S")
    before = [job.status() for job in ledger()]

    def check(config: object) -> None:
        raise UserError("data.root=photos: there is no such folder.")

    monkeypatch.setattr("trainer.run.config.checks.check_config", check)
    assert call("sweep", action, "S") == (2, "error: data.root=photos: there is no such folder.\n")
    assert ([job.status() for job in ledger()], len(runs.runs)) == (before, 2)


def test_a_search_of_an_experiment_is_run_and_resumed_as_one(call: Call, runs: FakeRuns) -> None:
    Path("conf/experiment").mkdir(parents=True)
    Path("conf/experiment/mine.yaml").write_text(
        "# @package _global_\n# Mine.\ndefaults:\n  - override /hydra/sweeper: optuna\n"
        "hydra:\n  sweeper:\n    finalists: 0\n    params:\n      fit.lr: interval(0.01,0.1)\n"
    )
    runs.fail = lambda config: KeyboardInterrupt("stopped") if len(runs.runs) == 2 else None
    assert call("-m", "+experiment=mine", "hydra.sweeper.n_trials=3", "hydra.sweep.dir=S")[0] == 130
    code, text = call("sweep", "resume", "S", "hydra.sweeper.n_trials=4")
    assert code == 0
    assert "4 trials, 4 finished, 0 pruned, 0 failed." in text
    assert len({name for name, _ in runs.runs}) == 4
    # A search that is stopped while it runs its new trials is resumed with as many.
    assert [line for line in Path("S/sweep.yaml").read_text().splitlines() if "n_trials" in line][1:] == [
        "  n_trials: 4"
    ]


def test_failed_trials_of_a_search_count(call: Call, runs: FakeRuns) -> None:
    runs.fail = lambda config: ValueError("no luck") if len(runs.runs) in (2, 3) else None
    search = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hydra.sweeper.finalists=0", "hydra.sweep.dir=S")
    code, text = call("-m", *search, "fit.lr=interval(0.01,0.1)")
    assert code == 1
    assert "3 trials, 1 finished, 0 pruned, 2 failed." in text
    assert "2 jobs failed. Add trials with: python -m trainer sweep resume S hydra.sweeper.n_trials=N" in text
    code, text = call("sweep", "retry", "S")
    assert code == 2
    assert "error: sweep retry: S is a search, which does not rerun trials. To add trials: python -m trainer" in text
    assert "5 trials, 3 finished, 0 pruned, 2 failed." in call("sweep", "resume", "S", "hydra.sweeper.n_trials=5")[1]


def test_a_continued_search_may_leave_jobs_that_it_no_longer_needs(call: Call, runs: FakeRuns) -> None:
    """The finalists of before are still to be run, but better trials came."""
    settings = ("n_trials=2", "finalists=1", "seeds=2", "confirm=2")
    search = ("hydra/sweeper=optuna", *(f"hydra.sweeper.{setting}" for setting in settings), "hydra.sweep.dir=S")
    runs.score = lambda config: 0.5 + len(runs.runs) / 100
    runs.fail = lambda config: KeyboardInterrupt("stopped") if len(runs.runs) == 3 else None
    assert call("-m", *search, "fit.lr=interval(0.01,0.1)")[0] == 130
    code, text = call("sweep", "resume", "S", "hydra.sweeper.n_trials=4")
    assert (code, "4 trials, 4 finished" in text) == (0, True), text
    assert {"finished", "planned"} <= {job.status() for job in ledger()}


def test_a_sweep_starts_from_a_run(call: Call, runs: FakeRuns, finished_run: Path) -> None:
    """Each of its jobs resumes the run; to resume the sweep, that run has to be trusted."""
    rates: list[tuple[float, str]] = []
    runs.score = lambda config: rates.append((config["fit"]["lr"], config["fit"]["resume"])) or 0.5
    runs.fail = lambda config: KeyboardInterrupt("stopped") if len(runs.runs) == 2 else None
    assert call("-m", f"fit.resume={finished_run}", "fit.lr=0.1,0.2", "hydra.sweep.dir=S")[0] == 130
    assert rates == [(0.1, str(finished_run))]
    text = call("sweep", "resume", "S")[1]
    assert "fit.resume" in text
    assert text.endswith(" Add --trust if you trust the folder.\n")  # the command takes no settings of runs
    assert call("sweep", "resume", "S", "--trust")[0] == 0
    assert [rate for rate, _ in rates] == [0.1, 0.2]


def test_the_tables_are_shown(call: Call) -> None:
    call("-m", "seed=0,1", "hydra.sweep.dir=S")
    code, text = call("sweep", "show", "S")
    assert code == 0
    assert "2 jobs" in text
    assert call("sweep")[0] == 2
    (ledger()[0].folder / "job.json").write_text('{"id')  # the others are shown
    assert "2 jobs" in call("sweep", "show", "S")[1]
    assert "job.json is not a valid sweep job (" in call("sweep", "resume", "S")[1]


def test_a_finished_search_of_somebody_else_is_shown(call: Call, runs: FakeRuns) -> None:
    """Nothing is written, and a pruned trial is no failure."""
    runs.stopped = lambda config: "pruned after 1 of 9 epochs" if len(runs.runs) == 2 else ""
    settings = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hydra.sweeper.finalists=0")
    call("-m", *settings, "fit.lr=interval(0.01,0.1)", "hydra.sweep.dir=S")
    code, text = call("sweep", "show", "S")
    assert code == 0
    assert "add seed=" not in text  # a search would choose among them
    assert not Path("S/sweep.md").exists()


def test_the_last_of_several_values_counts(call: Call, runs: FakeRuns) -> None:
    command = ("-m", "fit.lr=0.1,0.2", "seed=0", "hydra.sweep.dir=T", "hydra.sweep.dir=S", "fit.lr=0.3")
    assert call(*command)[0] == 0
    assert [job.overrides for job in ledger()] == [("++seed=0", "++fit.lr=0.3")]
    assert not Path("T").exists()


def test_a_folder_holds_a_run_or_a_sweep(call: Call) -> None:
    Path("R").mkdir()
    Path("R/config.yaml").write_text("seed: 0\n")
    for sweeper in ((), ("hydra/sweeper=optuna",)):
        code, text = call("-m", *sweeper, "fit.lr=0.1,0.2", "hydra.sweep.dir=R")
        assert (code, text) == (2, "error: hydra.sweep.dir=R already contains a run. Choose another folder.\n")
        assert [file.name for file in Path("R").iterdir()] == ["config.yaml"]
    assert call("-m", "fit.lr=0.1,0.2", "hydra.sweep.dir=S")[0] == 0
    with pytest.raises(UserError, match=r"^folder=S: this folder holds a sweep\. Use a separate folder"):
        reserve(Path("S"))
