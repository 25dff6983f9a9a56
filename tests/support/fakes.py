"""Stand-ins for the tests of the trainer: a loader in memory, tiny models, callbacks made of one function, wandb."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, replace
from importlib.machinery import ModuleSpec
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from augment.params import settings
from augment.pipeline.batch import Batch
from trainer.loop.callback import EVENTS, Callback, Phase, RunDescription
from trainer.loop.learner import Learner
from trainer.loop.objective import Objective
from trainer.loop.settings import LoopSettings
from trainer.optim.schedules import Schedule

CLASSES = ("ant", "bee", "cat")
CPU = torch.device("cpu")

Action = Callable[[Learner], object]
T = TypeVar("T", bound=Callable[..., None])


def needs_gpu(test: T) -> T:
    """Mark a test that runs where there is a GPU."""
    marked: T = pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")(test))
    return marked


@contextmanager
def reject_waiting() -> Iterator[None]:
    """Raise where work on the GPU is waited for."""
    try:
        with warnings.catch_warnings():
            # Said once in a process. As an error it is raised after the mode is set, which nobody would take back.
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class MemoryLoader:
    """Behaves like `augment.pipeline.loader.Loader`, with images in memory, and remembers what was fetched of it.

    Attributes:
        fetched: (epoch, number of the batch) of every batch that was handed out.
    """

    plan = None

    def __init__(self, images: Tensor, targets: Tensor, batch_size: int = 2, *, shuffle: bool = True) -> None:
        self.images, self.targets, self.batch_size, self.shuffle = images, targets, batch_size, shuffle
        self.fetched: list[tuple[int, int]] = []
        self._consumed = 0
        self._resuming = False

    def __len__(self) -> int:
        return -(-len(self.targets) // self.batch_size)

    def batches_in(self, epoch: int) -> int:
        return len(self)

    def images_in(self, epoch: int, first: int, batches: int) -> int:
        return min(len(self.targets) - first * self.batch_size, batches * self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        if self._consumed % len(self) and not self._resuming:
            self._consumed += len(self) - self._consumed % len(self)
        self._resuming = False
        epoch, first = divmod(self._consumed, len(self))
        for number in range(first, len(self)):
            indices = self._order(epoch)[number * self.batch_size : (number + 1) * self.batch_size]
            self._consumed += 1
            self.fetched.append((epoch, number))
            yield Batch(self.images[indices], self.targets[indices], indices.to(self.images.device))

    def to(self, device: str) -> "MemoryLoader":
        self.images, self.targets = self.images.to(device), self.targets.to(device)
        return self

    def prepare(self) -> None:
        pass

    def end_pass(self) -> None:
        self._resuming = False

    def state_dict(self) -> dict[str, Any]:
        return {"consumed": self._consumed}

    def load_state_dict(self, state: dict[str, Any], of_ranks: Sequence[dict[str, Any]] = ()) -> None:
        self._consumed, self._resuming = state["consumed"], True

    def _order(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(len(self.targets), device=self.targets.device)
        # Not torch's generator, which is that of the model's dropout.
        return torch.as_tensor(np.random.default_rng(epoch).permutation(len(self.targets)), device=self.targets.device)


def noise_loader(samples: int = 5, *, shuffle: bool = True, device: torch.device = CPU) -> MemoryLoader:
    """Noise of 4 x 4 px and three classes: the same images for the same number of samples."""
    generator = torch.Generator().manual_seed(samples)
    images = torch.randn(samples, 3, 4, 4, generator=generator)
    targets = torch.randint(len(CLASSES), (samples,), generator=generator)
    return MemoryLoader(images.to(device), targets.to(device), shuffle=shuffle)


def logits_loader(logits: Sequence[Sequence[float]], targets: Sequence[int], batch_size: int = 2) -> MemoryLoader:
    """Images of one pixel, which `Logits` hands on as its output, in the order given."""
    images = torch.tensor(logits, dtype=torch.float32)[:, :, None, None]
    return MemoryLoader(images, torch.tensor(targets), batch_size, shuffle=False)


class Logits(nn.Module):
    """Its output is the image of one pixel, times a weight of 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) * self.weight


def tiny_model(*, dropout: float = 0.0, seed: int = 0) -> nn.Sequential:
    """A network of 68 values, with batch normalization and, if wanted, dropout."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 4, 2, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(4, len(CLASSES), bias=False),
    )


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def lin(start: float, end: float) -> Schedule:
    """A straight line, which is known in each step."""
    return lambda position: start + (end - start) * position


class StateAt(Callback):
    """Keeps the learner's state after a number of training batches."""

    order = Phase.SAVE

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.kept: Any = None

    def after_batch(self, learner: Learner) -> None:
        if learner.training and self.kept is None and learner.progress.batches_done == self.batches:
            learner.after_this_batch(self._keep)

    def _keep(self, learner: Learner) -> None:
        self.kept = deepcopy(learner.state())


