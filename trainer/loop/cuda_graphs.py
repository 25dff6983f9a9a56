"""CUDA graphs: the GPU's work for a batch is recorded once and then started by a single call.

A network of a few hundred small kernels keeps Python busier than the GPU. Recording does not change the results:
batches before it are ordinary steps, recording itself executes nothing, and every batch after it is a replay.
"""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from traceback import clear_frames
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from augment.support.errors import first_line
from augment.support.torch_versions import end_allocating

# Results of a piece of work.
Tensors = tuple[Tensor, ...]
Work = Callable[..., Tensors]

# Number of batches of a shape that run eagerly before it is recorded. Meanwhile, cuDNN chooses algorithms, cuBLAS
# allocates workspaces, torch.compile compiles, and the optimizer creates its state.
WARM_UP = 3

# Number of attempts to record work, as another thread that waits for the whole GPU ends any recording, in any mode.
# DALI does so in a thread that frees a batch once its last tensor is gone. More than two: an attempt that cuDNN took
# part in can leave an error behind, which the next one reports as its own.
ATTEMPTS = 4

log = logging.getLogger(__name__)


class UncapturableError(Exception):
    """Work could not be recorded; the message says why."""


class CudaBackend:
    """Records with `torch.cuda.graph`, on a stream of its own, into memory pools.

    In a pool, the results of a graph are safe from graphs that are recorded later, but not from earlier ones: their
    replays write to memory that was free when they were recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._renew()

    def aside(self, work: Callable[[], Tensors]) -> Tensors:
        """Run work on the stream that records."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                return work()
        finally:  # also if it fails, or cancels: what it has begun uses memory of the current stream
            current.wait_stream(self._stream)

    def record(self, work: Callable[[], Tensors], memory: str) -> tuple[Callable[[], None], Tensors]:
        """Record work without executing it; return a function that replays it, and the results that it writes to.

        Args:
            work: the work to record.
            memory: name of a pool; a replay may overwrite the results of others in the same pool, and of no others.

        Raises:
            UncapturableError: the work, or another thread, does what a graph cannot do, such as waiting for the GPU.
        """
        graph = torch.cuda.CUDAGraph()
        if memory not in self._pools:
            self._pools[memory] = torch.cuda.graph_pool_handle()
        pool = self._pools[memory]
        generator = torch.cuda.default_generators[self._index]
        random = generator.clone_state()
        handled = sys.exception()
        try:
            # The outer context restores the stream even if ending a failed recording fails. The mode lets DALI's
            # threads allocate memory meanwhile.
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                results = work()
        except Exception as error:  # a model may raise anything
            failure = _failure(error, handled)
            self._clean_up(pool, generator, random)
            raise failure from None
        return graph.replay, results

    def wait(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize(self._device)

    @property
    def _index(self) -> int:
        return torch.cuda.current_device() if self._device.index is None else self._device.index

    def _renew(self) -> None:
        # Higher priority than the pipelines, whose batches are prefetched.
        self._stream = torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]
        self._pools: dict[str, Any] = {}

    def _clean_up(self, pool: Any, generator: torch.Generator, random: torch.Generator) -> None:
        """Clean up after a failed recording: a memory pool, a generator and a stream that are still recording."""
        with suppress(RuntimeError):  # unless it has ended
            end_allocating(self._index, pool)
        generator.graphsafe_set_state(random)
        self._renew()
        self.wait()


@dataclass(eq=False)
class _Shape:
    """The recording of one kind of work with inputs of one shape, if there is one yet."""

    seen: int = 0
    replay: Callable[[], None] | None = None
    inputs: Tensors = ()
    results: Tensors = ()


