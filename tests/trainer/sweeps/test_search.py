"""Searches with runs that end at once, so that what is found is known."""

import errno
import fcntl
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from jobs import FakeRuns, runs
from optuna.trial import TrialState, create_trial
from PIL import Image
from rich.console import Console

from augment.data.dataset import DATA_DIR
from augment.support.errors import UserError
from trainer.run.config.sweep_settings import SAMPLERS
from trainer.run.folder.locks import claimed
from trainer.run.folder.reader import find_runs
from trainer.sweeps.comparison import compare_runs
from trainer.sweeps.dashboard.content import collect
from trainer.sweeps.launchers import Launcher, Local
from trainer.sweeps.ledger import Job, read_ledger
from trainer.sweeps.search import search
from trainer.sweeps.search_space import SearchPlan, suggest_from
from trainer.sweeps.trials import Prune, Trial
from trainer.sweeps.workers import Worker

__all__ = ["runs"]

pytestmark = pytest.mark.usefixtures("runs", "elsewhere")

FIXED = ["aug=imagenette"]
SWEEPER = {"kind": "optuna", "n_trials": 4, "finalists": 0}
SWEPT = ["++fit.lr=tag(log,interval(1e-3,1))", "++aug.train.rotate.p=0,0.5"]


@pytest.fixture
def elsewhere(sample_set: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where the sample set is drawn already, outside the folder of the search."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / DATA_DIR).parent.mkdir()
    (folder / DATA_DIR).symlink_to(sample_set)
    monkeypatch.chdir(folder)


def make(folder: Path, swept: list[str] = SWEPT, **settings: Any) -> SearchPlan:
    return SearchPlan.of(SWEEPER | settings, FIXED, swept, folder, check=False)


def noise(seed: int) -> float:
    return ((seed * 2654435761) % 1000) / 1000 - 0.5


def scored(gain: float) -> Callable[[Mapping[str, Any]], float]:
    """Return scores that depend on the seed, and on whether images are rotated."""

    def score(config: Mapping[str, Any]) -> float:
        rotated = config["aug"]["train"]["rotate"]["p"] > 0
        return 0.7 + (0.0 if rotated else gain) + 0.02 * noise(config["seed"] + 7 * round(1e4 * config["fit"]["lr"]))

    return score


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_sampler_runs_as_many_trials_as_asked(runs: FakeRuns, tmp_path: Path, sampler: str) -> None:
    plan = make(tmp_path, sampler=sampler)
    assert search(plan, Local(), runs.worker()) == 0
    assert [trial.state for trial in plan.frozen()] == [TrialState.COMPLETE] * 4
    assert {trial.job for trial in plan.recorded().trials} == {job.id for job in read_ledger(tmp_path)}
    before = len(runs.runs)
    assert search(plan, Local(), runs.worker()) == 0
    assert len(runs.runs) == before
    search(make(tmp_path, sampler=sampler, n_trials=5), Local(), runs.worker())
    assert len(plan.recorded().trials) == 5


def test_a_trial_begins_as_soon_as_one_has_ended(runs: FakeRuns, tmp_path: Path) -> None:
    """Pruned trials, for example, end long before others."""

    class Two(Launcher):
        at_a_time = 2

        def run(self, jobs: Sequence[Job], worker: Worker, *, until_one_ends: bool = False) -> None:
            waiting.append([job.trial for job in jobs])
            claims.enter_context(claimed(jobs[0].folder))  # the first one runs until the end
            if len(jobs) == 1:
                claims.close()
            worker.work(jobs[-1:])

    waiting: list[list[int | None]] = []
    with ExitStack() as claims:
        search(make(tmp_path), Two(), runs.worker())
    assert waiting == [[0, 1], [0, 2], [0, 3], [0]]


def compared_with_the_base(found: dict[str, Any]) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = found["comparison"]["groups"]
    return [group for group in groups if group["name"] != found["comparison"]["baseline"]]


def test_a_planted_gain_is_found_and_confirmed_on_fresh_seeds(runs: FakeRuns, tmp_path: Path) -> None:
    runs.score = scored(0.1)
    worker = replace(runs.worker(), console=Console(file=(printed := StringIO())))
    assert search(make(tmp_path, finalists=2, seeds=2, confirm=4, n_trials=8), Local(), worker) == 0
    assert "\nfinalists: 4 jobs with seeds 1 to 2\n" in printed.getvalue()
    assert "\nconfirmation: 8 jobs with seeds 1001 to 1004\n" in printed.getvalue()
    assert printed.getvalue().endswith(f"{tmp_path}/search.md\n")
    text = (tmp_path / "search.md").read_text()
    assert "That score is too optimistic" in text
    assert "scores below" in text
    found = json.loads((tmp_path / "search.json").read_text())
    (winner,) = compared_with_the_base(found)
    assert winner["n"] == 4
    assert winner["difference"]["mean"] == pytest.approx(0.1, abs=0.02)
    assert winner["difference"]["corrected"] < 0.05
    assert "better" in winner["verdict"]
    said = found["lines"][-2:]
    assert said[0] == f"Compared with {found['comparison']['baseline']}, the starting configuration:"
    # Other tools give the same verdict, though the winner's trial ran before the starting configuration.
    jobs = find_runs([tmp_path])
    compared, _ = compare_runs(jobs)
    assert compared is not None
    assert compared.lines()[:2] == said
    assert collect(jobs, tmp_path, tmp_path)["sweeps"][0]["verdict"]["lines"][:2] == said
    # The seeds that confirm it are neither those of the search nor those that chose it.
    seeds = [int(job.overrides[-1].removeprefix("++seed=")) for job in read_ledger(tmp_path) if job.trial is None]
    assert sorted(set(seeds)) == [1, 2, 1001, 1002, 1003, 1004]


def test_the_time_left_of_a_search(runs: FakeRuns, tmp_path: Path) -> None:
    runs.seconds = lambda config: 10.0 if len(runs.runs) == 2 else 60.0
    worker = replace(runs.worker(), console=Console(file=(printed := StringIO())))
    search(make(tmp_path, n_trials=3, finalists=1, confirm=2), Local(), worker)
    assert [line for line in printed.getvalue().splitlines() if " left, about " in line] == [
        "2 jobs left, about 2 min 0 s",
        "1 job left, about 35 s",
        *(f"{count} job{'s' * (count > 1)} left, about {count} min 0 s" for count in (3, 2, 1)),
    ]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_seed_of_a_search_decides_about_its_trials(sampler: str, tmp_path: Path) -> None:
    """Those of the next seed are others, not the same ones a trial later."""
    tried = []
    for seed in (0, 0, 1):
        plan = make(tmp_path, sampler=sampler, seed=seed)
        drawn, trials = [], []
        for _ in range(6):
            chosen = suggest_from(plan.study(trials).ask(), plan.space)
            distributions = {one.key: one.distribution for one in plan.space}
            drawn.append(tuple(chosen.values()))
            trials.append(create_trial(value=drawn[-1][-1], params=chosen, distributions=distributions))
        tried.append(drawn)
    first, same, other = tried
    assert first == same
    assert not {*first} & {*other}
    assert {rotated for _, rotated in first} == {0, 0.5}


def test_failed_impossible_and_pruned_trials_count_but_have_no_score(
    runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def when(value: float, then: Any, otherwise: Any) -> Any:
        return lambda config: then if config["aug"]["train"]["rotate"]["p"] == value else otherwise

    runs.fail, runs.score = when(0.5, ValueError("no"), None), when(0.25, math.nan, 0.5)
    runs.stopped = when(0.75, "pruned after 1 epoch", "")
    plan = make(tmp_path, ["++aug.train.rotate.p=0,0.5,2,0.25,0.75"], sampler="random", n_trials=16)
    search(plan, Local(), runs.worker())
    found = {(trial.params["aug.train.rotate.p"], trial.state) for trial in plan.frozen()}
    failed = {(p, TrialState.FAIL) for p in (0.5, 2, 0.25)}
    assert found == {(0, TrialState.COMPLETE), (0.75, TrialState.PRUNED), *failed}
    job, asked = read_ledger(tmp_path)[0], list[str]()
    assert [type(one) for one in plan.callbacks_of(job)] == [Prune]
    assert not make(tmp_path, prune=False).callbacks_of(job)
    monkeypatch.setattr(Job, "status", lambda job: asked.append(job.id) or "finished")
    assert len(plan.frozen()) == 16
    assert len(asked) == len({*asked})  # several trials may have the same job, which is read once


def test_an_interval_of_whole_numbers(tmp_path: Path) -> None:
    """Its ends are allowed, but no value in between."""
    with pytest.raises(UserError, match=r"^fit\.epochs: 1\.\d+ is not .* Use a whole number"):
        SearchPlan.of(SWEEPER, FIXED, ["++fit.epochs=interval(1,3)"], tmp_path)
    SearchPlan.of(SWEEPER, FIXED, ["++fit.epochs=int(interval(1,3))"], tmp_path)


def test_losses_of_other_kinds_are_not_searched_by(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (file := tmp_path / "ages.csv").write_text("image,age\n" + "a.png,1.5\n" * 9)
    fixed = ["data=filelist", f"++data.train={file}", f"++data.val={file}", "++data.targets=[age]"]
    with pytest.raises(UserError, match=r"^fit\.loss cannot be searched by val_loss, .*\.metrics=\[val_mae\]"):
        SearchPlan.of(SWEEPER, fixed, ["++fit.loss=huber,mse"], tmp_path, check=False)


def test_a_search_is_continued_only_as_what_it_began(runs: FakeRuns, tmp_path: Path) -> None:
    """Scores of other configurations cannot be compared."""
    plan = make(tmp_path, n_trials=2)
    search(plan, Local(), runs.worker())
    make(tmp_path, ["++fit.lr=interval(1e-4,2)", "++aug.train.rotate.p=0,0.5,1"]).check_start()
    make(tmp_path, [*SWEPT, "++fit.weight_decay=interval(0,1)"], n_trials=9).check_start()
    for swept in ("++aug.train.rotate.p=1,2", "++fit.lr=interval(5,6)"):
        with pytest.raises(UserError, match=r": .* is not a value of this search\. Choose another"):
            make(tmp_path, [swept]).check_start()
    other = SearchPlan.of(SWEEPER, [*FIXED, "++fit.epochs=9"], SWEPT, tmp_path, check=False)
    with pytest.raises(UserError, match=r"^fit\.epochs=9, was \d+: the search in .* started with a different"):
        other.check_start()
    for metric in ("val_loss", "val_top5"):  # one of them is to be maximized as before
        message = rf"^hydra\.sweeper\.metrics={metric}, was val_accuracy: the search in .* started with a different"
        with pytest.raises(UserError, match=message):
            make(tmp_path, metrics=[metric]).check_start()


def test_deleted_and_failed_jobs_leave_a_verdict(runs: FakeRuns, tmp_path: Path) -> None:
    runs.score = scored(0.1)
    runs.fail = lambda config: OSError("no") if config["seed"] in failing else None
    plan = make(tmp_path, SWEPT[:1], n_trials=2, finalists=2, seeds=2, confirm=3)
    failing = {1, 2, 1001, 1002, 1003}
    assert search(plan, Local(), runs.worker()) == 0  # though every run that was to choose or confirm failed
    text = (tmp_path / "search.md").read_text()
    assert "No verdict: no run of the starting configuration" in text
    assert "scores below" not in text  # there are none
    failing = {1001}
    best, *_ = read_ledger(tmp_path)
    shutil.rmtree(best.folder)
    for job in read_ledger(tmp_path):
        job.retry()
    plan.add(Trial({}, "deleted"))
    assert search(plan, Local(), runs.worker()) == 0
    assert [trial.state for trial in plan.frozen()] == [TrialState.FAIL, TrialState.COMPLETE, TrialState.FAIL]
    found = json.loads((tmp_path / "search.json").read_text())
    assert [group["n"] for group in found["comparison"]["groups"]] == [2, 2]
    assert not (tmp_path / best.id).exists()


def test_a_finalist_with_failed_runs_does_not_win_by_the_other_runs(runs: FakeRuns, tmp_path: Path) -> None:
    runs.score = scored(0.1)

    def fail(config: Mapping[str, Any]) -> OSError | None:
        return OSError("no") if config["seed"] == 1 and not config["aug"]["train"]["rotate"]["p"] else None

    runs.fail = fail
    plan = make(tmp_path, SWEPT[1:], n_trials=6, finalists=2, seeds=2, confirm=2)
    assert search(plan, Local(), runs.worker()) == 0
    assert "Best of 2 finalists: aug.train.rotate.p=0.5" in (tmp_path / "search.md").read_text()


def test_a_starting_configuration_with_a_single_seed_is_the_baseline(runs: FakeRuns, tmp_path: Path) -> None:
    plan = make(tmp_path, SWEPT[:1], n_trials=1, finalists=1, confirm=2)
    start = plan.base.resolved["fit"]["lr"]
    runs.fail = lambda config: OSError("no") if (config["fit"]["lr"], config["seed"]) == (start, 1002) else None
    assert search(plan, Local(), runs.worker()) == 0
    found = json.loads((tmp_path / "search.json").read_text())
    assert found["comparison"]["baseline"] == f"fit.lr={start}"
    assert sorted(group["n"] for group in found["comparison"]["groups"]) == [1, 2]
    compared, _ = compare_runs(find_runs([tmp_path]))
    assert compared is not None
    assert compared.lines()[:2] == found["lines"][-3:-1]


def test_a_file_system_without_locks_is_rejected(
    runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match=r"has no file locks .* set hydra"):
        search(make(tmp_path), Local(), runs.worker())
