"""What callbacks do to a step: hyperparameters by the position in the fit, and gradients that are clipped."""

import math
from typing import Any

import pytest
import torch
from fakes import lin, make_learner, noise_loader, on
from torch import nn

from augment.support.errors import UserError
from trainer.callbacks.optimizer_steps import GradClip, ParamScheduler
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, CancelFit
from trainer.loop.learner import Learner
from trainer.loop.progress import Position
from trainer.optim.schedules import constant, one_cycle

# --- ParamScheduler ---


def golden_one_cycle(step: int, total: int) -> float:
    """From 0.2 to 1 over three tenths of the steps, then to 0, by cosines; written for whole steps."""
    warm = 0.3 * total
    if step < warm:
        return 0.2 + 0.8 * (1 - math.cos(math.pi * step / warm)) / 2
    return (1 + math.cos(math.pi * (step - warm) / (total - warm))) / 2


def rates(learner: Learner, start: Position | None = None, key: str = "lr") -> list[float]:
    """Fit and return the values that the optimizer's steps were made with, each twice if there are two groups."""
    seen: list[float] = []
    learner.optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: seen.extend(group[key] for group in optimizer.param_groups)
    )
    learner.fit(start or Position())
    return seen


def scheduled(*callbacks: Callback, **options: Any) -> Learner:
    return make_learner(ParamScheduler({"lr": one_cycle(1.0, start=0.2, end=0.0)}), *callbacks, **options)


@pytest.mark.parametrize(("epochs", "schedule"), [(31, None), (60, None), (30, None), (31, constant(0.1))])
def test_a_resumed_fit_of_another_length_names_its_learning_rate(epochs: int, schedule: Any) -> None:
    def made(length: int) -> Learner:
        return make_learner(
            ParamScheduler({"lr": schedule or one_cycle(0.01, start=0.0004, end=0.0)}),
            train=noise_loader(2),
            epochs=length,
        )

    finished, longer = made(30), made(epochs)
    finished.fit()
    position = longer.restore(finished.state())
    note = longer.find(ParamScheduler).describe_new_length(longer, position)
    if epochs == 30 or schedule:
        assert not note
        return
    longer.fit(position)
    expected = one_cycle(0.01, start=0.0004, end=0.0)(30 / epochs)
    assert f"{expected:.2g}" in note
    assert all(text in note for text in (f"fit.epochs={epochs}", "fit.schedule=constant", "model.weights"))


def test_a_fit_without_remaining_batches_has_no_new_rate() -> None:
    """As after an interruption in the last validation, with a smaller fit.limit_batches."""
    finished, shorter = scheduled(epochs=1), scheduled(epochs=1, limit_batches=1)
    finished.fit()
    shorter.restore(finished.state())
    end = Position(0, finished.progress.total_batches)
    assert end.batch > 1
    assert not shorter.find(ParamScheduler).describe_new_length(shorter, end)


def on_a_plateau(*callbacks: Callback) -> Learner:
    scores = [0.5, 0.6, 0.6, 0.5, 0.7, 0.1, 0.1, 0.1]

    def put(learner: Learner) -> None:
        learner.find(Recorder).rows[-1]["val_accuracy"] = scores[learner.progress.epoch]

    scheduler = ParamScheduler({"lr": constant(1.0)}, plateau=(2, 0.5))
    return make_learner(Recorder(), scheduler, on("after_epoch", put, 1), *callbacks, epochs=len(scores))


def test_on_a_plateau_the_rate_falls_also_after_a_resume() -> None:
    plain = on_a_plateau()
    seen = rates(plain)
    falls = [1.0] * 4 + [0.5] * 3 + [0.25]
    assert seen == [rate for rate in falls for _ in range(len(seen) // 8)]

    def stop(learner: Learner) -> None:
        if learner.training and learner.progress.epoch == 5 and learner.progress.position.batch == 1:
            raise CancelFit

    stopped = on_a_plateau(on("after_batch", stop))
    first = rates(stopped)
    resumed = on_a_plateau()
    assert first + rates(resumed, resumed.restore(stopped.state())) == seen


@pytest.mark.parametrize(("samples", "limit"), [(1, None), (7, None), (7, 2), (8, 4)])
def test_the_schedule_runs_over_exact_steps(samples: int, limit: int | None) -> None:
    """Whatever the batch size leaves over and whatever limit there is, it begins and ends with the fit."""
    epochs = 3
    total = epochs * min(limit or 99, math.ceil(samples / 2))
    found = rates(scheduled(train=noise_loader(samples), epochs=epochs, limit_batches=limit))
    assert found == pytest.approx([golden_one_cycle(step, total) for step in range(total)], abs=1e-12)


def test_each_group_has_its_share_of_the_learning_rate_and_adam_its_momentum_in_betas() -> None:
    def adam(model: nn.Module) -> torch.optim.Optimizer:
        first, *others = model.parameters()
        groups: list[dict[str, Any]] = [{"params": [first], "lr_scale": 0.25}, {"params": others}]
        return torch.optim.Adam(groups, 0.1, betas=(0.9, 0.99))

    def learner() -> Learner:
        return make_learner(ParamScheduler({"lr": lin(0.6, 0.0), "momentum": lin(0.9, 0.3)}), optimizer=adam)

    expected = [0.6 - 0.1 * step for step in range(6)]
    assert rates(learner()) == pytest.approx([value * share for value in expected for share in (0.25, 1.0)])
    assert list(rates(learner(), key="betas")) == [  # type: ignore[comparison-overlap]
        (pytest.approx(0.9 - 0.1 * step), 0.99) for step in range(6) for _ in range(2)
    ]


# --- GradClip ---


def clipped_norms(max_norm: float) -> tuple[list[float], list[float]]:
    """Return the norms of all gradients before and after clipping, a step each."""
    before: list[float] = []
    after: list[float] = []

    def norm(learner: Learner) -> float:
        return math.sqrt(sum(float(p.grad.square().sum()) for p in learner.model.parameters() if p.grad is not None))

    make_learner(
        on("before_step", lambda learner: before.append(norm(learner)), -1),
        GradClip(max_norm=max_norm),
        on("before_step", lambda learner: after.append(norm(learner)), 1),
    ).fit()
    return before, after


def test_gradients_are_scaled_down_to_the_limit_and_never_up() -> None:
    free, _ = clipped_norms(1e9)
    limit = sorted(free)[1]
    before, after = clipped_norms(limit)
    assert any(norm > limit for norm in before)
    assert any(norm < limit for norm in before)
    assert after == pytest.approx([min(norm, limit) for norm in before], rel=1e-4)


def test_a_state_of_a_version_before_0_19_is_rejected() -> None:
    with pytest.raises(UserError, match=r"from a version before 0\.19\. Resume it with that version, or start"):
        ParamScheduler({"lr": constant(1.0)}).load_state_dict({})
