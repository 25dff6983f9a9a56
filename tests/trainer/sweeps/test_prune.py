"""Pruning: a trial that is behind others after as many epochs ends, and the study knows."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trainer.loop.callback import CancelFit
from trainer.run.sweeping import SearchSettings
from trainer.sweeps.study import JOB, Prune, Search, ask

EPOCHS = 8


def search_in(folder: Path) -> Search:
    return Search(SearchSettings(min_epochs=1, reduction=2), folder, "val_accuracy", EPOCHS)


def train(search: Search, score: float, first: int = 0) -> Prune:
    """Return the callback of a new trial after epochs that all have one score, or after the one that ended it."""
    with search.locked() as study:
        trial = ask(search, study)
        trial.set_user_attr(JOB, f"job {trial.number}")
    prune = Prune(search, trial.number)
    for epoch in range(first, EPOCHS):
        rows = [{"val_accuracy": score}]
        learner: Any = SimpleNamespace(epoch=epoch, epochs=EPOCHS, find=lambda _, rows=rows: SimpleNamespace(rows=rows))
        try:
            prune.after_epoch(learner)
        except CancelFit:
            break
    return prune


def test_a_trial_that_is_behind_ends_early(tmp_path: Path) -> None:
    search = search_in(tmp_path)
    assert [train(search, score).reason for score in (0.5, 0.6, 0.7)] == [""] * 3
    assert train(search, 0.4).reason == "pruned, behind other trials"
    assert train(search, 0.8).reason == ""
    values = [trial.intermediate_values for trial in search.study().trials]
    assert [len(value) for value in values] == [7, 7, 7, 1, 7]  # nothing can be gained by ending the last epoch


def test_no_trial_ends_where_it_cannot_be_compared(tmp_path: Path) -> None:
    search = search_in(tmp_path)
    for better in (0.5, 0.6, 0.7):
        train(search, better)
    assert train(search, math.nan).reason == ""
