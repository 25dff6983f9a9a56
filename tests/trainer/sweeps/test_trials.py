"""Search spaces in Hydra's syntax, and trials that are behind others."""

import json
import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest

from augment.support.errors import UserError
from trainer.callbacks.recorder import METRICS_FILE
from trainer.loop.callback import CancelFit
from trainer.loop.ranks import Ranks
from trainer.run.config.sweep_settings import SearchSettings
from trainer.run.folder.facts import FACTS_FILE
from trainer.run.folder.reader import JOB_FILE, find_runs
from trainer.sweeps.search_space import overrides_of, parse_space, suggest_from
from trainer.sweeps.trials import Prune, Search
from trainer.sweeps.workers import EndWithMain

# --- spaces ---


ROTATE = ["++aug.train.rotate.angle_range=interval(1,20)", "++aug.train.rotate.p=0,0.5"]


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("++fit.lr=interval(1e-3,1e-1)", optuna.distributions.FloatDistribution(1e-3, 1e-1)),
        ("++fit.lr=tag(log,interval(1e-3,1e-1))", optuna.distributions.FloatDistribution(1e-3, 1e-1, log=True)),
        ("++fit.epochs=int(interval(1,5))", optuna.distributions.IntDistribution(1, 5)),
        ("++fit.batch_size=tag(log,int(interval(8,64)))", optuna.distributions.IntDistribution(8, 64, log=True)),
        ("++fit.epochs=range(1,6,2)", optuna.distributions.CategoricalDistribution((1, 3, 5))),
        ("++fit.lr=0.1,0.2", optuna.distributions.CategoricalDistribution((0.1, 0.2))),
        ("aug=choice(strong,none)", optuna.distributions.CategoricalDistribution(("strong", "none"))),
        ("++aug.train.warp=null,{p:0.5}", optuna.distributions.CategoricalDistribution((None, "{p:0.5}"))),
    ],
)
def test_values(token: str, expected: optuna.distributions.BaseDistribution) -> None:
    (one,) = parse_space([token])
    assert one.distribution == expected


