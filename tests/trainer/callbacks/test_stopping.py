"""Early stopping after epochs without improvement; Ctrl-C and other signals, once and twice."""

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import make_learner, on

from augment.support.signals import STOP_SIGNALS
from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.optimizer_steps import EarlyStopping, Interrupt
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback
from trainer.loop.checkpoint import LAST, FitState, load
from trainer.loop.learner import Learner
from trainer.run.folder.summary import summarize

# --- early stopping ---


FALLING = [0.5, 0.6, 0.7, 0.6, 0.7, 0.65, 0.66, 0.9]


def scripted(values: list[float], name: str) -> Callback:
    """A callback that writes a given value into the row of each epoch."""

    def put(learner: Learner) -> None:
        learner.find(Recorder).rows[-1][name] = values[learner.progress.epoch]

    return on("after_epoch", put, 1)


@pytest.mark.parametrize(
    ("values", "settings", "epochs"),
    [
        (FALLING, {"patience": 3}, 6),
        (FALLING, {"patience": 5}, 8),
        (FALLING, {"patience": 2, "min_delta": 0.15}, 5),
        ([0.3, 0.2, 0.25, 0.1, 0.2, 0.3], {"monitor": "val_loss", "patience": 2}, 6),  # the last one: nothing is cut
        ([math.nan, math.nan, 0.1], {"monitor": "train_loss", "patience": 2}, 2),
    ],
)
@pytest.mark.parametrize("of_best", [False, True])
def test_the_epoch_in_which_it_ends(
    values: list[float], settings: dict[str, object], epochs: int, of_best: bool
) -> None:
    monitor = str(settings.get("monitor", "val_accuracy"))
    others = {"monitor": "auto"} if of_best else {}  # without one, it is that of the best model
    callback, best = EarlyStopping(**settings | others), Checkpoint(monitor=monitor)  # type: ignore[arg-type]
    learner = make_learner(Recorder(), scripted(values, monitor), callback, best, epochs=len(values))
    learner.fit()
    assert len(learner.find(Recorder).rows) == epochs
    assert bool(callback.reason) == (epochs < len(values))


def test_an_earlier_fit_of_the_learner_does_not_count() -> None:
    callback = EarlyStopping(patience=2)
    learner = make_learner(Recorder(), scripted([0.9, 0.8, 0.7], "val_accuracy"), callback, epochs=3)
    learner.fit()
    recorder = learner.find(Recorder)
    recorder.rows[0]["val_accuracy"], recorder.since = 1.0, 2
    learner.fit()
    assert recorder.since == 0
    assert [row["epoch"] for row in recorder.rows] == [0, 1, 2]
    assert max(row["val_accuracy"] for row in recorder.rows) == 0.9
    assert [step.step for step in recorder.steps] == sorted({step.step for step in recorder.steps})


def drop_score(learner: Learner) -> None:
    if (learner.progress.epoch + 1) % 3:
        learner.find(Recorder).rows[-1].pop("val_accuracy")


def test_with_rare_validation_the_epochs_in_between_count() -> None:
    # Validated in epochs 3, 6, 9 and so on: 6 is the best, 9 comes three epochs later.
    for patience, epochs in ((3, 9), (4, 12)):
        callback = EarlyStopping(patience=patience)
        scores = scripted([0, 0, 0.5, 0, 0, 0.6, 0, 0, 0.6, 0, 0, 0.6, 0, 0, 0.6], "val_accuracy")
        drop = on("after_epoch", drop_score, 2)
        learner = make_learner(Recorder(), scores, drop, callback, epochs=15)
        learner.fit()
        assert len(learner.find(Recorder).rows) == epochs


def test_a_resumed_run_continues_counting() -> None:
    first = make_learner(Recorder(), scripted(FALLING, "val_accuracy"), EarlyStopping(patience=3), epochs=4)
    first.fit()
    callback = EarlyStopping(patience=3)
    second = make_learner(Recorder(), scripted(FALLING, "val_accuracy"), callback, epochs=len(FALLING))
    second.fit(second.restore(first.state()))
    assert len(second.find(Recorder).rows) == 6
    assert callback.reason == "no better val_accuracy in 3 epochs"


# --- signals ---


def press(learner: Learner, number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def once(event: str, action: Callable[[Learner], object]) -> Callback:
    left = [action]
    return on(event, lambda learner: left.pop()(learner) if left else None)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_any_signal_that_asks_to_stop_does_so(number: int, tmp_path: Path) -> None:
    before = signal.getsignal(number)
    send = once("before_step", lambda learner: press(learner, number))
    learner = make_learner(Recorder(), Checkpoint(), Interrupt(), send, folder=tmp_path)
    learner.fit()
    assert summarize(learner, tmp_path, 1.0).status == "interrupted"
    assert load(tmp_path / LAST, FitState).position == (0, 1)
    assert signal.getsignal(number) is before


def test_a_signal_after_the_last_batch_interrupts_nothing(tmp_path: Path) -> None:
    """Nothing is left to resume: a script that runs the command again would start anew."""
    learner = make_learner(Recorder(), Interrupt(), on("after_fit", press))
    learner.fit()
    assert summarize(learner, tmp_path, 1.0).status == "finished"


def test_ctrl_c_in_validation() -> None:
    interrupt = Interrupt()
    learner = make_learner(interrupt, once("before_validate", press))
    learner.fit()
    assert interrupt.pressed
    assert learner.progress.position == (0, 3)
    assert learner.val_loader.fetched == [(0, 0)]  # type: ignore[attr-defined]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_stops_at_once() -> None:
    events: list[str] = []
    interrupt = Interrupt()

    def press_twice(learner: Learner) -> None:
        press(learner)
        events.append("once")
        press(learner)

    twice = on("before_step", press_twice)
    after = [on(event, lambda learner: events.append("batch ended")) for event in ("after_step", "after_batch")]
    learner = make_learner(interrupt, twice, *after)
    with pytest.raises(KeyboardInterrupt):
        learner.fit()
    assert events == ["once"]
    assert interrupt.pressed
    assert isinstance(learner.error, KeyboardInterrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
