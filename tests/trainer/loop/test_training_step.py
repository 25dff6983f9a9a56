"""Steps that replace the usual training step, and iterables in place of loaders."""

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import assert_same, make_learner, noise_loader, on, raises, sgd, tiny_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from augment.pipeline.batch import Batch
from augment.support.errors import UserError
from trainer.callbacks.ema import EMA
from trainer.callbacks.optimizer_steps import GradClip, ParamScheduler
from trainer.callbacks.recorder import Recorder
from trainer.loop import iterable
from trainer.loop.callback import Callback, CancelFit
from trainer.loop.learner import Learner
from trainer.loop.objective import Objective
from trainer.loop.settings import LoopSettings

PAGE = Path(__file__).parents[3] / "docs/training_step.md"
SAMPLES = [(torch.full((3, 8, 8), n / 8), n % 3) for n in range(7)]


def test_the_examples_of_the_page_run() -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S))
    assert code.count("learner.fit()") == 4
    exec(code, {})


def usual(learner: Learner, batch: Batch) -> Tensor:
    return learner.loss_function(learner.model(batch.images), batch.targets)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_that_does_the_usual_changes_nothing(accumulate: int) -> None:
    ours, theirs = (
        make_learner(Recorder(), GradClip(max_norm=0.01), train=noise_loader(5), accumulate=accumulate, training_step=s)
        for s in (usual, None)
    )
    for learner in (ours, theirs):
        learner.fit()
    assert all(map(torch.equal, ours.model.state_dict().values(), theirs.model.state_dict().values()))
    losses = [[row["train_loss"] for row in learner.find(Recorder).rows] for learner in (ours, theirs)]
    assert losses[0] == losses[1]


class Stop(Callback):
    """Ends the first fit in its second epoch."""

    def after_batch(self, learner: Learner) -> None:
        if learner.training and learner.progress.batches_done == 4:
            raise CancelFit


def two_optimizers(*callbacks: Callback, **options: Any) -> Learner:
    model = nn.ModuleDict({"one": tiny_model(), "two": tiny_model(seed=1)})

    def one(learner: Learner, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model["one"](batch.images), batch.targets)

    def two(learner: Learner, batch: Batch) -> Tensor:  # its loss depends on both
        return (model["one"](batch.images) - model["two"](batch.images)).square().mean()

    return make_learner(
        Recorder(),
        ParamScheduler({"lr": lambda position: 0.1 - 0.05 * position}),
        EMA(),
        GradClip(max_norm=0.5),
        *callbacks,
        model=model,
        train=noise_loader(5),
        val=(),
        optimizer={name: lambda model, name=name: sgd(model[name]) for name in ("one", "two")},
        training_step={"one": one, "two": two},
        validate_every=9,
        **options,
    )


def without_validation(learner: Learner) -> Learner:
    learner.val_loader = None
    return learner


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_optimizers_resume_exactly(accumulate: int) -> None:
    whole = without_validation(two_optimizers(accumulate=accumulate))
    whole.fit()
    cut = without_validation(two_optimizers(Stop(), accumulate=accumulate))
    cut.fit()
    state = cut.state()
    assert state.position == (1, 1)
    assert bool(state.gradients) == (accumulate > 1)
    resumed = without_validation(two_optimizers(accumulate=accumulate))
    resumed.fit(resumed.restore(state))
    assert all(map(torch.equal, resumed.model.state_dict().values(), whole.model.state_dict().values()))
    groups = [group["lr"] for optimizer in whole.optimizers.values() for group in optimizer.param_groups]
    assert len(set(groups)) == 1
    assert whole.find(EMA)._steps == 2 * -(-3 // accumulate)


def test_each_step_trains_only_its_own_parameters() -> None:
    learner = without_validation(two_optimizers())
    alone = make_learner(
        ParamScheduler({"lr": lambda position: 0.1 - 0.05 * position}), GradClip(max_norm=0.5), train=noise_loader(5)
    )
    learner.fit()
    alone.val_loader = None
    alone.fit()
    ours, theirs = learner.model.get_submodule("one"), alone.model
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))