class Graphs:
    """Records each kind of work once for each shape of its inputs, and replays it from then on.

    A recording that fails is tried again with the next batch. A kind that cannot be recorded runs eagerly, and one line
    in the log says why.
    """

    def __init__(self, backend: CudaBackend, warm_up: int = WARM_UP) -> None:
        self._backend = backend
        self._warm_up = warm_up
        self._shapes: dict[tuple[str, Hashable], _Shape] = {}
        self._models: dict[str, Hashable] = {}
        self._failures: Counter[str] = Counter()

    def run(self, kind: str, work: Work, *inputs: Tensor) -> Tensors:
        """Run a piece of work: eagerly, recorded, or replayed."""
        shapes = tuple((value.shape, value.stride(), value.dtype, value.device) for value in inputs)
        key = kind, (shapes, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        shape = self._shapes.setdefault(key, _Shape())
        if shape.replay is None and not self._recorded(key, work, inputs, shape):
            shape.seen += 1
            return self._backend.aside(lambda: _detached(work(*inputs)))
        for own, given in zip(shape.inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        assert shape.replay is not None
        shape.replay()
        return _detached(shape.results)

    def enter(self, kind: str, model: nn.Module) -> None:
        """Begin a pass: discard what was recorded with other or otherwise frozen weights, or layers in another mode."""
        model_now = _identity(model)
        if self._models.get(kind) != model_now:
            if kind in self._models:
                self.forget(kind)
                if kind == "train":
                    self.forget("step")
            self._models[kind] = model_now

    def forget(self, kind: str | None = None) -> None:
        """Discard the recordings of a kind, or all recordings; the next batches warm up again."""
        keys = [key for key in self._shapes if kind in (None, key[0])]
        if any(self._shapes[key].replay for key in keys):
            self._backend.wait()
        for key in keys:
            del self._shapes[key]

    def _recorded(self, key: tuple[str, Hashable], work: Work, inputs: Tensors, shape: _Shape) -> bool:
        """Record work if it is due; return whether it is recorded now."""
        kind = key[0]
        if shape.seen < self._warm_up or self._failures[kind] == ATTEMPTS:
            return False
        # Keep the given strides, so that images stay in channels_last memory.
        own = tuple(torch.empty_like(value).copy_(value) for value in inputs)
        # Passes share a pool, as no two of them belong to the same batch. The step runs between a pass and its readers.
        memory = "step" if kind == "step" else "pass"
        try:
            shape.replay, shape.results = self._backend.record(lambda: _detached(work(*own)), memory)
        except UncapturableError as error:
            # Earlier recordings draw random numbers from a generator that is no longer in use.
            self._shapes = {key: _Shape(shape.seen) for key, shape in self._shapes.items()}
            self._failures[kind] += 1
            if self._failures[kind] == ATTEMPTS:
                log.warning("fit.graph: %s is run without a CUDA graph: %s", kind, error)
            return False
        shape.inputs = own
        return True


def _identity(model: nn.Module) -> Hashable:
    """Return what a recorded pass depends on in a model: the addresses of its tensors, and the mode of each layer."""
    tensors = tuple((p.data_ptr(), p.requires_grad) for p in model.parameters())
    buffers = tuple(buffer.data_ptr() for buffer in model.buffers())
    return tensors, buffers, tuple((id(module), module.training) for module in model.modules())


def _detached(results: Tensors) -> Tensors:
    # New objects, by which callbacks distinguish batches; without the history, whose nodes belong to a stream.
    return tuple(value.detach() for value in results)


def _failure(error: BaseException, handled: BaseException | None = None) -> UncapturableError:
    """Return what to raise for an error while recording: by the first one, as ending a failed recording fails, too.

    Only the errors since `handled` count, which the caller of the recording was handling.

    What the failed work has left in its frames is dropped: where a part of its autograd graph is left, the gradients of
    the next recording would be added on the stream of this one.
    """
    clear_frames(error.__traceback__)
    while error.__context__ not in (None, handled):
        error = error.__context__
        clear_frames(error.__traceback__)
    return UncapturableError(first_line(error))


def capturable(optimizer: Optimizer) -> bool:
    """Return whether an optimizer's step may be recorded.

    It may if the step does the same to the same tensors each time, with the learning rate in a tensor. Of PyTorch's
    optimizers, these are the ones with the option `capturable`, and SGD, whose fused kernel accepts such a rate. Others
    declare it with the class attribute `capturable = True`; an option of that name is not enough: timm's optimizers
    have it and still read values in Python.
    """
    if type(optimizer).__module__.startswith("torch.optim."):
        return type(optimizer) is SGD or "capturable" in optimizer.defaults
    return bool(getattr(type(optimizer), "capturable", False))
