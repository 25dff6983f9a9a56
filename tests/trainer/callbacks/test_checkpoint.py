"""What is saved when, and which epoch counts as the best."""

import math
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from fakes import assert_same, make_learner, on, raises

from trainer.callbacks.checkpoint import Checkpoint, best_model, best_of
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.stopping import EarlyStopping
from trainer.loop.callback import Callback, CancelFit, RunDescription
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load
from trainer.loop.learner import Learner, Position
from trainer.run.resume import describe_changed_validation


def scores(values: list[float], key: str = "val_accuracy") -> Callback:
    """Make a callback that replaces what the recorder measured, before the checkpoint sees it."""
    given = iter(values)

    def replace(learner: Learner) -> None:
        learner.find(Recorder).rows[-1][key] = next(given)

    return on("after_epoch", replace)


NAN = math.nan


@pytest.mark.parametrize(
    ("monitor", "values", "best"),
    [
        ("val_accuracy", [0.1, 0.3, 0.2], 1),
        ("val_accuracy", [0.2, 0.3, 0.3], 1),
        ("val_accuracy", [0.0, 0.0, 0.0], 0),
        ("val_loss", [0.2, 0.1, 0.1], 1),
        ("train_loss", [0.3, 0.1, 0.2], 1),
        ("val_loss", [NAN, 0.2, 0.3], 1),
        ("val_loss", [0.3, NAN, 0.4], 0),
        ("val_loss", [0.3, NAN, 0.2], 2),
        ("val_accuracy", [NAN, 0.1, NAN], 1),
        ("val_accuracy", [NAN, NAN, NAN], 0),
    ],
)
def test_best_is_the_first_of_the_best(monitor: str, values: list[float], best: int, tmp_path: Path) -> None:
    weights: list[dict[str, torch.Tensor]] = []
    copy = on("after_epoch", lambda learner: weights.append(deepcopy(learner.model.state_dict())))
    checkpoint = Checkpoint(monitor=monitor)
    learner = make_learner(Recorder(), scores(values, monitor), checkpoint, copy, folder=tmp_path, epochs=3)
    learner.fit()
    assert checkpoint.best_epoch == best
    assert_same(checkpoint.best, values[best])
    saved = load(tmp_path / BEST, BestModel)
    assert_same(saved.model, weights[best])
    assert_same(saved.row, learner.find(Recorder).rows[best])


def test_best_has_what_evaluation_needs(tmp_path: Path) -> None:
    learner = make_learner(Recorder(), Checkpoint(), folder=tmp_path, epochs=1)
    learner.fit()
    saved = load(tmp_path / BEST, BestModel)
    assert saved.task == "classify"
    assert saved.classes == ("ant", "bee", "cat")
    assert saved.row == learner.find(Recorder).rows[0]
    samples = learner.find(Recorder).samples
    assert samples is not None
    assert samples.index.tolist() == [0, 1, 2]
    assert_same(saved.samples, vars(samples))


def test_last_is_saved_after_every_epoch(tmp_path: Path) -> None:
    positions: list[tuple[int, int]] = []

    def read(learner: Learner) -> None:
        learner.find(Checkpoint)._finish_writing()
        positions.append(load(tmp_path / LAST, FitState).position)

    look = on("after_epoch", read, 100)
    make_learner(Recorder(), scores([0.3, 0.2, 0.1]), Checkpoint(), look, folder=tmp_path, epochs=3).fit()
    assert positions == [(1, 0), (2, 0), (3, 0)]


def test_an_interrupted_epoch_is_saved(tmp_path: Path) -> None:
    stop = on("after_batch", raises(CancelFit, at=6))  # three batches and two, then the second of the second epoch
    learner = make_learner(Recorder(), Checkpoint(), stop, folder=tmp_path)
    learner.fit()
    saved = load(tmp_path / LAST, FitState)
    assert saved.position == (1, 2)
    assert_same(saved.model, learner.model.state_dict())
    assert saved.callbacks["Recorder"]["meter"]["samples"] == 4


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_what_failed_is_not_saved(error: BaseException, tmp_path: Path) -> None:
    learner = make_learner(Recorder(), Checkpoint(), on("after_step", raises(error, at=4)), folder=tmp_path)
    with pytest.raises(type(error)):
        learner.fit()
    assert load(tmp_path / LAST, FitState).position == (1, 0)


