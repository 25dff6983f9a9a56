"""What is recorded when and by what, and that fits whose work is recorded equal eager ones, without a GPU."""

import logging
import math
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from fakes import lin, make_learner, noise_loader, on, raises, tiny_model
from graphed import CASES, FakeBackend, How, SharingBackend, compare, losses, recording, sgd, with_clip
from torch import Tensor, nn

from trainer.callbacks.optimizer_steps import ParamScheduler
from trainer.loop.batch_runner import Runner
from trainer.loop.callback import CancelFit
from trainer.loop.cuda_graphs import ATTEMPTS, Graphs, Tensors, capturable
from trainer.loop.learner import Learner
from trainer.optim.schedules import one_cycle


def double(value: Tensor) -> Tensors:
    return (value * 2,)


def run(graphs: Graphs, *shapes: tuple[int, ...], kind: str = "train") -> list[str]:
    """Run a piece of work on inputs of shapes; return what was asked of the backend."""
    backend = cast(FakeBackend, graphs._backend)
    backend.calls.clear()
    for number, shape in enumerate(shapes):
        given = torch.full(shape, float(number))
        (result,) = graphs.run(kind, double, given)
        assert torch.equal(result, given * 2)
    return list(backend.calls)


# --- when ---

EAGER3 = ["eager"] * 3


def test_the_first_batches_are_run_eagerly_the_next_is_recorded_and_replayed() -> None:
    assert run(Graphs(FakeBackend()), *[(4, 3)] * 6) == [*EAGER3, "record", "replay", "replay", "replay"]


@pytest.mark.parametrize(
    "other",
    [
        lambda images: images.double(),
        lambda images: images[:1],
        lambda images: images.contiguous(memory_format=torch.channels_last),
    ],
    ids=["dtype", "shape", "strides"],
)
def test_a_recording_is_not_used_for_other_inputs(other: Callable[[Tensor], Tensor]) -> None:
    graphs, images = Graphs(FakeBackend(), warm_up=0), torch.randn(2, 3, 4, 4)
    calls = cast(FakeBackend, graphs._backend).calls
    for given in (images, other(images), images, other(images)):
        (result,) = graphs.run("train", double, given)
        assert result.dtype == given.dtype
    assert calls == ["record", "replay", "record", "replay", "replay", "replay"]
    with torch.inference_mode():
        graphs.run("train", double, images)
    graphs.run("validate", double, images)
    assert calls[6:] == ["record", "replay", "record", "replay"]


def test_inputs_are_copied_and_results_are_new_objects() -> None:
    graphs, given = Graphs(FakeBackend(), warm_up=0), torch.ones(2, requires_grad=True)
    seen: list[Tensor] = []

    def work(value: Tensor) -> Tensors:
        seen.append(value)
        return (value.sum() * given.sum(),)

    values = [torch.ones(2), torch.ones(2)]
    results = [graphs.run("train", work, value)[0] for value in values]
    assert seen[0] is seen[1]
    assert all(value is not seen[0] for value in values)
    assert results[0] is not results[1]
    assert not any(result.requires_grad for result in results)


@pytest.mark.parametrize(
    ("change", "forgets"),
    [
        pytest.param(lambda model: None, False, id="nothing"),
        pytest.param(lambda model: [p.data.mul_(2) for p in model.parameters()], False, id="values"),
        pytest.param(lambda model: model[0].requires_grad_(False), True, id="frozen"),
        pytest.param(lambda model: model[1].eval(), True, id="mode"),
        pytest.param(lambda model: model.__setitem__(6, nn.Linear(4, 3)), True, id="layer"),
        pytest.param(lambda model: setattr(model[1], "running_mean", torch.zeros(4)), True, id="buffer"),
    ],
)
def test_a_pass_with_another_model_begins_again(change: Callable[[Any], object], forgets: bool) -> None:
    graphs, model = Graphs(FakeBackend()), tiny_model()
    graphs.enter("train", model)
    run(graphs, *[(2,)] * 4)
    run(graphs, *[(2,)] * 4, kind="step")
    change(model)
    graphs.enter("train", model)
    assert run(graphs, (2,)) == ["eager" if forgets else "replay"]
    assert run(graphs, (2,), kind="step") == ["eager" if forgets else "replay"]


