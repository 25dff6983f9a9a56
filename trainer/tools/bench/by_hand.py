"""The baseline for the learner: a training loop of a few lines, without callbacks."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from augment.pipeline.batch import Batch
from trainer.loop.graphs import (
    ATTEMPTS,
    WARM_UP,
    CudaBackend,
    DisturbedError,
    Tensors,
    UncapturableError,
    capturable,
    recording_options,
)
from trainer.optim.optimizers import make_optimizer
from trainer.run.fit import Fit
from trainer.tasks.losses import LossFunction


class ByHand:
    """Train a model in a bare loop with learning rate 0; with `fit.graph`, a whole step is one CUDA graph.

    An optimizer step that cannot be recorded runs outside the graph. All batches must have the same shape. In float16,
    the loss is not scaled.

    Args:
        fit: precision, graph, compile and optimizer.
        model: what to train.
        loss_function: `(outputs, targets) -> scalar`.
        device: where.
    """

    def __init__(self, fit: Fit, model: nn.Module, loss_function: LossFunction, device: torch.device) -> None:
        self._model: nn.Module = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if fit.compile:
            self._model.compile(dynamic=False)
        self._model.train()
        self._device, self._fit = device, fit
        self._loss_function = loss_function
        self._optimizer = make_optimizer(fit, self._model)
        self._backend: CudaBackend | None = CudaBackend(device) if fit.graph and device.type == "cuda" else None
        self._whole = self._backend is not None and capturable(self._optimizer)
        # A learning rate of 0 costs the same and keeps the weights; fuse what can be fused.
        for group in self._optimizer.param_groups:
            group["lr"] = 0.0
            if self._whole:
                group.update(recording_options(self._optimizer, group))
        self._replay: Callable[[], None] | None = None
        self._inputs: Tensors = ()

    def train(self, batches: Iterable[Batch]) -> None:
        """Make a step for each batch."""
        for batch in batches:
            if self._backend and self._replay is None:
                self._inputs = batch.images.clone(), batch.targets.clone()
                self._replay = self._record(self._backend, *self._inputs)
            if self._replay is None:
                self._step(batch.images, batch.targets)
                self._optimizer.zero_grad()
                continue
            self._inputs[0].copy_(batch.images, non_blocking=True)
            self._inputs[1].copy_(batch.targets, non_blocking=True)
            self._replay()
            if not self._whole:
                self._optimizer.step()

    def _forward_backward(self, images: Tensor, targets: Tensor) -> Tensors:
        cache = self._backend is None  # autocast's cache must not outlive a recording
        with self._fit.autocast(self._device.type, cache=cache):
            outputs = self._model(images)
        self._loss_function(outputs.float(), targets).backward()  # type: ignore[no-untyped-call]
        return ()

    def _step(self, images: Tensor, targets: Tensor) -> Tensors:
        self._forward_backward(images, targets)
        self._optimizer.step()
        return ()

    def _record(self, backend: CudaBackend, images: Tensor, targets: Tensor) -> Callable[[], None] | None:
        """Record a step as in PyTorch's documentation: warm up on another stream, allocate gradients in the graph."""
        for _ in range(WARM_UP):
            backend.aside(lambda: self._step(images, targets))
            self._optimizer.zero_grad(set_to_none=True)
        work = self._step if self._whole else self._forward_backward
        for _ in range(ATTEMPTS):
            try:
                return backend.record(lambda: work(images, targets), "step")[0]
            except UncapturableError as error:
                self._optimizer.zero_grad(set_to_none=True)
                if not isinstance(error, DisturbedError):
                    break
        self._backend = None  # as the learner does, run it eagerly
        return None