def test_the_files_before_the_last_one_are_kept(tmp_path: Path) -> None:
    make_learner(Recorder(), Checkpoint(every_batches=1, keep=2), folder=tmp_path).fit()
    files = [tmp_path / name for name in (LAST, "last.1.pt", "last.2.pt")]
    assert [load(file, FitState).position for file in files] == [(2, 0), (1, 3), (1, 2)]
    assert sorted(file.name for file in tmp_path.glob("*.pt")) == [BEST, "last.1.pt", "last.2.pt", LAST]


def test_the_best_value_is_remembered_by_a_resumed_run(tmp_path: Path) -> None:
    first = make_learner(Recorder(), scores([0.9]), Checkpoint(), folder=tmp_path, epochs=1)
    first.fit()
    checkpoint = Checkpoint()
    second = make_learner(Recorder(), scores([0.8, 0.9]), checkpoint, folder=tmp_path, epochs=3)
    second.fit(second.restore(load(tmp_path / LAST, FitState)))
    assert (checkpoint.best, checkpoint.best_epoch) == (0.9, 0)
    assert load(tmp_path / BEST, BestModel).row["epoch"] == 0


def test_a_resumed_run_that_goes_by_another_value_seeks_the_best_again(tmp_path: Path) -> None:
    """A loss that is compared with an accuracy would be the best in no epoch."""
    first = make_learner(Recorder(), scores([0.1]), Checkpoint(), folder=tmp_path, epochs=1)
    first.fit()
    checkpoint = Checkpoint(monitor="val_loss")
    second = make_learner(Recorder(), scores([0.8, 0.7], "val_loss"), checkpoint, folder=tmp_path, epochs=3)
    second.fit(second.restore(load(tmp_path / LAST, FitState)))
    assert (checkpoint.best, checkpoint.best_epoch) == (0.7, 2)
    assert load(tmp_path / BEST, BestModel).row["epoch"] == 2


def test_a_resumed_run_that_validates_in_another_way_determines_the_best_again(tmp_path: Path) -> None:
    """Scores on smaller crops, say, do not compare with those before, for early stopping either."""

    def run(epochs: int, values: list[float], validation: dict[str, str], *, resumed: bool = True) -> Learner:
        learner = make_learner(
            *(Recorder(), scores(values), Checkpoint(), EarlyStopping(patience=2)),
            folder=tmp_path,
            epochs=epochs,
            run=RunDescription(validation=validation),
        )
        start = learner.restore(load(tmp_path / LAST, FitState)) if resumed else Position()
        said.append(describe_changed_validation(learner))
        learner.fit(start)
        return learner

    said: list[str] = []
    run(1, [0.9], {"aug.val": "a", "fit.tta": "none"}, resumed=False)
    run(2, [0.5], {"aug.val": "a", "fit.tta": "none"})
    assert load(tmp_path / BEST, BestModel).row["epoch"] == 0
    third = run(4, [0.6, 0.7], {"aug.val": "b", "fit.tta": "none"})
    assert said == ["", "", said[2]]
    assert said[2].startswith("aug.val: not as in the saved run, so scores cannot be compared: the best epoch is")
    assert said[2].endswith(" from epoch 3 on")
    assert [len(third.find(Recorder).rows), load(tmp_path / BEST, BestModel).row["epoch"]] == [4, 3]
    fourth = run(5, [0.65], {"aug.val": "b", "fit.tta": "none"})
    assert best_of(fourth)[1]["epoch"] == 3


# --- the best epoch in memory ---


def test_a_best_epoch_before_this_fit_is_read(tmp_path: Path) -> None:
    first = make_learner(Recorder(), scores([0.3]), Checkpoint(), folder=tmp_path, epochs=1)
    first.fit()
    second = make_learner(Recorder(), scores([0.2]), Checkpoint(), folder=tmp_path, epochs=2)
    assert best_model(second) is not None
    second.fit(second.restore(first.state()))
    known = best_model(second)
    assert known is not None
    assert_same(vars(known), vars(load(tmp_path / BEST, BestModel)))
