"""CUDA graphs: what the GPU does for a batch is recorded once and then started by a single call.

A network of some hundred small kernels keeps Python busier than the GPU. Recording changes nothing of what is
computed: batches before it are ordinary steps, recording itself executes nothing, and every batch after it is a replay.
"""

import logging
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from augment.errors import first_line

# Results of a piece of work.
Tensors = tuple[Tensor, ...]
Work = Callable[..., Tensors]

# Batches of a shape that are run eagerly before it is recorded: cuDNN picks its algorithms meanwhile, cuBLAS its
# workspaces, torch.compile compiles, and the optimizer makes its state.
WARM_UP = 3

log = logging.getLogger(__name__)


class UncapturableError(Exception):
    """What was to be recorded cannot be; the message says why."""


class Runner(Protocol):
    """How the learner's pieces of work are run; a piece is a function of tensors that returns tensors.

    Attributes:
        captures: whether pieces are recorded. Then gradients stay where they are and are zeroed instead of dropped,
            results are without autograd's history, and what is to outlive the next batch has to be cloned.
    """

    captures: bool

    def run(self, kind: str, work: Work, *inputs: Tensor) -> Tensors:
        """Run a piece of work; the results are new objects each time."""
        ...

    def enter(self, kind: str, model: nn.Module) -> None:
        """Begin a pass: forget what was recorded of it, in training of the step too, if the model is another now."""

    def forget(self, kind: str | None = None) -> None:
        """Forget what was recorded of a kind, or everything."""


class Eager:
    """Runs everything at once, as PyTorch does by itself."""

    captures = False

    def run(self, kind: str, work: Work, *inputs: Tensor) -> Tensors:
        """Run it."""
        return work(*inputs)

    def enter(self, kind: str, model: nn.Module) -> None:
        """Do nothing."""

    def forget(self, kind: str | None = None) -> None:
        """Do nothing."""


class Backend(Protocol):
    """What recording takes."""

    def aside(self, work: Callable[[], Tensors]) -> Tensors:
        """Run work now, where it would be recorded."""
        ...

    def record(self, work: Callable[[], Tensors], memory: str) -> tuple[Callable[[], None], Tensors]:
        """Record work without executing it; return what replays it, and the results that a replay writes to.

        Args:
            work: what is to be recorded.
            memory: replays may write over the results of others of the same memory, and of no other.

        Raises:
            UncapturableError: it cannot be recorded; everything is as before.
        """
        ...

    def wait(self) -> None:
        """Wait for the replays under way, before what was recorded goes."""


@dataclass(eq=False)
class _Shape:
    """What is known of one kind of work with inputs of one shape."""

    seen: int = 0
    replay: Callable[[], None] | None = None
    inputs: Tensors = ()
    results: Tensors = ()


