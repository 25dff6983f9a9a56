"""Gradients in one tensor, which ranks add up without a copy."""

from weakref import ref

import pytest
import torch
from fakes import tiny_model
from graphed import FakeBackend
from torch import Tensor, nn

from trainer.loop.graphs import Graphs, Runner
from trainer.loop.ranks import Ranks
from trainer.loop.stepper import Stepper


class Doubling(Ranks):
    """Ranks that all have the same gradients; keeps what they are asked to add up."""

    def add_up(self, tensors):
        self.given = list(tensors)
        for tensor in self.given:
            tensor.mul_(2)


@pytest.fixture
def model() -> nn.Module:
    return tiny_model().to(memory_format=torch.channels_last)


def stepper_of(model: nn.Module) -> Stepper:
    return Stepper(torch.optim.SGD(model.parameters(), lr=0.1), Graphs(FakeBackend()))


def loss_of(model: nn.Module) -> Tensor:
    return model(torch.arange(2 * 3 * 8 * 8.0).view(2, 3, 8, 8)).square().mean()


def test_gradients_lie_in_one_tensor(model: nn.Module) -> None:
    stepper, ranks = stepper_of(model), Doubling()
    expected = torch.autograd.grad(loss_of(model), list(model.parameters()))
    for _ in range(2):  # the second time they are there already
        stepper.backward(loss_of(model))
    stepper.add_up(ranks, [], 1.0)
    (whole,) = ranks.given
    for p, gradient in zip(model.parameters(), expected, strict=True):
        assert p.grad.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        assert p.grad.stride() == p.stride()
        torch.testing.assert_close(p.grad, 4 * gradient)


@pytest.mark.parametrize("change", ["freeze", "replace"])
def test_gradients_of_other_origin_are_added_up_one_by_one(model: nn.Module, change: str) -> None:
    stepper, ranks = stepper_of(model), Doubling()
    stepper.backward(loss_of(model))
    stepper.add_up(ranks, [], 1.0)
    first = next(model.parameters())
    first.grad = None if change == "freeze" else torch.ones_like(first)
    rest = [p.grad for p in model.parameters() if p.grad is not None]
    before = [gradient.clone() for gradient in rest]
    stepper.add_up(ranks, [], 1.0)
    assert len(ranks.given) == len(rest)
    for gradient, was in zip(rest, before, strict=True):
        torch.testing.assert_close(gradient, 2 * was)


def test_gradients_that_are_dropped_free_their_memory(model: nn.Module) -> None:
    stepper = Stepper(torch.optim.SGD(model.parameters(), lr=0.1), Runner())
    stepper.backward(loss_of(model))
    stepper.add_up(Doubling(), [], 1.0)
    gradients = [ref(p.grad) for p in model.parameters()]
    stepper.step()
    assert [gradient() for gradient in gradients] == [None] * len(gradients)
