"""Run the forward pass, backward pass and optimizer step of each batch, eagerly and in one process.

`trainer.loop.cuda_graph_runner` has runners for CUDA graphs and several ranks.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD, Optimizer

from augment.pipeline.batch import Batch
from augment.support.errors import UserError
from trainer.loop.cuda_graphs import Tensors
from trainer.loop.objective import TrainingStep
from trainer.loop.ranks import Ranks
from trainer.loop.settings import LoopSettings
from trainer.tasks.loss import LossFunction, weight_of
from trainer.tasks.task import Task


class Pass(NamedTuple):
    """The results of a forward pass, on the device. With a training step, the output is the loss."""

    output: Tensor
    loss: Tensor  # () mean over the batch


class LearnerParts(Protocol):
    """The attributes of the learner that a runner uses."""

    settings: LoopSettings
    device: torch.device
    ranks: Ranks
    model: nn.Module
    optimizer: Optimizer
    optimizer_name: str
    training_step: TrainingStep | None
    task: Task[Any]
    loss_function: LossFunction
    val_loss_function: LossFunction
    train_loader: Any


class Runner:
    """Runs the forward passes, backward passes and steps of one optimizer.

    Attributes:
        pending: whether there are gradients that no step has used yet.
        scaler: scales the loss in float16, and skips steps with gradients that are not finite. None: other precisions.
    """

    def __init__(self, learner: LearnerParts) -> None:
        settings, device = learner.settings, learner.device
        self._learner, self._model, self._optimizer = learner, learner.model, learner.optimizer
        self._task, self._step, self._name = learner.task, learner.training_step, learner.optimizer_name
        self.scaler = Scaler(device) if settings.scaled else None
        self._uses_share = settings.accumulate > 1 or learner.ranks.size > 1
        self._share = torch.ones((), device=device)  # factor of the current batch's loss, see `_weigh`
        self._weights = torch.zeros(2, device=device)  # sums over the pending batches: their weights and shares
        # No parameter has this name, so it can be the key of `_weights` in `kept_gradients`.
        self._weights_key = self._name and f"{self._name}."
        self.pending = False
        self._weighted = False  # whether the step divides the gradients by the mean weight

    # --- for the learner ---

    def enter(self, kind: str) -> None:
        """Begin a pass: "train" or "validate"."""

    def train(self, batch: Batch, share: float) -> Pass:
        """Run the forward and backward pass. `share` is the batch's share of the images in its step."""
        self.pending, targets = True, self._task.targets_of(batch)
        if self._uses_share:
            self._weigh(batch, targets, share)
        if self._step is None:
            return Pass(*self._run("train", self._forward_backward, batch.images, targets))

        def work(images: Tensor, targets: Tensor, *views: Tensor) -> Tensors:
            return self._step_backward(replace(batch, images=images, targets=targets, views=views))

        (loss,) = self._run("train", work, batch.images, batch.targets, *batch.views)
        return Pass(loss, loss)

    def validate(self, batch: Batch) -> Pass:
        def forward(images: Tensor, targets: Tensor) -> Tensors:
            return self._forward(images, targets, self._learner.val_loss_function, self._learner.settings.tta)

        return Pass(*self._run("validate", forward, batch.images, self._task.targets_of(batch)))

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that the optimizer trains, by name."""
        own = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        return {name: p for name, p in self._model.named_parameters() if id(p) in own}

    @contextmanager
    def gradients(self) -> Iterator[None]:
        """Finish the gradients for the step in the `with` block. If the step is cancelled, the next step gets them."""
        if self.scaler is not None:
            self.scaler.unscale_(self._optimizer)
        mean = self._weights[0] / self._weights[1] if self._weighted else None
        if mean is not None:
            torch._foreach_div_(self._gradients(), mean)
        try:
            yield
        finally:
            if self.pending and mean is not None:
                torch._foreach_mul_(self._gradients(), mean)
            if self.pending and self.scaler is not None:
                self.scaler.keep(self._gradients())

    def step(self) -> None:
        """Take an optimizer step, and clear the gradients."""
        if self.scaler is None:
            self._optimizer.step()
        else:
            self.scaler.make_step(self._optimizer)
        self.clear_gradients()

    def clear_gradients(self) -> None:
        """Clear the gradients."""
        self._clear()
        self._zero()

    def forget(self) -> None:
        """Discard CUDA graphs, and the gradients of frozen parameters."""
        for parameter in self._model.parameters():
            if not parameter.requires_grad:
                parameter.grad = None  # otherwise momentum and weight decay would still change the parameter

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, which loads on any device, and the state of the scaler as "scaler"."""
        state = dict(self._optimizer.state_dict())
        return state if self.scaler is None else state | {"scaler": self.scaler.state_dict()}

    def kept_gradients(self) -> dict[str, Tensor]:
        """Return unscaled copies of the pending gradients by parameter name, and `_weights` if the loss is weighted."""
        factor = 1.0 if self.scaler is None else self.scaler.factor
        found = self.parameters.items() if self.pending else ()
        weights = {self._weights_key: self._weights.clone()} if self.pending and self._weighted else {}
        return {name: p.grad / factor for name, p in found if p.grad is not None} | weights

    def load_state_dict(self, state: dict[str, Any], gradients: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` and `kept_gradients` returned, even from another device."""
        if self.scaler is not None and "scaler" in state:  # the saved run may have a different precision
            self.scaler.load_state_dict(state["scaler"])
        kept = {name: value for name, value in state.items() if name != "scaler"}
        # Move step counts to the CPU, because an eager step would wait for a count on a GPU. If the optimizer needs
        # them on the GPU, PyTorch moves them back.
        states = {k: dict(values) if isinstance(values, dict) else values for k, values in kept["state"].items()}
        for values in states.values():
            if isinstance(values, dict) and isinstance(count := values.get("step"), Tensor):
                values["step"] = count.cpu()
        self._optimizer.load_state_dict(kept | {"state": states})
        factor = 1.0 if self.scaler is None else self.scaler.factor
        for name, parameter in self.parameters.items():
            gradient = gradients.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.device) * factor
        self._clear()
        if self._weights_key in gradients:
            self._weighted = True
            self._weights.copy_(gradients[self._weights_key])

    # --- how the work is done ---

    def _weigh(self, batch: Batch, targets: Any, share: float) -> None:
        """Set the factor of the batch's loss: the batch's share of the images in its step.

        If the loss declares weights (`weight_of`), the share is multiplied by the mean weight of the batch's images. At
        the end of the step, the mean weight of all images in the step is known, and the gradients are divided by it.
        """
        self._share.fill_(share).mul_(batch.share)
        if isinstance(weight := weight_of(self._learner.loss_function, targets), Tensor):
            images = self._share.clone()
            self._share.mul_(weight / len(targets))
            self._weights.add_(torch.stack([self._share, images]))
            self._weighted = True

    def _clear(self) -> None:
        self.pending = self._weighted = False
        self._weights.zero_()

    def _run(self, kind: str, work: Callable[..., Tensors], *inputs: Tensor) -> Tensors:
        return work(*inputs)

    def _forward(self, images: Tensor, targets: Tensor, loss_function: LossFunction, tta: str) -> Tensors:
        with self._learner.settings.autocast(self._learner.device):
            if self._task.own_loss and self._model.training:
                output = self._model(images, targets)
            else:
                output = average(self._model, images, tta, self._task)
        check_outputs(output, loss_function, self._learner.train_loader)
        if getattr(loss_function, "takes_images", False):
            return output, loss_function(output.float(), targets, images)  # type: ignore[call-arg]
        return output, loss_function(output.float(), targets)

    def _forward_backward(self, images: Tensor, targets: Tensor) -> Tensors:
        output, loss = self._forward(images, targets, self._learner.loss_function, "none")
        self._add_gradients(loss)
        return output, loss

    def _step_backward(self, batch: Batch) -> Tensors:
        assert self._step is not None
        with self._learner.settings.autocast(self._learner.device):
            loss = self._step(self._learner, batch)
        if not isinstance(loss, Tensor) or loss.shape or not loss.requires_grad:
            raise UserError("training_step did not return a loss. Return a tensor of shape () that requires grad.")
        self._add_gradients(loss)
        return (loss,)

    def _add_gradients(self, loss: Tensor) -> None:
        if self._uses_share:
            loss = loss * self._share
        self._backward(loss if self.scaler is None else self.scaler.scale(loss))

    def _gradients(self) -> list[Tensor]:
        return [p.grad for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]

    def _backward(self, loss: Tensor) -> None:
        # A training step computes gradients only for its optimizer.
        own = None if self._step is None else [p for p in self.parameters.values() if p.requires_grad]
        loss.backward(inputs=own)  # type: ignore[no-untyped-call]

    def _zero(self) -> None:
        self._optimizer.zero_grad()


def check_outputs(outputs: Tensor, loss_function: object, loader: object) -> None:
    """Check that a model has an output for each class, if the loss is cross entropy."""
    classes = len(getattr(loader, "classes", ()))
    if loss_function is nn.functional.cross_entropy and outputs.ndim == 2 and outputs.shape[1] < classes:
        raise UserError(
            f"The model's outputs have shape {tuple(outputs.shape)}, but the data has {classes} classes. Add an output "
            f"for each class, such as nn.Linear(..., {classes})."
        )


def average(model: nn.Module, images: Tensor, tta: str, task: Task[Any]) -> Tensor:
    """Return a model's outputs. With "flip", average the outputs for the images and their mirror images.

    A classification task averages probabilities instead of logits, so that no single view can exclude a class. It
    returns the logarithms of the averages. Their softmax is the average again, and their cross entropy is the loss of
    the average. The model gets one view after the other, so that a batch needs no more memory.

    Images are (N, C, height, width), and outputs (N, ...) float32. With "none", the model's output is unchanged.
    """
    output: Tensor = model(images)
    if tta == "none":
        return output
    mirrored = task.unmirrored(model(images.flip(3)).float(), model)
    return task.average([output.float(), mirrored])


class Scaler(GradScaler):
    """Scales the loss in float16, where small gradients would vanish (Micikevicius et al. 2018).

    Unlike PyTorch's `GradScaler`, it supports cancelled steps, and checkpoints within a step.

    PyTorch's fused kernels can skip a step without the host. With other optimizers, the host waits until it knows
    whether the gradients are finite.
    `GradScaler` keeps some state in Python, so a CUDA graph can record a pass, but not a step. All ranks use the same
    scale, because they check the sums of their gradients.

    Args:
        device: the device of the loss and the gradients.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device.type)
        self._one = torch.ones((), device=device)

    @property
    def factor(self) -> Tensor:
        """The loss scale, () float32."""
        return self.scale(self._one)

    def keep(self, gradients: list[Tensor]) -> None:
        """Scale the gradients of a cancelled step again, because the next batches add scaled gradients to them."""
        factor = self.factor
        torch._foreach_mul_(gradients, factor)
        self.update(factor)

    def make_step(self, optimizer: Optimizer) -> None:
        """Take a step if the gradients are finite, and adapt the loss scale."""
        complete_momentum(optimizer)
        self.step(optimizer)
        self.update()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors."""
        state = super().state_dict()
        clean = torch.tensor(state["_growth_tracker"], dtype=torch.int32)
        return {"scale": torch.tensor(state["scale"]), "clean": clean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. The loss scale changes in place, because CUDA graphs read it."""
        kept = {"scale": float(state["scale"]), "_growth_tracker": int(state["clean"])}
        super().load_state_dict(super().state_dict() | kept)


def complete_momentum(optimizer: Optimizer) -> None:
    """Create missing momentum buffers of fused SGD, with zeros.

    SGD's fused kernel fails if only some parameters have a buffer, such as after unfreezing layers. If the kernel skips
    the first step, it leaves new buffers uninitialized.
    """
    for group in optimizer.param_groups if type(optimizer) is SGD else ():
        trained = [p for p in group["params"] if p.grad is not None]
        new = [p for p in trained if optimizer.state[p].get("momentum_buffer") is None]
        # With dampening, PyTorch must create the first buffers, because it does not dampen the first gradients.
        if group["fused"] and group["momentum"] and not (group["dampening"] and len(new) == len(trained)):
            for p in new:
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
