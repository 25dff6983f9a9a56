"""Events: which there are, in which order callbacks get them, and how the loop is printed."""

from typing import Any

import pytest
import torch
from fakes import journal, make_learner, noise_loader, on, tiny_model

from augment.support.errors import UserError
from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.ema import EMA
from trainer.callbacks.optimizer_steps import GradClip, Interrupt
from trainer.callbacks.plots import Plots
from trainer.callbacks.progress import ProgressBar
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import EVENTS, Callback, loop_text, sort_callbacks
from trainer.loop.learner import Learner


class Late(Callback):
    order = 10

    def after_step(self, learner: object) -> None: ...


class Early(Callback):
    order = -10

    def before_fit(self, learner: object) -> None: ...

    def before_batch(self, learner: object) -> None: ...

    def after_step(self, learner: object) -> None: ...


@pytest.mark.parametrize(
    ("given", "meant"),
    [("after_bacth", "after_batch"), ("before_validation", "before_validate"), ("after_backward", None)],
)
def test_an_unknown_event_is_rejected_with_the_nearest(given: str, meant: str | None) -> None:
    with pytest.raises(UserError, match=rf"^On\.{given}: unknown event\.") as caught:
        make_learner(on(given, print))
    assert meant is None or f"Did you mean '{meant}'?" in str(caught.value)
    assert all(event in str(caught.value) for event in EVENTS)


@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_before_optimizer_step"])
def test_a_hook_of_another_library_is_rejected(hook: str) -> None:
    with pytest.raises(UserError, match=rf"{hook}: unknown event\. Allowed: .*after_train"):
        make_learner(on(hook, print))


def test_callbacks_run_in_phases_and_an_integer_lies_between_them() -> None:
    between = on("before_fit", print, 70)
    given = [EMA(), Recorder(), GradClip(), Checkpoint(), Plots(), between, ProgressBar(), Interrupt()]
    assert sort_callbacks(reversed(given)) == tuple(given)


def test_callbacks_run_in_their_order_at_every_event() -> None:
    events: list[str] = []
    make_learner(
        *(journal(events, f"{name} ", order) for name, order in [("c", 1), ("a", -1), ("d", 1), ("b", 0)])
    ).fit()
    assert len(events) % 4 == 0
    for index in range(0, len(events), 4):
        names, (event, *others) = zip(*(entry.split() for entry in events[index : index + 4]), strict=True)
        assert names == ("a", "b", "c", "d")
        assert set(others) == {event}


def test_show_loop_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    make_learner(Late(), Early()).show_loop()
    assert capsys.readouterr().out == loop_text([Early(), Late()]) + "\n"


def test_what_is_no_callback_or_no_loader_is_rejected() -> None:
    with pytest.raises(
        UserError, match=r"^callbacks: 'mine' is not a callback\. Pass objects of subclasses of Callback"
    ):
        sort_callbacks(["mine"])  # type: ignore[list-item]
    number: Any = 3
    with pytest.raises(UserError, match=r"^val_loader: int is not allowed\. Pass a loader from augment.make_"):
        Learner(tiny_model(), noise_loader(), number, optimizer=lambda model: torch.optim.SGD(model.parameters()))
