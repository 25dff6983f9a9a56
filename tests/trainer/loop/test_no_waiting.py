"""No hidden synchronization: from look to look, nothing of a fit comes to the host."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
import torch
from fakes import CPU, make_learner, needs_gpu, noise_loader, on, reject_waiting, sgd, tiny_model
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.optimizer_steps import FreshStatistics, GradClip, ParamScheduler
from trainer.callbacks.plots import Plots
from trainer.callbacks.progress import ProgressBar
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.tracker import TrackedRun, Tracker
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner
from trainer.optim.schedules import one_cycle


class _Functions(TorchFunctionMode):
    """Refuses what a tensor offers to come to the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        waits = {"item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "nonzero"}
        assert name not in waits, f"Tensor.{name} waits for the device"
        return func(*args, **(kwargs or {}))


# Operators whose result, or its size, has to be known on the host.
_WAITING = (
    *(torch.ops.aten._local_scalar_dense, torch.ops.aten.item, torch.ops.aten.nonzero, torch.ops.aten.masked_select),
    *(torch.ops.aten._unique2, torch.ops.aten.bincount, torch.ops.aten.equal),
)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses the operators behind it, whoever calls them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func.overloadpacket is torch.ops.aten.index and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        assert func.overloadpacket not in _WAITING, f"{func} waits for the device"
        assert not by_mask, "indexing by a mask waits for the device"
        return func(*args, **(kwargs or {}))


class Silent(Tracker):
    """A tracker that sends nothing."""

    def start(self, run: TrackedRun) -> None:
        pass

    def log(self, values: Mapping[str, float], step: int, epoch: int | None = None) -> None:
        pass


class NoWaiting:
    """Refuses transfers to the host from the first training batch, which is looked at, to the end of each pass."""

    def __init__(self, reject: Callable[[], AbstractContextManager[None]]) -> None:
        self.watched = 0
        self._reject, self._rejecting = reject, ExitStack()
        self._on = False

    def callbacks(self) -> tuple[Callback, ...]:
        return (
            on("before_validate", self.begin, 1000),
            on("before_batch", self.count, 1000),
            on("after_batch", self.begin, 1000),
            on("after_train", self.end, -1000),
            on("after_validate", self.end, -1000),
            on("after_fit", self.end, -1000),
        )

    def begin(self, learner: Learner) -> None:
        if not self._on:
            self._on = True
            self._rejecting.enter_context(self._reject())

    def count(self, learner: Learner) -> None:
        self.watched += self._on

    def end(self, learner: Learner) -> None:
        if self._on:
            self._on = False
            self._rejecting.close()


@contextmanager
def reject_on_the_cpu() -> Iterator[None]:
    with _Functions(), _Operators():  # type: ignore[no-untyped-call]
        yield


def watched_learner(guard: NoWaiting, *callbacks: Callback, device: torch.device = CPU, **options: Any) -> Learner:
    return make_learner(
        Recorder(interval=math.inf),
        ParamScheduler({"lr": one_cycle(0.2, start=0.01, end=0.0)}),
        GradClip(),
        FreshStatistics(),
        Checkpoint(),
        Plots(),
        ProgressBar(),
        Silent(),
        *guard.callbacks(),
        *callbacks,
        model=tiny_model(dropout=0.5),
        train=noise_loader(7, shuffle=False, device=device),  # an order would have to be copied to the device
        val=noise_loader(5, shuffle=False, device=device),
        device=device,
        **options,
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_between_looks_nothing_comes_to_the_host(precision: str) -> None:
    guard = NoWaiting(reject_on_the_cpu)
    learner = watched_learner(guard, precision=precision)
    learner.fit()
    assert guard.watched == 2 * (3 + 3)
    assert all(math.isfinite(row["val_loss"]) for row in learner.find(Recorder).rows)


@pytest.mark.parametrize(
    "wait", [pytest.param(Tensor.item, id="item"), pytest.param(lambda loss: loss[None][loss[None] > 0], id="mask")]
)
@pytest.mark.parametrize("training", [True, False])
def test_the_guard_of_the_test_before_sees_what_waits(wait: Callable[[Tensor], object], training: bool) -> None:
    def look(learner: Learner) -> None:
        if learner.training == training:
            wait(learner.loss)

    with pytest.raises(AssertionError, match="waits"):
        watched_learner(NoWaiting(reject_on_the_cpu), on("after_batch", look)).fit()


@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", [sgd, lambda model: torch.optim.AdamW(model.parameters())], ids=["sgd", "adamw"])
def test_between_looks_nothing_waits_for_the_gpu(optimizer: Any, precision: str) -> None:
    guard = NoWaiting(reject_waiting)
    learner = watched_learner(guard, device=torch.device("cuda"), precision=precision, optimizer=optimizer)
    learner.fit()
    assert guard.watched == 2 * (3 + 3)
    assert all(math.isfinite(row["val_loss"]) for row in learner.find(Recorder).rows)
