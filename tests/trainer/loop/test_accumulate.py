"""Gradients of several batches that make one step, which is that of one large batch."""

from typing import Any

import pytest
import torch
from fakes import MemoryLoader, lin, make_learner, noise_loader, on, raises
from torch import Tensor, nn

from trainer.callbacks.optimizer_steps import ParamScheduler
from trainer.loop.callback import CancelTrain
from trainer.loop.learner import Learner
from trainer.optim.schedules import Schedule, constant


def plain_model() -> nn.Module:
    """Without batch normalization, to which the size of a batch matters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3))


def learner_of(samples: int, batch_size: int, *callbacks: Any, **options: Any) -> Learner:
    whole = noise_loader(samples)
    train = MemoryLoader(whole.images, whole.targets, batch_size)
    schedule = ParamScheduler({"lr": options.pop("lr", lin(0.2, 0.0))})
    return make_learner(schedule, *callbacks, train=train, model=plain_model(), **options)


def weights(samples: int, batch_size: int, accumulate: int, lr: Schedule | None = None) -> Tensor:
    learner = learner_of(samples, batch_size, accumulate=accumulate, lr=lr or lin(0.2, 0.0))
    learner.fit()
    return nn.utils.parameters_to_vector(learner.model.parameters()).detach()


def test_four_batches_of_16_equal_one_of_64() -> None:
    """With momentum and a schedule, over two epochs of two steps."""
    expected = weights(128, 64, 1)
    torch.testing.assert_close(weights(128, 16, 4), expected, rtol=1e-5, atol=1e-6)
    learner = learner_of(101, 16, accumulate=4)
    learner.fit()
    assert learner.find(ParamScheduler).current == {"lr": learner.optimizer.param_groups[0]["lr"]}  # as trackers get it
    for wrong in (1, 2, 8):
        assert (weights(128, 16, wrong) - expected).abs().max() > 1e-3


@pytest.mark.parametrize(("samples", "accumulate", "alike"), [(101, 4, 64), (20, 4, 64)])
def test_each_image_of_a_step_counts_the_same_in_smaller_batches_too(samples: int, accumulate: int, alike: int) -> None:
    """The last batches are 16, 16 and 5; 16 and 4."""
    expected = weights(samples, alike, 1, constant(0.1))
    torch.testing.assert_close(weights(samples, 16, accumulate, constant(0.1)), expected, rtol=1e-5, atol=1e-6)


def test_what_an_epoch_left_over_is_dropped() -> None:
    """A pass that is left within a group makes no step of it, in the next epoch neither."""
    gone = on("after_batch", raises(CancelTrain, 0))
    seen: list[bool] = []
    note = on(
        "before_batch",
        lambda learner: seen.append(any(p.grad is not None and p.grad.any() for p in learner.model.parameters())),
    )
    learner_of(4, 2, gone, note, accumulate=2, val=noise_loader(1)).fit()
    assert seen == [False, True, False, True, False]  # the first of validation follows the batch that was left