def test_choices_are_kept_as_they_were_written() -> None:
    """Without the rounding errors of a range; what was drawn from an interval has six digits."""
    tokens = ("0.01234567,1e-7", "range(1.3,2,0.3)", "interval(0.01234567,0.5)")
    texts = [[one.override(end) for end in one.samples] for text in tokens for one in parse_space([f"++fit.lr={text}"])]
    assert texts == [[f"++fit.lr={value}" for value in values] for values in (
        ("0.01234567", "1e-07"), ("1.3", "1.6", "1.9"), ("0.0123457", "0.5", "0.19863"),
    )]  # fmt: skip


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("++seed=0,1", "seed cannot be searched, because the search would only pick a lucky value."),
        ("++data.fold=0,1", "data.fold cannot be searched"),
        ("++fit.lr=tag(log,interval(0,1))", r"is not a valid interval\. Write "),
        ("++fit.lr=0.1", r"^fit\.lr=0\.1 cannot be searched\. Allowed: "),
        ("++fit.lr=interval(0,1),2", r"^fit\.lr=interval\(0,1\),2 cannot be searched\. Allowed: "),
        ("++fit.lr=range(3,3)", r"cannot be searched\. Allowed: "),
    ],
)
def test_what_cannot_be_searched(token: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_space([token])


def test_a_step_that_is_left_out_has_no_range() -> None:
    space = parse_space(ROTATE)
    study = optuna.create_study()
    for p, keys in ((0, {"aug.train.rotate.p"}), (0.5, {"aug.train.rotate.p", "aug.train.rotate.angle_range"})):
        study.enqueue_trial({"aug.train.rotate.p": p, "aug.train.rotate.angle_range": 3.5})
        assert suggest_from(study.ask(), space).keys() == keys


def test_overrides() -> None:
    space = parse_space(["++fit.lr=interval(0,1)", "++fit.nesterov=true,false", "aug=strong,none", "++fit.eps=null,1"])
    chosen = {"fit.lr": 0.123456789, "fit.nesterov": True, "aug": "none", "fit.eps": None}
    expected = {"++fit.lr=0.123457", "++fit.nesterov=true", "aug=none", "++fit.eps=null"}
    assert set(overrides_of(chosen, space)) == expected
    assert overrides_of({"aug": "none"}, space) == ["aug=none"]


# --- pruning ---


EPOCHS = 8


def search_in(folder: Path) -> Search:
    return Search(SearchSettings(min_epochs=1, reduction=2), folder, "val_accuracy")


def train(search: Search, name: str, score: float) -> Prune:
    """Return the callback of a new trial after epochs that all have one score, or after the one that ended it."""
    (folder := search.folder / name).mkdir()
    (folder / JOB_FILE).write_text(json.dumps({"order": 0, "overrides": [], "trial": 0}))
    prune, rows = Prune(search, name), list[dict[str, float]]()
    for epoch in range(EPOCHS):
        rows.append({"epoch": epoch, "val_accuracy": score})
        (folder / METRICS_FILE).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        progress = SimpleNamespace(epoch=epoch, epochs=EPOCHS)
        learner: Any = SimpleNamespace(progress=progress, find=lambda _: SimpleNamespace(rows=rows), ranks=Ranks())
        try:
            prune.after_epoch(learner)
        except CancelFit:
            break
    return prune


def test_a_trial_that_is_behind_ends_early(tmp_path: Path) -> None:
    search = search_in(tmp_path)
    reasons = [train(search, f"{score}", score).reason for score in (0.5, 0.6, 0.7, 0.4, 0.8)]
    assert reasons == ["", "", "", "pruned, behind other trials", ""]
    lengths = [len(find_runs([tmp_path / name])[0].rows) for name in ("0.4", "0.8")]
    assert lengths == [1, EPOCHS]


@pytest.mark.parametrize(("planned", "epochs"), [(2, EPOCHS), (EPOCHS, 1)])
def test_a_trial_is_compared_only_with_trials_of_its_length(planned: int, epochs: int, tmp_path: Path) -> None:
    search = search_in(tmp_path)
    for score in (0.8, 0.9):
        train(search, f"{score}", score)
        (tmp_path / f"{score}" / FACTS_FILE).write_text(json.dumps({"batches": [10] * planned}))
    train(search, "new", 0.5)
    assert len(find_runs([tmp_path / "new"])[0].rows) == epochs


@pytest.mark.parametrize(("score", "epochs"), [(0.45, 1), (0.75, 2), (0.85, EPOCHS)])
def test_a_trial_is_compared_after_one_and_two_epochs(score: float, epochs: int, tmp_path: Path) -> None:
    """At each of them, the better half of the trials continues."""
    search = search_in(tmp_path)
    for better, done in ((0.5, 1), (0.6, 1), (0.7, 2), (0.8, EPOCHS)):
        train(search, f"{better}", better)
        file = tmp_path / f"{better}" / METRICS_FILE
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:done]))
    train(search, "new", score)
    assert len(find_runs([tmp_path / "new"])[0].rows) == epochs


@pytest.mark.parametrize("pruned", [True, False])
def test_all_ranks_of_a_trial_end_together(pruned: bool) -> None:
    """Rank 0 has `Prune`, and the others follow its decision."""
    learner: Any = SimpleNamespace(ranks=SimpleNamespace(broadcast=lambda value: pruned))
    with pytest.raises(CancelFit) if pruned else nullcontext():
        EndWithMain().after_epoch(learner)


def test_no_trial_ends_where_it_cannot_be_compared(tmp_path: Path) -> None:
    search = search_in(tmp_path)
    for better in (0.5, 0.6, 0.7):
        train(search, f"{better}", better)
    assert train(search, "nan", math.nan).reason == ""