def frozen(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer whose steps change nothing."""
    return torch.optim.SGD(model.parameters(), 0.0)


def make_learner(*callbacks: Callback, train: MemoryLoader | None = None, **options: Any) -> Learner:
    """Make a learner of small parts: 3 + 2 batches of noise, two eager epochs on the CPU; `options` change that.

    Args:
        callbacks: of the learner.
        train: training batches.
        options: settings of the loop, other arguments of the learner, `model` and `val`.
    """
    model, val = options.pop("model", None), options.pop("val", None)
    loop: dict[str, Any] = {"epochs": 2, "device": "cpu", "graph": False}
    loop |= {name: options.pop(name) for name in settings(LoopSettings) if name in options}
    loop["device"] = torch.device(loop["device"]).type
    runner = options.pop("runner", None)
    made: Any = Learner if runner is None else type("TestedLearner", (Learner,), {"make_runner": staticmethod(runner)})
    goal = {name: options.pop(name) for name in (f.name for f in fields(Objective)) if name in options}
    run = options.pop("run", None) or RunDescription()
    described = {name: options.pop(name) for name in ("folder", "classes") if name in options}
    defaults: dict[str, Any] = {"optimizer": sgd, "run": replace(run, **({"classes": CLASSES} | described))}
    learner: Learner = made(
        tiny_model() if model is None else model,
        noise_loader() if train is None else train,
        noise_loader(3, shuffle=False) if val is None else val,
        LoopSettings(**loop),
        callbacks=callbacks,
        objective=Objective(**{name: value for name, value in goal.items() if value is not None}),
        **(defaults | options),
    )
    return learner


def small_learner(*callbacks: Callback, **options: Any) -> Learner:
    """Two epochs of 2 + 1 batches."""
    return make_learner(*callbacks, train=noise_loader(4), val=noise_loader(2), **options)


def on(event: str, action: Action, order: int = 0) -> Callback:
    """Make a callback that calls a function at one event."""

    def method(self: Callback, learner: Learner) -> None:
        action(learner)

    made: Callback = type("On", (Callback,), {"order": order, event: method})()
    return made


def raises(error: BaseException | type[BaseException], at: int = 0) -> Action:
    """Make a function that raises in one of its calls, the first unless told."""
    calls = count()

    def action(learner: Learner) -> None:
        if next(calls) == at:
            raise error

    return action


def journal(events: list[str], prefix: str = "", order: int = 0) -> Callback:
    """Make a callback that writes every event down."""

    def write(event: str) -> Callable[[Callback, Learner], None]:
        return lambda self, learner: events.append(prefix + event)

    made: Callback = type("Journal", (Callback,), {"order": order, **{event: write(event) for event in EVENTS}})()
    return made


def assert_same(ours: object, theirs: object, path: str = "") -> None:
    """Compare states of any depth, tensors bit by bit, NaN equal to itself."""
    if isinstance(ours, Tensor):
        assert isinstance(theirs, Tensor), path
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{path}: {text}")
    elif isinstance(ours, Mapping):
        assert isinstance(theirs, Mapping), path
        assert ours.keys() == theirs.keys(), path
        for key, value in ours.items():
            assert_same(value, theirs[key], f"{path}.{key}")
    elif isinstance(ours, list | tuple):
        assert isinstance(theirs, list | tuple), path
        assert len(ours) == len(theirs), path
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{path}[{index}]")
    else:
        assert ours == theirs or (ours != ours and theirs != theirs), f"{path}: {ours!r} is not {theirs!r}"


class FakeWandb(ModuleType):
    """Stands for the package `wandb` in `sys.modules`; `calls` are all that was asked of it, in order."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.Settings = lambda: SimpleNamespace(base_url="https://wandb.example.org")
        self.__spec__ = ModuleSpec("wandb", None, origin="wandb/__init__.py")
        self.calls: list[tuple[str, Any]] = []

    def init(self, **options: Any) -> SimpleNamespace:
        self.calls.append(("init", options))
        return SimpleNamespace(
            id=options["id"],
            summary={},
            define_metric=lambda name, **options: None,
            log=lambda row, step: self.calls.append(("log", (step, row))),
            finish=lambda exit_code: self.calls.append(("finish", exit_code)),
        )
