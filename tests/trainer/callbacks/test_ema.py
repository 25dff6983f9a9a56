"""EMA: the average is what validation scores and best.pt keeps; training continues as if there were none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import assert_same, make_learner, on, raises
from torch import Tensor

from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.ema import EMA
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, CancelFit
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load
from trainer.loop.learner import Learner


def copied(learner: Learner) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in learner.model.state_dict().items()}


def history(*callbacks: Callback, **options: Any) -> tuple[Learner, list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Fit; return the learner, the state after each step and the state in each validation."""
    steps: list[dict[str, Tensor]] = []
    validated: list[dict[str, Tensor]] = []
    learner = make_learner(
        Recorder(),
        *callbacks,
        on("after_step", lambda learner: steps.append(copied(learner))),
        on("before_validate", lambda learner: validated.append(copied(learner))),
        **options,
    )
    learner.fit()
    return learner, steps, validated


def by_hand(states: list[dict[str, Tensor]], decays: list[float]) -> dict[str, Tensor]:
    average = states[0]
    for state, decay in zip(states, decays, strict=True):
        average = {
            name: decay * value + (1 - decay) * state[name] if value.is_floating_point() else state[name]
            for name, value in average.items()
        }
    return average


@pytest.mark.parametrize(
    ("settings", "taken", "decays"),
    [
        ({"decay": 0.8, "warmup": False}, [0, 1, 2, 3, 4, 5], [0.8] * 6),
        ({"decay": 0.3}, [0, 1, 2, 3, 4, 5], [2 / 11, 3 / 12, 0.3, 0.3, 0.3, 0.3]),
        ({"decay": 0.8, "warmup": False, "every": 2}, [1, 3, 5], [0.64] * 3),
        ({"decay": 0.8, "warmup": False, "start": 0.5}, [2, 3, 4, 5], [0.8] * 4),
    ],
)
def test_validation_sees_the_average(settings: dict[str, Any], taken: list[int], decays: list[float]) -> None:
    _, steps, validated = history(EMA(**settings))
    expected = by_hand([steps[index] for index in taken], decays)
    for name, value in validated[-1].items():
        torch.testing.assert_close(value, expected[name], msg=lambda text, name=name: f"{name}: {text}")
    assert not torch.allclose(validated[-1]["1.running_var"], steps[-1]["1.running_var"])
    assert not torch.allclose(validated[-1]["6.weight"], steps[-1]["6.weight"])


def test_the_values_stay_where_they_are_in_memory() -> None:
    seen: set[tuple[int, ...]] = set()

    def look(learner: Learner) -> None:
        seen.add(tuple(value.data_ptr() for value in (*learner.model.parameters(), *learner.model.buffers())))

    make_learner(
        Recorder(), EMA(), *(on(event, look) for event in ("before_batch", "after_validate", "after_fit"))
    ).fit()
    assert len(seen) == 1


def test_the_best_model_is_the_average_and_the_last_one_is_not(tmp_path: Path) -> None:
    learner, steps, validated = history(EMA(decay=0.5), Checkpoint(monitor="train_loss"), folder=tmp_path)
    best = learner.find(Checkpoint).best_epoch
    assert best is not None
    assert_same(load(tmp_path / BEST, BestModel).model, validated[best])
    assert_same(load(tmp_path / LAST, FitState).model, steps[-1])
    assert_same(learner.evaluated_state(), validated[-1])


def test_a_fit_that_ends_in_a_validation_keeps_the_trained_weights(tmp_path: Path) -> None:
    learner = make_learner(
        Recorder(),
        EMA(decay=0.9),
        Checkpoint(),
        on("before_validate", lambda learner: seen.append(copied(learner)), -100),
        on("after_batch", lambda learner: learner.training or raises(CancelFit)(learner)),
        folder=tmp_path,
    )
    seen: list[dict[str, Tensor]] = []
    learner.fit()
    assert_same(learner.model.state_dict(), seen[-1])
    assert_same(load(tmp_path / LAST, FitState).model, seen[-1])


@pytest.mark.parametrize("done", [1, 2, 4, 5])
def test_a_resumed_average_continues_where_it_was(done: int) -> None:
    whole, _, validated = history(EMA(decay=0.5))
    first, _, _ = history(EMA(decay=0.5), on("after_step", raises(CancelFit, done - 1)))
    seen: list[dict[str, Tensor]] = []
    second = make_learner(
        Recorder(), EMA(decay=0.5), on("before_validate", lambda learner: seen.append(copied(learner)))
    )
    second.fit(second.restore(first.state()))
    assert_same(seen[-1], validated[-1])
    assert_same(second.find(EMA).state_dict(), whole.find(EMA).state_dict())
