"""CUDA graphs: the GPU work of a batch is recorded once, and then started with a single call.

Without graphs, Python takes longer to launch hundreds of small kernels than the GPU takes to run them. The first few
batches run eagerly. Then the work is recorded, which executes nothing, and replayed for each batch. The results are the
same.
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

Tensors = tuple[Tensor, ...]
Work = Callable[..., Tensors]

# Number of eager batches of each shape before the recording. During these batches, cuDNN chooses algorithms,
# cuBLAS allocates workspaces, torch.compile compiles, and the optimizer creates its state.
WARM_UP = 3

# Number of attempts to record. A recording fails if another thread waits for the whole GPU at the same time. A DALI
# thread does this when it frees a batch. Two attempts are too few: a failed attempt with cuDNN can leave an error
# behind, which the next attempt reports.
ATTEMPTS = 4

log = logging.getLogger(__name__)


class UncapturableError(Exception):
    """Work could not be recorded. The message states the cause."""


class CudaBackend:
    """Records with `torch.cuda.graph`, on a separate stream, into memory pools.

    A replay writes to memory that was free when its graph was recorded. So it may overwrite the results of graphs that
    were recorded later in the same pool, but not the results of earlier graphs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._renew()

    def run_on_stream(self, work: Callable[[], Tensors]) -> Tensors:
        """Run work on the recording stream."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                return work()
        finally:  # also after an error, because started kernels may still use memory of the current stream
            current.wait_stream(self._stream)

    def record(self, work: Callable[[], Tensors], memory: str) -> tuple[Callable[[], None], Tensors]:
        """Record work without executing it. Return a function that replays it, and the tensors with its results.

        Args:
            work: the work to record.
            memory: name of a pool. A replay may overwrite results of the same pool, but not of other pools.

        Raises:
            UncapturableError: the work or another thread does something that graphs do not allow, such as waiting for
                the GPU.
        """
        graph = torch.cuda.CUDAGraph()
        if memory not in self._pools:
            self._pools[memory] = torch.cuda.graph_pool_handle()
        pool = self._pools[memory]
        generator = torch.cuda.default_generators[self._index]
        random = generator.clone_state()
        handled = sys.exception()
        try:
            # The outer context restores the stream even if the end of a failed recording raises an error. The mode
            # allows DALI's threads to allocate memory during the recording.
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
        torch.cuda.synchronize(self._device)

    @property
    def _index(self) -> int:
        return torch.cuda.current_device() if self._device.index is None else self._device.index

    def _renew(self) -> None:
        # Training has priority over the pipelines, because they prefetch batches.
        self._stream = torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]
        self._pools: dict[str, Any] = {}

    def _clean_up(self, pool: Any, generator: torch.Generator, random: torch.Generator) -> None:
        """Reset the memory pool, the generator and the stream after a failed recording."""
        with suppress(RuntimeError):  # the recording has already ended
            end_allocating(self._index, pool)
        generator.graphsafe_set_state(random)
        self._renew()
        self.wait()


@dataclass(eq=False)
class _Recording:
    """The recording of one kind of work for one shape of its inputs. Before the warm-up ends, only `seen` is set."""

    seen: int = 0  # number of eager batches
    replay: Callable[[], None] | None = None
    inputs: Tensors = ()
    results: Tensors = ()


class Graphs:
    """Records each kind of work once per shape of its inputs, and replays it from then on.

    After a failed recording, the next batch tries again. If a kind of work cannot be recorded, it runs eagerly, and one
    line in the log states the cause.
    """

    def __init__(self, backend: CudaBackend, warm_up: int = WARM_UP) -> None:
        self._backend = backend
        self._warm_up = warm_up
        self._recordings: dict[tuple[str, Hashable], _Recording] = {}
        self._models: dict[str, Hashable] = {}
        self._failures: Counter[str] = Counter()

    def run(self, kind: str, work: Work, *inputs: Tensor) -> Tensors:
        """Run work eagerly, or replay its recording."""
        shapes = tuple((value.shape, value.stride(), value.dtype, value.device) for value in inputs)
        key = kind, (shapes, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        recording = self._recordings.setdefault(key, _Recording())
        if recording.replay is None and not self._record(key, work, inputs, recording):
            recording.seen += 1
            return self._backend.run_on_stream(lambda: _detached(work(*inputs)))
        for own, given in zip(recording.inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        assert recording.replay is not None
        recording.replay()
        return _detached(recording.results)

    def enter(self, kind: str, model: nn.Module) -> None:
        """Begin a pass. Discard the recordings if the model has changed.

        It has changed if a tensor was replaced, a parameter was frozen or unfrozen, or a layer changed its mode.
        """
        model_now = _fingerprint(model)
        if self._models.get(kind) != model_now:
            if kind in self._models:
                self.forget(kind)
                if kind == "train":
                    self.forget("step")
            self._models[kind] = model_now

    def forget(self, kind: str | None = None) -> None:
        """Discard the recordings of a kind, or all recordings. The next batches warm up again."""
        keys = [key for key in self._recordings if kind in (None, key[0])]
        if any(self._recordings[key].replay for key in keys):
            self._backend.wait()
        for key in keys:
            del self._recordings[key]

    def _record(self, key: tuple[str, Hashable], work: Work, inputs: Tensors, recording: _Recording) -> bool:
        """Record the work after its warm-up. Return whether a recording exists now."""
        kind = key[0]
        if recording.seen < self._warm_up or self._failures[kind] == ATTEMPTS:
            return False
        # Copies keep the strides, so that images stay in channels_last memory.
        own = tuple(torch.empty_like(value).copy_(value) for value in inputs)
        # Passes share a pool, because a batch has only one pass. A step has its own pool, because callbacks read the
        # results of the pass after the step.
        memory = "step" if kind == "step" else "pass"
        try:
            recording.replay, recording.results = self._backend.record(lambda: _detached(work(*own)), memory)
        except UncapturableError as error:
            # Discard other recordings, because they use the random generator that the backend has replaced.
            self._recordings = {key: _Recording(old.seen) for key, old in self._recordings.items()}
            self._failures[kind] += 1
            if self._failures[kind] == ATTEMPTS:
                log.warning("fit.graph: '%s' runs without a CUDA graph: %s", kind, error)
            return False
        recording.inputs = own
        return True


def _fingerprint(model: nn.Module) -> Hashable:
    """Return the parts of a model that recorded passes depend on: the addresses of its tensors, and all layer modes."""
    tensors = tuple((p.data_ptr(), p.requires_grad) for p in model.parameters())
    buffers = tuple(buffer.data_ptr() for buffer in model.buffers())
    return tensors, buffers, tuple((id(module), module.training) for module in model.modules())


def _detached(results: Tensors) -> Tensors:
    # Callbacks recognize a new batch by these new objects. Autograd history is dropped, because its nodes belong to a
    # stream.
    return tuple(value.detach() for value in results)


def _failure(error: BaseException, handled: BaseException | None = None) -> UncapturableError:
    """Return the error to raise for a failed recording, with the first error as its cause.

    Later errors come from ending the recording. Errors that the caller was already handling (`handled`) do not count.

    The frames of the failed work are cleared, so that nothing of its autograd graph survives. Otherwise, the next
    recording would add gradients on the stream of the failed one.
    """
    clear_frames(error.__traceback__)
    while error.__context__ not in (None, handled):
        error = error.__context__
        clear_frames(error.__traceback__)
    return UncapturableError(first_line(error))


def capturable(optimizer: Optimizer) -> bool:
    """Return whether an optimizer's step may be recorded.

    Each step must do the same work on the same tensors, with the learning rate in a tensor. This holds for PyTorch's
    optimizers with the option `capturable`, and for SGD, whose fused kernel accepts such a rate. Other optimizers need
    the class attribute `capturable = True`. The option alone is not enough, because timm's optimizers have it but read
    values in Python.
    """
    if type(optimizer).__module__.startswith("torch.optim."):
        return type(optimizer) is SGD or "capturable" in optimizer.defaults
    return bool(getattr(type(optimizer), "capturable", False))
