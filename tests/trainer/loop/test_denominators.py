"""Means of losses over several batches: gradients and scores do not depend on how the images are split into batches."""

from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

import pytest
import torch
from fakes import CPU, MemoryLoader, make_learner, on, raises
from graphed import recording
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import CancelStep
from trainer.loop.cuda_graph_runner import RankedRunner
from trainer.run.config.fit import parse_fit
from trainer.tasks.loss import LOSSES, declared, weight_of
from trainer.tasks.registry import known_tasks, task_named
from trainer.tasks.task import Task

IMAGES = 22  # in batches of 8, 8 and 6
GENERATOR = torch.Generator().manual_seed(0)
PIXELS = torch.randn(IMAGES, 3, 4, 4, generator=GENERATOR)
CLASSES = torch.tensor([0] * 14 + [1] * 5 + [2] * 3)
MIXED = F.one_hot(CLASSES, 3) * 0.7 + F.one_hot(CLASSES.roll(5), 3) * 0.3
LABELS = (torch.rand(IMAGES, 3, generator=GENERATOR) < 0.3).float()
POINTS = torch.randn(IMAGES, 3, 3, generator=GENERATOR)
POINTS[..., 2] = (torch.arange(IMAGES)[:, None] % 4 >= torch.arange(3)).float() * (torch.arange(IMAGES)[:, None] > 7)
MASKS = torch.randint(0, 3, (IMAGES, 4, 4), generator=GENERATOR)
MASKS[torch.rand(IMAGES, 4, 4, generator=GENERATOR) < 0.4] = 255
WEIGHTS = torch.tensor([0.3, 1.5, 4.0])

TARGETS: dict[str, list[Tensor]] = {
    "classify": [CLASSES, MIXED],
    "multilabel": [LABELS, LABELS * 0.7 + LABELS.roll(5, 0) * 0.3],
    "regress": [torch.randn(IMAGES, 3, generator=GENERATOR)],
    "keypoints": [POINTS],
    "segment": [MASKS],
}

Case = tuple[str, str | None, float, bool, Tensor]


def cases() -> list[Any]:
    found = []
    for name, every in TARGETS.items():
        task = known_tasks()[name]
        for loss in (None, *declared(LOSSES, task.lineage), *(["cross_entropy+focal"] if name == "classify" else [])):
            for smoothing in (0.0, 0.1) if "label_smoothing" in task.loss_settings else (0.0,):
                for weighted in (False, True) if task.loss_type.usual else (False,):
                    for number, targets in enumerate(every):
                        if (name, loss) == ("classify", "asymmetric") and number:
                            continue  # it takes only class indices
                        if name == "segment" and smoothing and loss != "cross_entropy":
                            continue
                        label = f"{name}-{loss}-{smoothing}-{'weights' if weighted else 'alike'}-{number}"
                        # Smoothing and weights are tried together; each by itself takes as long again.
                        marks = [pytest.mark.long] * (name == "classify" and bool(smoothing) != weighted)
                        found.append(pytest.param((name, loss, smoothing, weighted, targets), id=label, marks=marks))
    return found


class Prepared(MemoryLoader):
    classes = ("a", "b", "c")


def with_targets(task: Task[Any]) -> Task[Any]:
    """Return a copy of a task that takes targets as they are, instead of in pixels."""
    task = copy(task)
    task.targets_of = lambda batch: batch.targets  # type: ignore[method-assign]
    task.frames_of = lambda batch: torch.eye(3).expand(len(batch.targets), 3, 3)  # type: ignore[method-assign]
    return task


def network(task: str) -> nn.Module:
    torch.manual_seed(1)
    if task == "segment":
        return nn.Conv2d(3, 3, 3, padding=1)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, 6 if task == "keypoints" else 3))


def learner_of(case: Case, batch_size: int, *callbacks: Any, **options: Any) -> Any:
    name, loss, smoothing, weighted, targets = case
    task = with_targets(task_named(name))
    fit = parse_fit({"loss": loss, "label_smoothing": smoothing})
    losses = task.make_losses(fit, nn.Identity(), CPU, WEIGHTS if weighted else None)
    loader = Prepared(PIXELS, targets, batch_size, shuffle=False)
    return make_learner(
        *callbacks,
        train=loader,
        val=Prepared(PIXELS, CLASSES if name == "classify" else targets, batch_size, shuffle=False),
        model=network(name),
        task=task,
        loss_function=losses[0],
        val_loss_function=losses[1],
        **{"epochs": 1} | options,
    )


def gradients(case: Case, batch_size: int, accumulate: int, cancelled: int = 0, **options: Any) -> Tensor:
    """Return the gradients of the fit's first step that is not cancelled."""
    found: list[Tensor] = []

    def keep(learner: Any) -> None:
        found.append(torch.cat([p.grad.flatten().clone() for p in learner.model.parameters()]))

    cancel = [on("before_step", raises(CancelStep, at)) for at in range(cancelled)]
    learner_of(case, batch_size, *cancel, on("before_step", keep), accumulate=accumulate, **options).fit()
    return found[0]


