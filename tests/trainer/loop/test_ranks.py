"""Ranks: alone, their share of a batch and waiting for rank 0; and two of which one does otherwise than the other."""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from apart_program import skips
from fakes import journal, make_learner, noise_loader, on, raises
from rank_runs import SUPPORT, environment, variables
from torch import Tensor

from augment.support.errors import UserError
from trainer.callbacks.recorder import NonFiniteLossError, Recorder
from trainer.loop.callback import CancelStep
from trainer.loop.cuda_graph_runner import RankedRunner
from trainer.loop.ranks import Ranks
from trainer.loop.settings import LoopSettings
from trainer.tasks.loss import ClassLoss

# --- alone ---


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
    loss = ClassLoss(weights=torch.tensor([1.0, 2.0, 3.0]))
    learner = make_learner(loss_function=loss, runner=RankedRunner, accumulate=2)
    batch = next(iter(noise_loader()))
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
    with pytest.raises(NonFiniteLossError, match=r"^the training loss is nan at batch 3 \(epoch 1\)\."):
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


@pytest.mark.parametrize(("count", "seen"), [(0, "0 GPUs"), (1, "1 GPU")])
def test_each_rank_of_a_machine_needs_a_gpu(count: int, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (variables(0, 2, 1) | {"MASTER_ADDR": "localhost", "CUDA_VISIBLE_DEVICES": "3"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(
        UserError, match=rf"^fit\.gpus: 2 .* each sees {seen} \(CUDA_VISIBLE_DEVICES=3\)\. Start at most one"
    ):
        LoopSettings().torch_device()
    assert LoopSettings(device="cpu").torch_device() == torch.device("cpu")


# --- apart ---


pytestmark = pytest.mark.slow

FITS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "fit": ("cancels", {"event": "after_batch", "levels": ["fit", None]}),
    "batch": ("cancels", {"event": "before_batch", "levels": ["batch", None]}),
    "step": ("cancels", {"event": "before_step", "levels": [None, "step"]}),
    "validate": ("cancels", {"event": "before_validate", "levels": ["validate", None], "at": [3, 3]}),
    "late": ("cancels", {"event": "after_epoch", "levels": ["fit", None], "at": [0, 0], "epoch": 1}),
    "others": ("cancels", {"event": "after_batch", "levels": ["fit", "epoch"]}),
    "same step": ("cancels", {"event": "before_batch", "levels": ["batch"] * 2, "at": [1, 2], "accumulate": 2}),
    "alike": ("cancels", {"event": "before_batch", "levels": ["batch", "batch"]}),
    "branch": ("branches", {"first": [3, 9]}),
    "skipped step": ("skips", {"level": "step"}),
    "skipped batch": ("skips", {"level": "batch"}),
}


@pytest.fixture(scope="module")
def ended() -> dict[str, list[str]]:
    """What both ranks of each fit returned or raised."""
    command = [sys.executable, str(SUPPORT / "apart_program.py"), json.dumps([*FITS.values()])]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=True)
    return dict(zip(FITS, json.loads(done.stdout.splitlines()[-1]), strict=True))  # older PyTorch prints more


@pytest.mark.parametrize("fit", [*FITS][: [*FITS].index("alike")])
def test_a_rank_that_cancels_alone_ends_all(fit: str, ended: dict[str, list[str]]) -> None:
    levels = FITS[fit][1]["levels"]
    said = [text for text in ended[fit] if not text.startswith("LostRankError: ")]
    assert said
    for text in said:
        rank = ended[fit].index(text)
        assert text.startswith(f"UserError: Cancel{str(levels[rank]).capitalize()} ({SUPPORT}/apart_program.py, line ")
        assert f") was raised on rank {rank}, but not on rank {1 - rank} at the same time. Make " in text


@pytest.mark.parametrize("fit", ["alike", "branch"])
def test_ranks_that_cancel_alike_or_use_other_parameters_train_on(fit: str, ended: dict[str, list[str]]) -> None:
    one, other = map(float, ended[fit])
    assert one == other


@pytest.mark.parametrize("level", ["step", "batch"])
def test_gradients_of_a_step_that_is_left_out_count_once(level: str, ended: dict[str, list[str]]) -> None:
    one, other = map(float, ended[f"skipped {level}"])
    assert one == other == pytest.approx(float(skips(0, level, ranks=1)), rel=1e-6)
