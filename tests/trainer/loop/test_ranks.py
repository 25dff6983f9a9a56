"""Ranks without other processes: their share of a batch, waiting for rank 0, and what can go wrong between them."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from fakes import journal, make_learner, noise_loader, on, raises
from torch import Tensor

from augment.support.errors import UserError
from trainer.callbacks.recorder import NonFiniteLossError, Recorder
from trainer.loop.callback import CancelStep
from trainer.loop.ranked import Ranked
from trainer.loop.ranks import Ranks
from trainer.loop.settings import LoopSettings
from trainer.tasks.losses import CrossEntropy


class TwoRanks(Ranks):
    """Two ranks, of which the other one has twos where this one adds up, and the same objects."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.size = 2
        self._events = events

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            tensor += 2

    def gather(self, value: Any) -> list[Any]:
        self._events.append("gather")
        return [value, value]


def test_a_repeated_image_has_no_weight() -> None:
    """Those of the classes count, of which the other rank has 2 here."""
    loss = CrossEntropy(weights=torch.tensor([1.0, 2.0, 3.0]))
    learner = make_learner(loss_function=loss, runner=Ranked, accumulate=2)
    batch = next(iter(noise_loader()))
    alone = learner.runner.validate(batch).loss.detach()
    learner.ranks = TwoRanks([])
    weight = float(torch.tensor([1.0, 2.0, 3.0])[batch.targets].sum())
    assert float(learner.runner.train(batch, 1.0).loss.detach()) == pytest.approx(float(alone) * weight / (weight + 2))
    learner.runner.drop()
    learner.runner.train(replace(batch, share=0.0), 1.0)
    assert not any(p.grad.any() for p in learner.model.parameters() if p.grad is not None)


def test_a_loss_that_is_not_finite_on_another_rank_ends_the_fit() -> None:
    class Broken(TwoRanks):
        def gather(self, value: Any) -> list[Any]:
            parts = deepcopy(value)
            if isinstance(parts, dict):
                parts["sums"][0] = torch.nan
            return [value, parts]

    learner = make_learner(Recorder())
    learner.ranks = Broken([])
    with pytest.raises(NonFiniteLossError, match=r"^the training loss is nan at step 3 of 6 \(epoch 1\)\."):
        learner.fit()


def test_a_further_rank_has_no_gradients_of_those_that_were_saved() -> None:
    first = make_learner(on("before_step", raises(CancelStep, 2)), epochs=1)
    first.fit()
    for rank in (0, 1):
        learner = make_learner()
        learner.ranks = TwoRanks([])
        learner.ranks.rank = rank
        assert learner.restore(first.state()) == (1, 0)
        assert any(p.grad is not None for p in learner.model.parameters()) == (rank == 0)


def test_ranks_wait_for_each_other_before_an_epoch() -> None:
    events: list[str] = []
    learner = make_learner(journal(events))
    learner.ranks = TwoRanks(events)
    learner.fit()
    after = [events[at + 1] for at, event in enumerate(events) if event == "gather"]
    assert after == ["before_epoch", "before_epoch", "after_fit"]


TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "1",
}


def set_variables(monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None]) -> None:
    for name, value in (TORCHRUN | changes).items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("count", "seen"), [(0, "0 GPUs"), (1, "1 GPU")])
def test_each_rank_of_a_machine_needs_a_gpu(count: int, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, {"RANK": "0", "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "3"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(UserError, match=rf"^fit\.gpus: 2 .* each sees {seen} \(CUDA_VISIBLE_DEVICES=3\)\. Allowed: "):
        LoopSettings().torch_device()
    assert LoopSettings(device="cpu").torch_device() == torch.device("cpu")