@pytest.mark.parametrize("case", cases())
def test_accumulated_gradients_equal_one_large_batch(case: Case) -> None:
    expected = gradients(case, IMAGES, 1)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(gradients(case, 8, 4), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", cases())
def test_losses_of_a_pass_do_not_depend_on_the_batch_size(case: Case) -> None:
    """Nor does the training loss, as long as the weights stay the same."""
    rows = []
    for batch_size in (IMAGES, 8, 3):
        recorder = Recorder()
        stay: Callable[[nn.Module], Any] = lambda model: torch.optim.SGD(model.parameters(), lr=0.0)  # noqa: E731
        learner_of(case, batch_size, recorder, optimizer=stay).fit()
        rows.append([recorder.rows[0]["train_loss"], recorder.rows[0]["val_loss"]])
    for row in rows[1:]:
        assert row == pytest.approx(rows[0], rel=1e-6)


WEIGHTED: Case = ("classify", None, 0.1, True, CLASSES)


def test_a_cancelled_step_adds_its_gradients_to_the_next_step() -> None:
    """The two steps together weigh each image by its class."""
    found = gradients(("classify", None, 0.0, True, CLASSES), 4, 3, cancelled=1)  # two steps, of 12 and 10 images
    each = WEIGHTS[CLASSES]
    model = network("classify")
    values = F.cross_entropy(model(PIXELS), CLASSES, reduction="none") * each
    share = torch.cat([torch.full((12,), 1 / 12), torch.full((10,), 1 / 10)])
    loss = 2 * (values * share).sum() / (each * share).sum()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", [WEIGHTED, ("keypoints", None, 0.0, False, POINTS)], ids=["weights", "points"])
def test_a_fit_that_is_resumed_within_a_step_equals_one_without_a_break(case: Case) -> None:
    states: list[Any] = []
    note = on("after_batch", lambda learner: states.append(deepcopy(learner.state())) if learner.training else None)
    whole = learner_of(case, 8, note, accumulate=3)
    whole.fit()
    resumed = learner_of(case, 8, accumulate=3)
    resumed.fit(resumed.restore(states[1]))
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("case", [WEIGHTED, ("keypoints", None, 0.0, False, POINTS)], ids=["weights", "points"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("runner", [RankedRunner, recording(warm_up=1)], ids=["ranks", "recorded"])
def test_every_runner_uses_the_same_definition(case: Case, runner: Any, precision: str) -> None:
    if precision == "fp16":
        found = [gradients(case, *how, runner=runner, precision=precision) for how in ((8, 4), (IMAGES, 1))]
        torch.testing.assert_close(*found, rtol=1e-2, atol=1e-3)
        return
    torch.testing.assert_close(gradients(case, 8, 4, runner=runner), gradients(case, IMAGES, 1), rtol=1e-6, atol=1e-6)


def test_an_own_loss_counts_by_images() -> None:
    """A plain function returns a mean; a method `weight_of` declares another denominator."""

    class ByPixels:
        def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (F.cross_entropy(outputs, targets, reduction="none") * (1 + targets)).sum() / self.weight_of(targets)

        def weight_of(self, targets: Tensor) -> Tensor:
            return (1 + targets).sum().float()

    for loss in (lambda outputs, targets: F.cross_entropy(outputs, targets), ByPixels()):
        found = []
        for batch_size, accumulate in ((8, 4), (IMAGES, 1)):
            grads: list[Tensor] = []
            keep = on("before_step", lambda learner, to=grads: to.append(learner.model[1].weight.grad.clone()))
            train = Prepared(PIXELS, CLASSES, batch_size, shuffle=False)
            options = {"epochs": 1, "accumulate": accumulate, "model": network("classify"), "loss_function": loss}
            make_learner(keep, train=train, **options).fit()
            found.append(grads[0])
        torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "targets", "loss"),
    [
        ("classify", CLASSES, nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.1)),
        ("segment", MASKS, nn.CrossEntropyLoss(ignore_index=255)),
        ("segment", MASKS.where(MASKS < 255, -1), nn.CrossEntropyLoss(ignore_index=-1)),
        ("segment", MASKS, nn.CrossEntropyLoss(WEIGHTS, ignore_index=255)),
    ],
)
def test_cross_entropy_of_pytorch_counts_by_its_weights(name: str, targets: Tensor, loss: nn.Module) -> None:
    found = []
    for batch_size, accumulate in ((8, 4), (IMAGES, 1)):
        recorder, data = Recorder(), Prepared(PIXELS, targets, batch_size, shuffle=False)
        model = network(name)
        stay: Callable[[nn.Module], Any] = lambda model: torch.optim.SGD(model.parameters(), lr=0.0)  # noqa: E731
        grads: list[Tensor] = []
        keep = on("before_step", lambda learner, to=grads: to.append(next(learner.model.parameters()).grad.clone()))
        options = {"epochs": 1, "accumulate": accumulate, "model": model, "loss_function": loss, "optimizer": stay}
        task = with_targets(task_named(name))
        make_learner(keep, recorder, train=data, val=data, task=task, val_loss_function=loss, **options).fit()
        losses = torch.tensor([recorder.rows[0]["train_loss"], recorder.rows[0]["val_loss"]])
        found.append((grads[0], losses))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def test_a_subclass_of_cross_entropy_counts_by_images() -> None:
    class Focal(nn.CrossEntropyLoss):
        """A loss with class weights whose mean is over the images."""

    assert weight_of(Focal(WEIGHTS), CLASSES) == IMAGES
