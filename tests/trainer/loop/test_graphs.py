"""What is recorded when, by what, and what happens where recording fails."""

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from fakes import tiny_model
from graphed import FakeBackend
from torch import Tensor, nn

from trainer.loop.graphs import ATTEMPTS, Graphs, Tensors, capturable


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
    assert [record.message for record in caplog.records] == ["fit.graph: train is run without a CUDA graph: it waits"]
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