def test_names_of_steps_and_optimizers_agree() -> None:
    with pytest.raises(UserError, match="training_step"):
        make_learner(optimizer={"one": sgd}, training_step=usual)


class Stream(IterableDataset[Any]):
    """Samples without a length."""

    def __iter__(self) -> Iterator[Any]:
        yield from SAMPLES


@pytest.mark.parametrize("data", [SAMPLES, Stream()], ids=["sized", "unsized"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_data_loader_trains(data: Any, accumulate: int) -> None:
    recorder, seen = Recorder(), []

    class Look(Callback):
        def after_step(self, learner: Learner) -> None:
            seen.append(learner.progress.batches_done - 1)

    learner = Learner(
        tiny_model(),
        DataLoader(data, 2),
        DataLoader(data, 4),
        LoopSettings(epochs=2, device="cpu", accumulate=accumulate),
        callbacks=[recorder, Look()],
    )
    learner.fit()
    assert [row["epoch"] for row in recorder.rows] == [0, 1]
    assert {"train_accuracy", "val_accuracy"} <= recorder.rows[-1].keys()
    assert learner.progress.position == (2, 0)
    assert seen == ([*range(8)] if accumulate == 1 else [1, 3, 5, 7])


def weights_after(data: Any, accumulate: int, *, epochs: int = 2, at: int | None = None) -> Any:
    """Train; if `at` is given, interrupt the fit after so many batches, and resume it."""

    def fit(*callbacks: Callback, state: Any = None) -> Learner:
        learner = Learner(
            tiny_model(),
            data() if callable(data) else data,
            settings=LoopSettings(epochs=epochs, device="cpu", accumulate=accumulate),
            optimizer=sgd,
            callbacks=callbacks,
        )
        learner.fit() if state is None else learner.fit(learner.restore(state))
        return learner

    if at is None:
        return fit().model.state_dict()
    return fit(state=fit(on("after_batch", raises(CancelFit, at - 1), 100)).state()).model.state_dict()


def test_the_last_step_of_data_without_a_length_is_made() -> None:
    for accumulate in (3, 9):
        sized, unsized = (weights_after(DataLoader(data, 2), accumulate) for data in (SAMPLES, Stream()))
        assert_same(unsized, sized)


class Overstated(Stream):
    """Samples with too large a length, such as a filtered dataset."""

    def __len__(self) -> int:
        return len(SAMPLES) + 5


def test_the_last_step_of_data_with_too_large_a_length_is_made() -> None:
    for accumulate in (3, 9):
        expected = weights_after(DataLoader(SAMPLES, 2), accumulate)
        assert_same(weights_after(DataLoader(Overstated(), 2), accumulate), expected)


def test_a_fit_of_some_steps_resumes_with_data_without_a_length() -> None:
    """The new learner knows how many batches an epoch has."""

    def learner_of(*callbacks: Callback) -> Learner:
        settings = LoopSettings(steps=6, accumulate=3, device="cpu")
        return Learner(tiny_model(), DataLoader(Stream(), 2), settings=settings, optimizer=sgd, callbacks=callbacks)

    stopped = learner_of(on("after_batch", raises(CancelFit, 5), 100))
    stopped.fit()
    steps: list[int] = []
    resumed = learner_of(on("after_step", lambda learner: steps.append(learner.progress.batches_done)))
    resumed.fit(resumed.restore(stopped.state()))
    assert steps == [7, 8, 11, 12]


def test_batches_of_different_sizes_count_by_their_images() -> None:
    images, targets = torch.randn(8, 3, 4, 4), torch.arange(8) % 3
    # A batch norm sees each batch alone, so the model has none.
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))

    def trained(sizes: list[int]) -> Any:
        batches = list(zip(images.split(sizes), targets.split(sizes), strict=True))
        settings = LoopSettings(epochs=1, device="cpu", accumulate=len(sizes))
        learner = Learner(deepcopy(model), batches, settings=settings, optimizer=sgd)
        learner.fit()
        return learner.model.state_dict()

    whole, uneven = trained([8]), trained([5, 1, 2])
    for name, value in whole.items():
        torch.testing.assert_close(uneven[name], value)


