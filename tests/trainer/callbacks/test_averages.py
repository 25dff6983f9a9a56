"""EMA, which validation scores and best.pt keeps; and batch norms with the statistics of the epoch's batches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import assert_same, make_learner, noise_loader, on, raises, tiny_model
from graphed import recording
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from trainer.callbacks import optimizer_steps
from trainer.callbacks.checkpoint import Checkpoint, best_of
from trainer.callbacks.ema import EMA
from trainer.callbacks.optimizer_steps import FreshStatistics
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, CancelFit
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load
from trainer.loop.learner import Learner
from trainer.loop.settings import LoopSettings

# --- EMA ---


def test_unit_vectors_and_infinite_masks_are_not_averaged() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 3))
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0]))

        def forward(self, images: Tensor) -> Tensor:
            output: Tensor = self.inner(images.mean(dim=2).flatten(1)) + self.get_buffer("mask").exp()
            return output

    data = [(torch.randn(4, 3, 4, 4, generator=torch.manual_seed(n)), torch.arange(4) % 3) for n in range(6)]
    settings = LoopSettings(epochs=2, device="cpu")
    learner = Learner(Masked(), data, data, settings, callbacks=[Recorder(), EMA(decay=0.7)])
    learner.fit()
    state = learner.evaluated_state()
    assert state["mask"].tolist() == [0, -torch.inf, 0]
    norms = [vector.norm().item() for name, vector in state.items() if name.endswith(("._u", "._v"))]
    assert norms == pytest.approx([1, 1])


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
    best = int(best_of(learner)[1]["epoch"])
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


# --- fresh statistics ---


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


@pytest.mark.parametrize(("momentum", "recorded"), [(0.1, False), (0.01, True)])
def test_each_image_of_an_epoch_counts_the_same(momentum: float, recorded: bool) -> None:
    """Two epochs of 2, 2 and 1 images."""
    runner = recording(warm_up=1) if recorded else None
    batches, used = fit(FreshStatistics(), momentum=momentum, runner=runner)
    for epoch in (0, 1):
        torch.testing.assert_close(used[epoch], mean([2, 2, 1], batches[3 * epoch : 3 * epoch + 3]))


@pytest.mark.parametrize("sizes_are_known", [True, False])
def test_each_image_of_an_iterable_counts_the_same(sizes_are_known: bool) -> None:
    """A DataLoader states the sizes of its batches. A list of batches does not."""
    noise = noise_loader()
    train: Any = DataLoader(TensorDataset(noise.images, noise.targets), batch_size=2)
    batches, used = fit(FreshStatistics(), train=train if sizes_are_known else list(train))
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
    monkeypatch.setattr(optimizer_steps, "_FEW_BATCHES", 3)
    (_, plain), (_, few), (_, always) = (
        fit(*some) for some in ([], [FreshStatistics()], [FreshStatistics(always=True)])
    )
    assert_same(few, plain)
    assert not torch.equal(always[0][0], plain[0][0])


def test_a_norm_that_a_batch_updates_twice_has_the_mean_over_the_images_too() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head, self.unused = nn.BatchNorm2d(3), nn.LazyLinear(3), nn.BatchNorm2d(3)

        def forward(self, images: Tensor) -> Tensor:
            both = self.norm(images) + self.norm(images)
            output: Tensor = self.head(both.mean(dim=(2, 3)))
            return output

    data = [(torch.randn(4, 3, 8, 8, generator=torch.manual_seed(n)) + n, torch.zeros(4).long()) for n in range(3)]
    model = Twice()
    model(data[0][0])
    model.norm.reset_running_stats()
    Learner(model, data, settings=LoopSettings(epochs=1, device="cpu"), callbacks=[FreshStatistics()]).fit()
    means = torch.stack([images.mean(dim=(0, 2, 3)) for images, _ in data])
    torch.testing.assert_close(model.norm.running_mean, means.mean(dim=0))
    assert_same(model.unused.state_dict(), nn.BatchNorm2d(3).state_dict())


def test_a_step_that_an_earlier_version_began_has_the_usual_moving_average() -> None:
    def drop_counters(learner: Learner) -> None:
        before = learner.find(FreshStatistics)._before
        for name in [name for name in before if name.endswith("num_batches_tracked")]:
            del before[name]

    (_, found), (_, plain) = fit(FreshStatistics(), on("before_batch", drop_counters), accumulate=2), fit(accumulate=2)
    torch.testing.assert_close(found[0], plain[0])


@pytest.mark.parametrize("batch", [0, 1, 4])
def test_a_resumed_fit_equals_one_that_was_not_interrupted(batch: int) -> None:
    """Three epochs of 3 + 2 batches, in steps of 2 and 1 batches."""

    def learner(*callbacks: Any) -> Learner:
        return make_learner(Recorder(), FreshStatistics(), EMA(), *callbacks, accumulate=2, epochs=3)

    whole = learner()
    whole.fit()
    first = learner(on("after_batch", raises(CancelFit, batch)))
    first.fit()
    second = learner()
    second.fit(second.restore(first.state()))
    assert_same(second.model.state_dict(), whole.model.state_dict())
    assert_same(second.find(EMA).state_dict(), whole.find(EMA).state_dict())
