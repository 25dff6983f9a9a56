"""Ctrl-C and other signals, once and twice, and whose handler there is afterwards."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import (
    make_learner,
    on,
)

from augment.support.signals import STOP_SIGNALS
from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.stopping import Interrupt
from trainer.loop.callback import Callback
from trainer.loop.checkpoint import LAST, FitState, load
from trainer.loop.learner import Learner
from trainer.run.summary import summarize


@pytest.fixture
def sigint() -> Iterator[Any]:
    """Python's own handler, which a process started in the background lacks; what was there comes back."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def press(learner: Learner, number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def once(event: str, action: Callable[[Learner], object]) -> Callback:
    left = [action]
    return on(event, lambda learner: left.pop()(learner) if left else None)


def test_ctrl_c_ends_the_fit_after_the_batch(sigint: Any, tmp_path: Path) -> None:
    events: list[str] = []
    notes = [
        on(event, lambda learner, event=event: events.append(event))  # type: ignore[misc]
        for event in ("before_batch", "after_step", "after_batch", "after_train", "after_epoch", "after_fit")
    ]
    interrupt = Interrupt()
    callbacks = [Recorder(), Checkpoint(), interrupt, once("before_step", press), *notes]
    learner = make_learner(*callbacks, folder=tmp_path)
    learner.fit()
    assert events == ["before_batch", "after_step", "after_batch", "after_fit"]
    assert interrupt.pressed
    assert learner.error is None
    assert signal.getsignal(signal.SIGINT) is sigint
    assert load(tmp_path / LAST, FitState).position == (0, 1)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_any_signal_that_asks_to_stop_does_so(number: int, sigint: Any, tmp_path: Path) -> None:
    before = signal.getsignal(number)
    send = once("before_step", lambda learner: press(learner, number))
    learner = make_learner(Recorder(), Checkpoint(), Interrupt(), send, folder=tmp_path)
    learner.fit()
    assert summarize(learner, tmp_path, 1.0).status == "interrupted"
    assert load(tmp_path / LAST, FitState).position == (0, 1)
    assert signal.getsignal(number) is before


def test_a_signal_after_the_last_batch_interrupts_nothing(sigint: Any, tmp_path: Path) -> None:
    """Nothing is left to resume: a script that runs the command again would start anew."""
    learner = make_learner(Recorder(), Interrupt(), on("after_fit", press))
    learner.fit()
    assert summarize(learner, tmp_path, 1.0).status == "finished"


def test_ctrl_c_in_validation(sigint: Any) -> None:
    interrupt = Interrupt()
    learner = make_learner(interrupt, once("before_validate", press))
    learner.fit()
    assert interrupt.pressed
    assert learner.position == (0, 3)
    assert learner.val_loader.fetched == [(0, 0)]  # type: ignore[attr-defined]
    assert signal.getsignal(signal.SIGINT) is sigint


def test_a_second_ctrl_c_stops_at_once(sigint: Any) -> None:
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
    assert signal.getsignal(signal.SIGINT) is sigint