@pytest.mark.parametrize(
    ("at", "sizes"),
    [(3, [1, 3, 2, 1, 2, 4, 1]), (6, [1, 3, 2, 1, 2, 4, 1]), *((at, [2] * 7) for at in (1, 2, 4, 5))],
)
def test_a_list_of_batches_resumes_between_steps_or_with_equal_batches(at: int, sizes: list[int]) -> None:
    """The list starts again, so the rest of the epoch has its first batches."""
    images, targets = torch.randn(14, 3, 8, 8), torch.arange(14) % 3
    batches = list(zip(images.split(sizes), targets.split(sizes), strict=True))
    expected = weights_after([batches[n] for n in (*range(at), *range(7 - at))], 3, epochs=1)
    assert_same(weights_after(lambda: batches, 3, epochs=1, at=at), expected)


def test_iterables_of_all_ranks_count_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterable, "current", lambda: SimpleNamespace(size=4))
    (batch,) = iterable.IterableLoader([(torch.zeros(2, 3, 8, 8), torch.zeros(2))], torch.device("cpu"))
    assert batch.share == 0.25


@pytest.mark.parametrize("given", [[torch.zeros(2, 3, 8, 8)], [{"images": 1}], [(1, 2)], (batch for batch in ())])
def test_other_batches_fail(given: Any) -> None:
    learner = Learner(tiny_model(), given, settings=LoopSettings(epochs=1, device="cpu"))
    with pytest.raises(UserError, match="data: the iterable"):
        learner.fit()


def test_metrics_need_a_tensor() -> None:
    """Own losses may use other targets."""
    data = [(torch.zeros(2, 3, 8, 8), {"class": torch.zeros(2, dtype=torch.long)})]
    objective = Objective(loss_function=lambda outputs, targets: outputs.mean() + len(targets))
    settings = LoopSettings(epochs=1, device="cpu")
    Learner(tiny_model(), data, settings=settings, objective=objective).fit()
    learner = Learner(tiny_model(), data, settings=settings, objective=objective, callbacks=[Recorder()])
    with pytest.raises(UserError, match="the targets are a dict"):
        learner.fit()


def test_a_step_without_a_loss_fails() -> None:
    with pytest.raises(UserError, match="training_step"):
        make_learner(training_step=lambda learner, batch: None).fit()


def test_a_schedule_without_a_length_fails() -> None:
    schedule = ParamScheduler({"lr": lambda position: 0.1})
    settings = LoopSettings(epochs=2, device="cpu")
    learner = Learner(tiny_model(), DataLoader(Stream(), 2), settings=settings, callbacks=[schedule])
    with pytest.raises(UserError, match="limit_batches"):
        learner.fit()


@pytest.mark.parametrize("task", ["regress", "multilabel"])
def test_a_task_has_its_own_loss(task: str) -> None:
    """Cross entropy would be 0 for a single output."""
    losses: list[float] = []
    learner = Learner(
        nn.Sequential(nn.Flatten(), nn.Linear(12, 1)),
        [(torch.rand(8, 3, 2, 2), torch.rand(8, 1))],
        settings=LoopSettings(epochs=1, device="cpu"),
        objective=Objective(task=task),
        callbacks=[on("after_step", lambda learner: losses.append(float(learner.loss.detach())))],
    )
    learner.fit()
    assert min(losses) > 0


@pytest.mark.parametrize(("data", "key"), [([], "train_loader"), ([(torch.zeros(2, 3, 2, 2).byte(), None)], "uint8")])
def test_data_that_cannot_train_is_named(data: list[object], key: str) -> None:
    with pytest.raises(UserError) as caught:
        Learner(tiny_model(), data, settings=LoopSettings(epochs=1, device="cpu")).fit()
    assert key in str(caught.value)
