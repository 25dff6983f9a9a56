"""FreshStatistics: validation uses the mean of the statistics of the epoch's batches, from the first epoch on."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from fakes import CPU, assert_same, make_learner, noise_loader, on, raises, tiny_model
from graphed import recording
from torch import Tensor, nn

from trainer.callbacks import steps
from trainer.callbacks.ema import EMA
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.steps import FreshStatistics
from trainer.loop.callback import CancelFit
from trainer.loop.learner import Learner

Seen = tuple[Tensor, Tensor]


def fit(*callbacks: Any, momentum: float = 0.1, **options: Any) -> tuple[list[Seen], list[Seen]]:
    """Return the mean and variance of each batch's feature maps in training, and those that validations used."""
    model = tiny_model()
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    norm.momentum = momentum
    batches: list[Seen] = []
    used: list[Seen] = []

    def keep(module: nn.Module, inputs: tuple[Tensor]) -> None:
        if module.training:
            maps = inputs[0].detach().transpose(0, 1).flatten(1)
            batches.append((maps.mean(1), maps.var(1)))

    def note(learner: Learner) -> None:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        used.append((norm.running_mean.clone(), norm.running_var.clone()))

    norm.register_forward_pre_hook(keep)
    make_learner(*callbacks, on("before_validate", note), model=model, **options).fit()
    return batches, used


def mean(weights: list[float], batches: list[Seen]) -> Seen:
    total = torch.tensor(weights) / sum(weights)
    return tuple((total[:, None] * torch.stack(values)).sum(0) for values in zip(*batches, strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize("momentum", [0.1, 0.01])
@pytest.mark.parametrize("recorded", [False, True])
def test_each_image_of_an_epoch_counts_the_same(momentum: float, recorded: bool) -> None:
    """Two epochs of 2, 2 and 1 images."""
    runner = recording(warm_up=1) if recorded else None
    batches, used = fit(FreshStatistics(), momentum=momentum, runner=runner)
    for epoch in (0, 1):
        torch.testing.assert_close(used[epoch], mean([2, 2, 1], batches[3 * epoch : 3 * epoch + 3]))


def test_a_step_of_several_batches_counts_by_its_images() -> None:
    """Steps of 2 and 2 images, and of 1; within a step it is the usual moving average."""
    batches, used = fit(FreshStatistics(), accumulate=2, epochs=1)
    torch.testing.assert_close(used[0], mean([4 * 0.9 / 1.9, 4 / 1.9, 1], batches))


def test_from_the_tenth_batch_on_it_is_the_usual_moving_average() -> None:
    batches, used = fit(FreshStatistics(), epochs=1, train=noise_loader(24))
    expected = mean([1] * 10, batches[:10])
    for batch in batches[10:]:
        expected = tuple(old.lerp(new, 0.1) for old, new in zip(expected, batch, strict=True))  # type: ignore[assignment]
    torch.testing.assert_close(used[0], expected)


def test_in_epochs_with_many_batches_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_FEW", 3)
    (_, plain), (_, few), (_, always) = (
        fit(*some) for some in ([], [FreshStatistics()], [FreshStatistics(always=True)])
    )
    assert_same(few, plain)
    assert not torch.equal(always[0][0], plain[0][0])


@pytest.mark.parametrize("batch", range(6))
def test_a_resumed_fit_equals_one_that_was_not_interrupted(batch: int) -> None:
    """Three epochs of 3 + 2 batches, in steps of 2 and 1 batches."""

    def learner(*callbacks: Any) -> Learner:
        return make_learner(Recorder(), FreshStatistics(), EMA(), *callbacks, accumulate=2, epochs=3, device=CPU)

    whole = learner()
    whole.fit()
    first = learner(on("after_batch", raises(CancelFit, batch)))
    first.fit()
    second = learner()
    second.fit(second.restore(deepcopy(first.state())))
    assert_same(second.model.state_dict(), whole.model.state_dict())
    assert_same(second.find(EMA).state_dict(), whole.find(EMA).state_dict())
