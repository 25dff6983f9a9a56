"""Early stopping: after `patience` epochs without improvement, and not before."""

import math
from pathlib import Path

import pytest
from fakes import make_learner, on

from trainer.callbacks.recorder import Recorder
from trainer.callbacks.stopping import EarlyStopping
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner
from trainer.tasks.registry import monitored, task_named

FALLING = [0.5, 0.6, 0.7, 0.6, 0.7, 0.65, 0.66, 0.9]


def scripted(values: list[float], name: str) -> Callback:
    """A callback that writes a given value into the row of each epoch."""

    def put(learner: Learner) -> None:
        learner.find(Recorder).rows[-1][name] = values[learner.epoch]

    return on("after_epoch", put, 1)


def fitted(callback: EarlyStopping, values: list[float], *others: Callback, folder: Path | None = None) -> Learner:
    script = scripted(values, monitored(callback.monitor, task_named("classify")))
    learner = make_learner(Recorder(), script, callback, *others, epochs=len(values), folder=folder)
    learner.fit()
    return learner


@pytest.mark.parametrize(
    ("values", "settings", "epochs"),
    [
        (FALLING, {"patience": 3}, 6),
        (FALLING, {"patience": 1}, 4),
        (FALLING, {"patience": 5}, 8),
        (FALLING, {"patience": 2, "min_delta": 0.15}, 5),
        (FALLING, {"patience": 2, "min_delta": 0.3}, 3),
        (
            [0.3, 0.2, 0.25, 0.1, 0.2, 0.3],
            {"monitor": "val_loss", "patience": 2},
            6,
        ),  # the last epoch: nothing is cut short
        ([0.3, 0.2, 0.25, 0.21, 0.1], {"monitor": "val_loss", "patience": 2}, 4),
        ([math.nan, math.nan, 0.1], {"monitor": "train_loss", "patience": 2}, 2),
        ([0.0, 0.0, 0.0, 0.1], {"patience": 2}, 3),
    ],
)
def test_the_epoch_in_which_it_ends(values: list[float], settings: dict[str, object], epochs: int) -> None:
    callback = EarlyStopping(**settings)  # type: ignore[arg-type]
    learner = fitted(callback, values)
    assert len(learner.find(Recorder).rows) == epochs
    assert bool(callback.reason) == (epochs < len(values))


def test_with_rare_validation_the_epochs_in_between_count() -> None:
    # Validated in epochs 3, 6, 9 and so on: 6 is the best, 9 comes three epochs later.
    for patience, epochs in ((3, 9), (4, 12)):
        callback = EarlyStopping(patience=patience)
        scores = scripted([0, 0, 0.5, 0, 0, 0.6, 0, 0, 0.6, 0, 0, 0.6, 0, 0, 0.6], "val_accuracy")
        rare = on("after_epoch", lambda learner: (learner.epoch + 1) % 3 and drop(learner), 2)
        learner = make_learner(Recorder(), scores, rare, callback, epochs=15)
        learner.fit()
        assert len(learner.find(Recorder).rows) == epochs


def drop(learner: Learner) -> None:
    del learner.find(Recorder).rows[-1]["val_accuracy"]


def test_a_resumed_run_continues_counting() -> None:
    first = make_learner(Recorder(), scripted(FALLING, "val_accuracy"), EarlyStopping(patience=3), epochs=4)
    first.fit()
    callback = EarlyStopping(patience=3)
    second = make_learner(Recorder(), scripted(FALLING, "val_accuracy"), callback, epochs=len(FALLING))
    second.fit(second.restore(first.state()))
    assert len(second.find(Recorder).rows) == 6
    assert callback.reason == "no better val_accuracy in 3 epochs"
