"""The loop: what is assigned where, what is counted, and what a batch does."""

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from fakes import (
    assert_same,
    logits_loader,
    make_learner,
    noise_loader,
    on,
    raises,
    sgd,
    small_learner,
    tiny_model,
)
from torch import Tensor, nn

from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.progress import Pace, ProgressBar
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.steps import Prepare
from trainer.callbacks.stopping import EarlyStopping
from trainer.loop.callback import (
    EVENTS,
    Callback,
    CancelStep,
)
from trainer.loop.learner import Learner
from trainer.loop.settings import LoopSettings

# --- counting ---


@pytest.mark.parametrize("samples", [1, 4, 5])
@pytest.mark.parametrize("limit", [None, 1, 2, 3, 99])
def test_steps_are_counted_exactly(samples: int, limit: int | None) -> None:
    train, val = noise_loader(samples), noise_loader(5)
    steps: list[int] = []
    count = on("before_batch", lambda learner: steps.append(learner.step) if learner.training else None)
    learner = make_learner(count, train=train, val=val, epochs=3, limit_batches=limit)
    learner.fit()
    batches = min(limit or 99, math.ceil(samples / 2))
    assert learner.batches(train) == batches
    assert learner.total_steps == 3 * batches
    assert steps == list(range(3 * batches))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_batch_is_fetched_beyond_the_limit(limit: int) -> None:
    train, val = noise_loader(8), noise_loader(8)
    make_learner(train=train, val=val, limit_batches=limit).fit()
    batches = [(epoch, number) for epoch in range(2) for number in range(limit)]
    assert train.fetched == batches
    assert val.fetched == batches


# --- what a batch does ---


def test_modes_and_gradients() -> None:
    seen: defaultdict[str, set[tuple[bool, bool]]] = defaultdict(set)
    gradients: set[tuple[bool, bool, bool]] = set()

    def look(event: str) -> Callback:
        return on(event, lambda learner: seen[event].add((learner.training, learner.model.training)))

    def graph(learner: Learner) -> None:
        gradients.add((learner.training, learner.output.requires_grad, learner.output.is_inference()))

    passes = [event for event in EVENTS if event not in ("before_fit", "before_epoch")]
    small_learner(*(look(event) for event in passes), on("after_batch", graph)).fit()
    assert gradients == {(True, True, False), (False, False, True)}
    for event in ("before_batch", "after_batch"):
        assert seen[event] == {(True, True), (False, False)}, event
    for event in ("before_train", "after_train", "before_step", "after_step"):
        assert seen[event] == {(True, True)}, event
    for event in ("before_validate", "after_validate", "after_epoch", "after_fit"):
        assert seen[event] == {(False, False)}, event


def test_validation_changes_nothing() -> None:
    learner = small_learner(model=tiny_model(dropout=0.5))
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    random = torch.get_rng_state()
    learner.validate()
    assert_same(learner.model.state_dict(), before)
    assert_same(torch.get_rng_state(), random)
    assert all(p.grad is None for p in learner.model.parameters())


class Linear(nn.Linear):
    """Takes images of one pixel; has no bias and starts with the weights given."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(3, 3, bias=False)
        self.weight.data.copy_(weight)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.flatten(1))


def test_a_step_is_that_of_the_optimizer() -> None:
    """The weight of one linear layer after one step, from the gradient of softmax and cross entropy by hand."""
    weight = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    model = Linear(weight)
    loader = logits_loader([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]], [0, 2])
    learner = make_learner(
        model=model, train=loader, val=loader, epochs=1, optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.5)
    )
    learner.fit()
    images = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]])
    errors = (images @ weight.T).softmax(1) - torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(model.weight.data, weight - 0.5 * errors.T @ images / 2)


def test_every_training_batch_steps_and_clears_the_gradients() -> None:
    weights: list[Tensor] = []

    def note(learner: Learner) -> None:
        if learner.training:
            assert all(p.grad is None or not p.grad.any() for p in learner.model.parameters())
            weights.append(learner.model.state_dict()["6.weight"].clone())

    make_learner(on("before_batch", note), on("after_batch", note), epochs=1).fit()
    changed = [not torch.equal(one, other) for one, other in pairwise(weights)]
    assert changed == [True, False, True, False, True]  # within each batch, and not between them


def test_cancel_step_adds_gradients_up() -> None:
    """Two batches with one step equal one step of the sum of their gradients."""

    def weights(skip: bool, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        model = Linear(torch.eye(3))
        loader = logits_loader([[1, 2, 3], [0, 1, 0], [3, 1, 0], [2, 2, 1]], [0, 1, 1, 2], 2 if skip else 4)
        every_other = [on("before_step", raises(CancelStep))] if skip else []
        make_learner(*every_other, train=loader, val=loader, model=model, epochs=1, loss_function=loss).fit()
        return model.weight.data

    mean, total = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")
    torch.testing.assert_close(weights(True, mean), weights(False, lambda o, t: total(o, t) / 2))


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_bf16_is_autocast_of_the_forward_pass_alone(precision: str, dtype: torch.dtype) -> None:
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    learner = small_learner(
        on("after_batch", lambda learner: seen.append((learner.output.dtype, learner.loss.dtype))), precision=precision
    )
    learner.fit()
    assert set(seen) == {(dtype, torch.float32)}
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}


def test_validation_may_have_a_loss_of_its_own() -> None:
    seen: list[tuple[bool, float]] = []
    look = on("after_batch", lambda learner: seen.append((learner.training, learner.loss.item())))

    def nine(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sum() * 0 + 9

    small_learner(look, val_loss_function=nine, epochs=1).fit()
    assert [(training, loss == 9) for training, loss in seen] == [(True, False), (True, False), (False, True)]


def test_a_fit_without_validation(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    learner = Learner(
        tiny_model(),
        noise_loader(),
        settings=LoopSettings(epochs=2, device="cpu"),
        optimizer=sgd,
        callbacks=[recorder, Prepare(), Pace(), ProgressBar(), EarlyStopping(), Checkpoint()],
    )
    learner.fit()
    learner.validate()
    assert [sorted(key for key in row if "loss" in key) for row in recorder.rows] == [["train_loss"]] * 2
    assert "val" not in capsys.readouterr().out