def test_what_cannot_be_recorded_is_run_eagerly_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend()
    graphs = Graphs(backend)
    run(graphs, *[(2,)] * 4, kind="validate")
    backend.fails = lambda: True
    with caplog.at_level(logging.WARNING):
        assert run(graphs, *[(2,)] * 9) == [*EAGER3, *["record", "eager"] * ATTEMPTS, "eager", "eager"]
        assert run(graphs, *[(3,)] * 5) == ["eager"] * 5
    assert [record.message for record in caplog.records] == ["fit.graph: 'train' runs without a CUDA graph: it waits"]
    backend.fails = lambda: False
    assert run(graphs, *[(2,)] * 2, kind="validate") == ["record", "replay", "replay"]  # with the generator of now


def test_a_recording_that_another_thread_disturbs_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    fails = iter([True] * (ATTEMPTS - 1))
    graphs = Graphs(FakeBackend(lambda: next(fails, False)))
    with caplog.at_level(logging.WARNING):
        again = ["record", "eager"] * (ATTEMPTS - 1)
        assert run(graphs, *[(2,)] * 8) == [*EAGER3, *again, "record", "replay", "replay"]
    assert not caplog.records


class Own(torch.optim.SGD):
    """Says itself that it may be recorded."""

    capturable = True


class Foreign(torch.optim.SGD):
    """Says nothing."""


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (torch.optim.SGD, True),
        (torch.optim.AdamW, True),
        (torch.optim.NAdam, True),
        (torch.optim.RMSprop, True),
        (torch.optim.Adagrad, False),
        (Own, True),
        (Foreign, False),
    ],
)
def test_which_optimizers_may_be_recorded(make: Any, expected: bool) -> None:
    assert capturable(make([nn.Parameter(torch.ones(1))], 0.1)) is expected


# --- fits ---


@pytest.mark.parametrize("name", [name for name in CASES if name != "adamw"])
def test_the_machinery_changes_nothing(name: str) -> None:
    backend = FakeBackend()
    compare(recording(backend), **with_clip(CASES[name]))
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
        learner.optimizer.param_groups[0]["lr"] = 0.01 * (learner.progress.batches_done)

    def look(learner: Learner) -> None:
        seen.append(learner.optimizer.param_groups[0]["lr"])
        assert float(seen[-1]) == pytest.approx(0.01 * (learner.progress.batches_done))

    compare(recording(FakeBackend()), callbacks=lambda: [on("before_step", put), on("after_step", look)])
    tensors = seen[20:]  # after those of the eager fit
    assert len(tensors) == 20
    assert isinstance(tensors[0], Tensor)
    assert all(rate is tensors[0] for rate in tensors)


def test_gradients_that_were_dropped_are_noticed() -> None:
    """A callback may forget gradients; recorded work would keep adding to the old ones."""

    def drop(learner: Learner) -> None:
        if learner.training and learner.progress.batches_done == 13:
            learner.optimizer.zero_grad(set_to_none=True)

    backend = FakeBackend()
    compare(recording(backend), callbacks=lambda: [on("after_batch", drop)])
    assert backend.calls.count("record") >= 4


def test_a_frozen_layer_stays_as_it_is_and_may_be_trained_again() -> None:
    """Also with momentum and weight decay, which would move it without a gradient, and if its momentum is new."""
    weights: list[Tensor] = []

    def change(learner: Learner) -> None:
        weights.append(learner.model[0].weight.detach().clone())  # type: ignore[index, union-attr, operator]
        learner.model[0].requires_grad_(learner.progress.epoch not in (0, 2))  # type: ignore[index, operator]
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
