"""Batches whose loss or gradients are not finite are skipped as if they had never been there, and saved for a look."""

import logging
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from fakes import CPU, MemoryLoader, assert_same, make_learner, needs_gpu, on, refuse_waiting, sgd
from graphed import How, recording
from graphed import sgd as fused_sgd
from torch import Tensor, nn
from torch.optim import Optimizer

from augment.support.errors import UserError
from trainer.callbacks.nonfinite import NonFinite
from trainer.callbacks.recorder import NonFiniteLossError, Recorder
from trainer.loop.callback import CancelBatch
from trainer.loop.learner import Learner
from trainer.loop.runner import Runner

OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), 0.01, capturable=False),
}
SAMPLES, BATCH = 12, 2


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )


def data(*bad: int, device: torch.device = CPU) -> MemoryLoader:
    """Six batches, of which some hold an infinite pixel."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(SAMPLES, 3, 8, 8, generator=generator)
    targets = torch.randint(3, (SAMPLES,), generator=generator)
    for number in bad:
        images[number * BATCH, 0, 4, 4] = math.inf
    return MemoryLoader(images.to(device), targets.to(device), BATCH, shuffle=False)


def learner_of(bad: tuple[int, ...], *, cancelled: tuple[int, ...] = (), runner: How | None = None, **options):  # type: ignore[no-untyped-def]
    def cancel(learner: Learner) -> None:
        if learner.training and learner.position.batch - 1 in cancelled:
            raise CancelBatch

    guards = (NonFinite(), *options.pop("more", ()))
    return make_learner(
        *(Recorder(), on("before_batch", cancel), *guards),
        train=data(*bad),
        val=data(),
        model=network(),
        runner=runner,
        epochs=2,
        skip_nonfinite=10,
        **options,
    )


def state_of(learner: Learner) -> list[object]:
    state = learner.state()
    return [state.model, state.optimizer["state"]]


@pytest.mark.parametrize("runner", [Runner, recording(warm_up=1)], ids=["eager", "recorded"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_batch_that_is_not_finite_leaves_no_trace(name: str, runner: How) -> None:
    skipped = learner_of((2, 3), optimizer=OPTIMIZERS[name], runner=runner)
    skipped.fit()
    expected = learner_of((), cancelled=(2, 3), optimizer=OPTIMIZERS[name], runner=runner)
    expected.fit()
    assert skipped.find(NonFinite).skipped == 4
    assert_same(state_of(skipped), state_of(expected))
    ours, theirs = (learner.find(Recorder).rows[-1] for learner in (skipped, expected))
    assert ours["train_loss"] == pytest.approx(theirs["train_loss"])
    assert ours["val_loss"] == theirs["val_loss"]


def test_a_batch_takes_its_whole_step_along_where_gradients_add_up() -> None:
    skipped = learner_of((2,), accumulate=2)
    skipped.fit()
    # Batches 2 and 3 make a step; the statistics of batch 3 count.
    assert all(value.isfinite().all() for value in skipped.model.state_dict().values())
    assert skipped.find(NonFinite).skipped == 2
    steps: list[Tensor] = []
    counting = learner_of((2,), accumulate=2, more=(on("after_step", lambda it: steps.append(weight(it))),))
    counting.fit()
    assert [torch.equal(a, b) for a, b in pairwise(steps)] == [True, False, False, True, False]


def weight(learner: Learner) -> Tensor:
    return next(learner.model.parameters()).detach().clone()


def test_gradients_that_are_not_finite_count_as_the_loss_does() -> None:
    def break_gradient(learner: Learner) -> None:
        learner.model[0].weight.register_hook(lambda gradient: gradient * math.nan)  # type: ignore[index,union-attr]

    learner = learner_of((), more=(on("before_fit", break_gradient),))
    with pytest.raises(NonFiniteLossError, match=r"^loss or gradients of 11 training batches are not finite"):
        learner.fit()


def test_skipped_batches_are_saved_and_too_many_end_the_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    learner = make_learner(
        *(Recorder(), NonFinite()), train=data(1, 4), model=network(), skip_nonfinite=1, folder=tmp_path, optimizer=sgd
    )
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(UserError, match=r"2 training batches .*nonfinite-5\.pt\. Allowed: fit\.skip_nonfinite=1\."),
    ):
        learner.fit()
    assert (
        "1 training batch with a loss or gradients that are not finite skipped by step 2, 1 of 1 so far" in caplog.text
    )
    saved = torch.load(tmp_path / "nonfinite-2.pt", weights_only=True)
    assert saved["step"] == 2
    assert saved["indices"].tolist() == [2, 3]
    assert_same(saved["images"], data(1).images[2:4])
    assert_same(saved["targets"], data(1).targets[2:4])
    assert (tmp_path / "nonfinite-5.pt").is_file()
    assert (tmp_path / "nonfinite-5.png").is_file()


@needs_gpu
def test_skipping_waits_for_nothing_and_leaves_no_trace_on_a_gpu() -> None:
    cuda = torch.device("cuda")
    learners = []
    for bad, cancelled in (((2, 3), ()), ((), (2, 3))):

        def cancel(learner: Learner, cancelled: tuple[int, ...] = cancelled) -> None:
            if learner.training and learner.position.batch - 1 in cancelled:
                raise CancelBatch

        made = make_learner(
            *(on("before_batch", cancel), NonFinite(interval=3600)),
            train=data(*bad, device=cuda),
            val=data(device=cuda),
            model=network(),
            optimizer=fused_sgd,
            device="cuda",
            graph=True,
            epochs=4,
            skip_nonfinite=10,
        )
        made.find(NonFinite)._due = math.inf
        made.fit()
        learners.append(made)
    assert learners[0].find(NonFinite).skipped == 8
    assert_same(learners[0].model.state_dict(), learners[1].model.state_dict())
    learners[0]._mode(training=True)
    batch = next(iter(data(0, device=cuda)))
    with refuse_waiting():
        learners[0]._batch(batch, learners[0]._pass, learners[0]._step)
