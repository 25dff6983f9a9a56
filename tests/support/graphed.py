"""What tests of recorded work share: backends that stand in for a GPU, and fits that are compared with eager ones."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, cast

import pytest
import torch
from fakes import CLASSES, CPU, MemoryLoader, make_learner, noise_loader, on, raises
from torch import Tensor, nn

from trainer.callbacks.optimizer_steps import FreshStatistics, GradClip, ParamScheduler
from trainer.loop.batch_runner import Runner
from trainer.loop.callback import CancelStep
from trainer.loop.cuda_graph_runner import GraphRunner
from trainer.loop.cuda_graphs import ATTEMPTS, WARM_UP, CudaBackend, Graphs, Tensors, UncapturableError
from trainer.loop.learner import Learner
from trainer.loop.objective import recordable
from trainer.optim.schedules import one_cycle
from trainer.tasks.loss import ClassLoss

CUDA = torch.device("cuda")


def recorded(work: Callable[[], object]) -> Callable[[], None]:
    """Record work on the GPU, which has run before; return a function that replays it.

    It is recorded again if DALI frees a batch of an earlier test meanwhile.
    """

    def without_results() -> Tensors:
        work()
        return ()

    backend = CudaBackend(CUDA)
    for _ in range(ATTEMPTS):
        with suppress(UncapturableError):
            return backend.record(without_results, "step")[0]
    raise AssertionError("every recording was disturbed")


class FakeBackend:
    """Records by remembering the work, which a replay executes.

    `calls` are what was asked, and `fails` what fails.
    """

    def __init__(self, fails: Callable[[], bool] = lambda: False) -> None:
        self.calls: list[str] = []
        self.memories: list[str] = []
        self.fails = fails

    def run_on_stream(self, work: Callable[[], Tensors]) -> Tensors:
        self.calls.append("eager")
        return work()

    def wait(self) -> None:
        pass

    def record(self, work: Callable[[], Tensors], memory: str) -> tuple[Callable[[], None], Tensors]:
        self.calls.append("record")
        self.memories.append(memory)
        if self.fails():
            raise UncapturableError("it waits")
        results: list[Tensor] = []

        def replay() -> None:
            self.calls.append("replay")
            results[:] = work()

        return replay, cast(Tensors, results)


class SharingBackend(FakeBackend):
    """Its replays write over the results of all others of their memory, as graphs in one pool may."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, list[Tensors]] = {}

    def record(self, work: Callable[[], Tensors], memory: str) -> tuple[Callable[[], None], Tensors]:
        replay, results = super().record(work, memory)
        others = self.results.setdefault(memory, [])
        others.append(results)

        def overwrite() -> None:
            with torch.inference_mode():  # those of validation may be changed only here
                for value in (value for theirs in others for value in theirs):
                    value.fill_(math.nan)
            replay()

        return overwrite, results


Make = Callable[[nn.Module], torch.optim.Optimizer]
How = Callable[[Learner], Runner]


def recording(backend: FakeBackend | None = None, warm_up: int = WARM_UP) -> How:
    """Return what makes a runner that records, with a stand-in for the GPU unless told."""
    return lambda learner: GraphRunner(learner, Graphs(backend or FakeBackend(), warm_up))


def on_gpu(learner: Learner) -> Runner:
    """Make the runner that records on a GPU."""
    return GraphRunner(learner, Graphs(CudaBackend(CUDA)))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01, fused=fused(model))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 0.01, fused=fused(model))


def fused(model: nn.Module) -> bool | None:
    """Return True for a model on a GPU, as `trainer.optim.optimizers.make_optimizer` does; else PyTorch's choice."""
    return next(model.parameters()).is_cuda or None


def lamb(model: nn.Module) -> torch.optim.Optimizer:
    from timm.optim import Lamb

    return cast(torch.optim.Optimizer, Lamb(model.parameters(), lr=0.01))


def rmsprop(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(model.parameters(), 0.01, centered=True)


class Soft(MemoryLoader):
    """Mixes targets."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            shares = nn.functional.one_hot(batch.targets, len(CLASSES)).float()
            yield type(batch)(batch.images, shares.lerp(shares.roll(1, 0), 0.3), batch.indices)


def losses(how: How, device: torch.device = CPU, **options: Any) -> tuple[list[float], Learner]:
    """Return the losses of 20 training batches of 2, 2, 2 and 1 images, and of the validation after each four."""
    found: list[Tensor] = []
    soft = options.pop("soft", False)
    callbacks = [on("after_batch", lambda learner: found.append(learner.loss.detach().clone()))]
    callbacks += options.pop("callbacks", list)()
    train, val = noise_loader(7, device=device), noise_loader(5, shuffle=False, device=device)
    if soft:
        train = Soft(train.images, train.targets)
    defaults = {"epochs": 5, "optimizer": sgd, "device": device}
    schedule = ParamScheduler({"lr": one_cycle(0.1, start=0.01, end=0.0)})
    learner = make_learner(schedule, *callbacks, train=train, val=val, runner=how, **(defaults | options))
    learner.fit()
    return [loss.item() for loss in found], learner


def compare(how: How, rel: float = 1e-5, **options: Any) -> Learner:
    eager, _ = losses(Runner, **options)
    graphed, learner = losses(how, **options)
    assert len(eager) == 5 * (4 + 3)
    assert len(set(eager)) > 20
    assert graphed == pytest.approx(eager, rel=rel, abs=1e-6)
    return learner


@cache
def class_weights(device: torch.device) -> Tensor:
    return torch.linspace(0.5, 1.5, len(CLASSES), device=device)


def weighed(outputs: Tensor, targets: Tensor) -> Tensor:
    return ClassLoss(0.1, class_weights(outputs.device))(outputs, targets)


@recordable
def mirrored(learner: Learner, batch: Any) -> Tensor:
    """Train on the mirrored images, with another loss than the task's."""
    return nn.functional.cross_entropy(learner.model(batch.images.flip(-1)), batch.targets, label_smoothing=0.3)


CASES = {
    "training step": {"training_step": mirrored},
    "sgd": {"optimizer": sgd},
    "adamw": {"optimizer": adamw},
    "timm": {"optimizer": lamb},
    "accumulate": {"accumulate": 2},
    "accumulate_3": {"accumulate": 3},
    "soft": {"soft": True},
    "statistics": {"callbacks": lambda: [FreshStatistics()]},
    "smoothing": {"loss_function": nn.CrossEntropyLoss(label_smoothing=0.1)},
    "weights": {"loss_function": weighed},
}


def with_clip(options: dict[str, Any]) -> dict[str, Any]:
    return options | {"callbacks": lambda: [GradClip(0.05), on("before_step", raises(CancelStep, at=6))]}
