"""Fits whose work is recorded equal eager ones, with a backend that stands in for the GPU."""

import math
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
import torch
from fakes import lin, make_learner, noise_loader, on, raises, tiny_model
from graphed import (
    CASES,
    FakeBackend,
    How,
    SharingBackend,
    compare,
    losses,
    recording,
    sgd,
    with_clip,
)
from torch import Tensor

from trainer.callbacks.steps import ParamScheduler
from trainer.loop.callback import CancelFit
from trainer.loop.learner import Learner
from trainer.loop.runner import Runner
from trainer.optim.schedule import one_cycle


@pytest.mark.parametrize("name", [name for name in CASES if name != "adamw"])
@pytest.mark.parametrize("clip", [False, True])
def test_the_machinery_changes_nothing(name: str, clip: bool) -> None:
    backend = FakeBackend()
    options = with_clip(CASES[name]) if clip else CASES[name]
    compare(recording(backend), **options)
    assert backend.calls.count("replay") > 15


def test_a_scheduled_momentum_keeps_the_step_eager() -> None:
    def recorded(name: str) -> int:
        backend = FakeBackend()
        compare(recording(backend), callbacks=lambda: [ParamScheduler({name: lin(0.1, 0.05)})])
        return backend.calls.count("record")

    assert recorded("lr") == recorded("momentum") + 1


def test_a_rate_is_filled_into_the_tensor_that_a_recorded_step_reads() -> None:
    """Also if a callback puts a number in its place."""
    seen: list[Tensor] = []

    def put(learner: Learner) -> None:
        learner.optimizer.param_groups[0]["lr"] = 0.01 * (learner.step + 1)

    def look(learner: Learner) -> None:
        seen.append(learner.optimizer.param_groups[0]["lr"])
        assert float(seen[-1]) == pytest.approx(0.01 * (learner.step + 1))

    compare(recording(FakeBackend()), callbacks=lambda: [on("before_step", put), on("after_step", look)])
    tensors = seen[20:]  # after those of the eager fit
    assert len(tensors) == 20
    assert isinstance(tensors[0], Tensor)
    assert all(rate is tensors[0] for rate in tensors)


def test_parameters_that_come_to_the_optimizer_later_are_trained_too() -> None:
    """Their group has a rate of its own, which the step that is recorded anew reads."""

    def later(learner: Learner) -> None:
        if learner.epoch == 2:
            learner.model.zero_grad()  # of what no step has been made of so far
            learner.optimizer.add_param_group({"params": [learner.model[6].weight], "lr": 0.1})  # type: ignore[index]

    def without_head(model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model[:6].parameters(), 0.1, momentum=0.9)

    def head(how: How) -> tuple[Tensor, Learner]:
        _, learner = losses(how, callbacks=lambda: [on("before_epoch", later)], optimizer=without_head)
        return learner.model[6].weight, learner  # type: ignore[index, return-value]

    (ours, learner), (theirs, _), untrained = head(recording(FakeBackend())), head(Runner), tiny_model()[6].weight
    torch.testing.assert_close(ours, theirs)
    assert not torch.equal(theirs, untrained)  # type: ignore[arg-type]
    assert all(isinstance(group["lr"], Tensor) for group in learner.optimizer.param_groups)


def test_gradients_that_were_dropped_are_noticed() -> None:
    """A callback may forget gradients; recorded work would keep adding to the old ones."""

    def drop(learner: Learner) -> None:
        if learner.training and learner.step == 12:
            learner.optimizer.zero_grad(set_to_none=True)

    backend = FakeBackend()
    compare(recording(backend), callbacks=lambda: [on("after_batch", drop)])
    assert backend.calls.count("record") >= 4


def test_a_frozen_layer_stays_as_it_is_and_may_be_trained_again() -> None:
    """Also with momentum and weight decay, which would move it without a gradient, and if its momentum is new."""
    weights: list[Tensor] = []

    def change(learner: Learner) -> None:
        weights.append(learner.model[0].weight.detach().clone())  # type: ignore[index, union-attr, operator]
        learner.model[0].requires_grad_(learner.epoch not in (0, 2))  # type: ignore[index, operator]
        learner.recapture()

    compare(recording(FakeBackend()), callbacks=lambda: [on("before_epoch", change)])
    moved = [not torch.equal(one, other) for one, other in pairwise(weights[5:])]
    assert moved == [False, True, False, True]


def test_nothing_writes_over_what_a_batch_came_to_before_it_was_looked_at() -> None:
    """Of several shapes: one that is recorded after the step may lie where the step writes."""
    seen: list[float] = []
    note = on("after_batch", lambda learner: seen.append(float(learner.loss)))
    backend = SharingBackend()
    loader = noise_loader(5)  # batches of 2, 2 and 1
    make_learner(note, train=loader, val=loader, epochs=8, runner=recording(backend)).fit()
    assert backend.calls.count("record") == 5  # two shapes in training and in validation, and the step
    assert all(math.isfinite(loss) for loss in seen)


def test_a_state_knows_nothing_of_recording() -> None:
    """No tensors for rates and no settings of recording: what was saved on a GPU loads anywhere."""

    def groups(how: How) -> tuple[list[float], list[dict[str, Any]]]:
        _, learner = losses(how, callbacks=lambda: [on("after_batch", raises(CancelFit, at=20))])
        state = learner.state().optimizer
        assert state["state"].keys() == {0, 1, 2, 3}
        rates = [group.pop("lr") for group in state["param_groups"]]
        return rates, state["param_groups"]

    (ours, our_groups), (theirs, their_groups) = groups(recording(FakeBackend())), groups(Runner)
    assert all(isinstance(rate, float) for rate in ours)
    assert ours == pytest.approx(theirs)
    assert our_groups == their_groups


@pytest.mark.parametrize("first", [Runner, recording(FakeBackend())])
@pytest.mark.parametrize("second", [Runner, recording(FakeBackend())])
def test_a_fit_may_be_resumed_with_or_without_recording(first: How, second: How) -> None:
    """A state that is put back replaces the optimizer's tensors, which what was recorded would still write to."""

    def learner(how: How, *callbacks: Any) -> Learner:
        schedule = ParamScheduler({"lr": one_cycle(0.1, start=0.01, end=0.0)})
        return make_learner(schedule, *callbacks, train=noise_loader(7), epochs=5, optimizer=sgd, runner=how)

    whole = learner(Runner)
    whole.fit()
    stopped = learner(first, on("after_batch", raises(CancelFit, 20)))
    stopped.fit()
    state = deepcopy(stopped.state())
    resumed = learner(second)
    resumed.fit()
    resumed.fit(resumed.restore(state))
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], value, rtol=1e-4, atol=1e-6)