class Graphs:
    """Records each kind of work once for each shape of its inputs, and replays it from then on.

    A kind that cannot be recorded is run eagerly, and one line in the log says why.

    Args:
        backend: records.
        warm_up: times that a shape is run eagerly before.
    """

    captures = True

    def __init__(self, backend: Backend, warm_up: int = WARM_UP) -> None:
        self._backend = backend
        self._warm_up = warm_up
        self._shapes: dict[tuple[str, Hashable], _Shape] = {}
        self._models: dict[str, Hashable] = {}
        self._refused: set[str] = set()

    def run(self, kind: str, work: Work, *inputs: Tensor) -> Tensors:
        """Run a piece of work: eagerly, recorded, or replayed."""
        shape = self._shapes.setdefault((kind, _signature(inputs)), _Shape())
        if shape.replay is None and not self._recorded(kind, work, inputs, shape):
            shape.seen += 1
            return self._backend.aside(lambda: _detached(work(*inputs)))
        for own, given in zip(shape.inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        assert shape.replay is not None
        shape.replay()
        return _detached(shape.results)

    def enter(self, kind: str, model: nn.Module) -> None:
        """Forget what was recorded with other weights, other frozen ones, or layers in another mode."""
        model_now = _identity(model)
        if self._models.get(kind) != model_now:
            if kind in self._models:
                self.forget(kind)
                if kind == "train":
                    self.forget("step")
            self._models[kind] = model_now

    def forget(self, kind: str | None = None) -> None:
        """Forget what was recorded of a kind, or everything; the next batches warm up again."""
        keys = [key for key in self._shapes if kind in (None, key[0])]
        if any(self._shapes[key].replay for key in keys):
            self._backend.wait()
        for key in keys:
            del self._shapes[key]

    def _recorded(self, kind: str, work: Work, inputs: Tensors, shape: _Shape) -> bool:
        """Record work if it is time; say whether it is recorded now."""
        if shape.seen < self._warm_up or kind in self._refused:
            return False
        # Of the given strides, so that pictures stay in channels_last memory.
        own = tuple(torch.empty_like(value).copy_(value) for value in inputs)
        try:
            replay, results = self._backend.record(lambda: _detached(work(*own)), _memory(kind))
        except UncapturableError as error:
            log.warning("fit.graph: %s is run without a CUDA graph: %s", kind, error)
            self._refused.add(kind)
            # What was recorded before draws its random numbers from a generator that is not in use any more.
            self.forget()
            return False
        shape.replay, shape.inputs, shape.results = replay, own, results
        return True


def _memory(kind: str) -> str:
    # Passes share one, for no two of them belong to one batch. The step comes between a pass and who looks at it.
    return "step" if kind == "step" else "pass"


def _signature(inputs: Tensors) -> Hashable:
    shapes = tuple((value.shape, value.stride(), value.dtype, value.device) for value in inputs)
    return shapes, torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def _identity(model: nn.Module) -> Hashable:
    """Return what a recorded pass takes for granted of a model: where its tensors lie, and how each layer is set."""
    tensors = tuple((p.data_ptr(), p.requires_grad) for p in model.parameters())
    buffers = tuple(buffer.data_ptr() for buffer in model.buffers())
    return tensors, buffers, tuple((id(module), module.training) for module in model.modules())


def _detached(results: Tensors) -> Tensors:
    # New objects, by which callbacks tell batches apart; and without the history, whose nodes belong to a stream.
    return tuple(value.detach() for value in results)


class CudaBackend:
    """Records with `torch.cuda.graph`, on a stream of its own, into a pool for each memory.

    In a pool the results of a graph are safe from those that are recorded after it, but not from those before: what was
    free when they were recorded they write to whenever they are replayed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._renew()

    def aside(self, work: Callable[[], Tensors]) -> Tensors:
        """Run work on the stream that records."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            results = work()
        current.wait_stream(self._stream)
        return results

    def record(self, work: Callable[[], Tensors], memory: str) -> tuple[Callable[[], None], Tensors]:
        """Record work into the pool of a memory.

        Raises:
            UncapturableError: it asks for something that a graph cannot do, as waiting for the GPU.
        """
        graph = torch.cuda.CUDAGraph()
        if memory not in self._pools:
            self._pools[memory] = torch.cuda.graph_pool_handle()
        pool = self._pools[memory]
        generator = torch.cuda.default_generators[self._index]
        random = generator.clone_state()
        try:
            # The outer context gives the stream back even where ending a broken recording fails. The mode lets DALI's
            # threads allocate memory meanwhile.
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                results = work()
        except Exception as error:  # whatever a model does
            reason = first_line(_first(error))
            self._clean_up(pool, generator, random)
            raise UncapturableError(reason) from None
        return graph.replay, results

    def wait(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize(self._device)

    @property
    def _index(self) -> int:
        return torch.cuda.current_device() if self._device.index is None else self._device.index

    def _renew(self) -> None:
        # Ahead of the pipelines, whose batches are prepared early enough to wait.
        self._stream = torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]
        self._pools: dict[str, Any] = {}

    def _clean_up(self, pool: Any, generator: torch.Generator, random: torch.Generator) -> None:
        """Undo what a broken recording leaves behind: a memory pool, a generator and a stream that still record."""
        with suppress(RuntimeError):  # unless it has ended
            torch._C._cuda_endAllocateToPool(self._index, pool)
        generator.graphsafe_set_state(random)
        self._renew()
        self.wait()


def _first(error: BaseException) -> BaseException:
    """Return the error that the others followed from: ending a broken recording fails too."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def runner(device: torch.device, *, graph: bool) -> Runner:
    """Return how to run the work of a batch on a device."""
    return Graphs(CudaBackend(device)) if graph and device.type == "cuda" else Eager()


def capturable(optimizer: Optimizer) -> bool:
    """Say whether an optimizer's step may be recorded.

    It may where the step does the same to the same tensors each time, with the learning rate in a tensor. Of
    PyTorch's optimizers it is those that have the option `capturable`, and SGD, whose fused kernel takes such a rate.
    Others say so by `capturable = True` as an attribute of the class; an option of that name says nothing, for timm's
    have it and look at values in Python nevertheless.
    """
    if type(optimizer).__module__.startswith("torch.optim."):
        return type(optimizer) is SGD or "capturable" in optimizer.defaults
    return bool(getattr(type(optimizer), "capturable", False))
