"""Fits in float16 do what a loop with PyTorch's GradScaler does, recorded or not."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from fakes import CPU, assert_same, make_learner, needs_gpu, noise_loader, on, reject_waiting, tiny_model
from graphed import CUDA, How, Make, adamw, lamb, recording, rmsprop, sgd
from torch import nn
from torch.amp.grad_scaler import GradScaler

from trainer.callbacks.optimizer_steps import GradClip, LossScale
from trainer.callbacks.recorder import NonFiniteLossError
from trainer.loop.batch_runner import Runner, Scaler
from trainer.loop.callback import CancelFit
from trainer.loop.learner import Learner

OVERFLOWS = (0, 1, 5, 11)  # batches of the fit whose gradients are too large for float16
EPOCHS, BATCHES, CLIP = 4, 4, 0.05


class Own(torch.optim.SGD):
    """May be recorded, and has no kernel of its own that skips a step."""

    capturable = True


def own(model: nn.Module) -> torch.optim.Optimizer:
    return Own(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)


EAGER, RECORDED = Runner, recording(warm_up=1)


def learner_of(*more: Any, overflows: tuple[int, ...] = OVERFLOWS, **options: Any) -> Learner:
    """Return a learner whose gradients overflow in some batches."""
    model, device = tiny_model(), torch.device(options.get("device", CPU))
    count = [-1]

    def count_batch(learner: Learner) -> None:
        count[0] = learner.progress.batches_done - 1 if learner.training else -1

    def overflow(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.inf if count[0] in overflows else gradient

    model[0].weight.register_hook(overflow)
    train = noise_loader(7, device=device)
    learner = make_learner(
        *(GradClip(CLIP), on("before_batch", count_batch), *more),
        train=train, val=noise_loader(2, device=device), model=model, epochs=EPOCHS, precision="fp16", **options,
    )  # fmt: skip
    scaler_of(learner).set_growth_interval(3)
    return learner


def scaler_of(learner: Learner) -> Scaler:
    assert learner.runner.scaler is not None
    return learner.runner.scaler


def by_hand(optimizer: Make, accumulate: int) -> tuple[nn.Module, torch.optim.Optimizer, GradScaler]:
    """Train with PyTorch's own scaler, as its documentation does."""
    model = tiny_model().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    made, scaler = optimizer(model), GradScaler("cpu", growth_interval=3)
    train, step = noise_loader(7), 0
    for _ in range(EPOCHS):
        for number, batch in enumerate(train):
            with torch.autocast("cpu", torch.float16):
                output = model(batch.images)
            first = number // accumulate * accumulate
            loss = nn.functional.cross_entropy(output.float(), batch.targets) / min(accumulate, BATCHES - first)
            scaler.scale(loss).backward()
            if step in OVERFLOWS:
                model[0].weight.grad.fill_(math.inf)
            step += 1
            if (number + 1) % accumulate == 0 or number + 1 == BATCHES:
                scaler.unscale_(made)
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                scaler.step(made)
                scaler.update()
                made.zero_grad()
    return model, made, scaler


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("optimizer", [sgd, adamw, lamb, own])
@pytest.mark.parametrize("runner", [EAGER, RECORDED], ids=["eager", "recorded"])
def test_a_fit_is_what_torchs_scaler_makes_of_it(runner: How, optimizer: Make, accumulate: int) -> None:
    learner = learner_of(optimizer=optimizer, accumulate=accumulate, runner=runner)
    learner.fit()
    model, reference, scaler = by_hand(optimizer, accumulate)
    tolerance = {"rtol": 1e-5, "atol": 1e-7} if runner is RECORDED else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(dict(learner.model.named_parameters()), dict(model.named_parameters()), **tolerance)
    ours, theirs = (made.state_dict()["state"] for made in (learner.optimizer, reference))
    torch.testing.assert_close(ours, theirs, **tolerance)
    assert scaler_of(learner).factor == scaler.get_scale() != 2.0**16


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_resumed_fit_has_the_same_scale_also_in_the_middle_of_a_step(stop: int) -> None:
    options: dict[str, Any] = {"optimizer": adamw, "accumulate": 3}
    whole, first = learner_of(**options), learner_of(on("after_batch", cancel_at(stop), 10), **options)
    whole.fit()
    first.fit()
    second = learner_of(**options)
    second.fit(second.restore(first.state()))
    assert_same(second.state().model, whole.state().model)
    assert_same(second.state().optimizer, whole.state().optimizer)


def cancel_at(stop: int) -> Callable[[Learner], None]:
    def cancel(learner: Learner) -> None:
        if learner.training and learner.progress.batches_done - 1 == stop:
            raise CancelFit

    return cancel


def test_a_fit_that_finds_no_scale_ends() -> None:
    learner_of(LossScale()).fit()
    broken = learner_of(LossScale(), overflows=tuple(range(EPOCHS * BATCHES)))
    scaler_of(broken).load_state_dict({"scale": 2.0, "clean": 0})
    with pytest.raises(NonFiniteLossError, match=r"not finite at any loss scale, in batch 16 "):
        broken.fit()


@needs_gpu
@pytest.mark.parametrize("optimizer", [sgd, adamw, rmsprop])
def test_a_recorded_fit_on_a_gpu_is_the_eager_one_and_waits_for_nothing(optimizer: Make) -> None:
    learners = []
    for graph in (False, True):
        learner = learner_of(optimizer=optimizer, device="cuda", graph=graph, overflows=OVERFLOWS[:2])
        learner.fit()
        learners.append(learner)
    for ours, theirs in zip(learners[1].model.parameters(), learners[0].model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-4)
    factors = [float(scaler_of(learner).factor) for learner in learners]
    assert factors[0] == factors[1]
    recorded, scaler = learners[1], scaler_of(learners[1])
    recorded._mode(training=True)
    batch = next(iter(noise_loader(7, device=CUDA)))
    waits = optimizer is rmsprop  # has no kernel that skips a step
    with nullcontext() if waits else reject_waiting():
        recorded._batch(batch, recorded._pass, recorded._step)
    # A replay does not run the hook that makes gradients overflow; a scale that no gradient survives does.
    scaler.update(2.0**120)
    weights = [parameter.clone() for parameter in recorded.model.parameters()]
    with nullcontext() if waits else reject_waiting():
        recorded._batch(batch, recorded._pass, recorded._step)
    assert scaler.factor == 2.0**119
    assert_same(list(recorded.model.parameters()), weights)
