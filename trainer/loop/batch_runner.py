"""The work of a batch: forward, backward and the optimizer's step, here one after the other, as PyTorch does it.

`trainer.loop.cuda_graph_runner` records it as CUDA graphs, and adds what several processes exchange.
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
    """What a batch came to, on the device."""

    output: Tensor
    loss: Tensor  # (), the mean loss


class LearnerParts(Protocol):
    """What a runner uses of the learner. `optimizer`, `training_step` and `name_of_step` are the current ones."""

    settings: LoopSettings
    device: torch.device
    ranks: Ranks
    model: nn.Module
    optimizer: Optimizer
    name_of_step: str
    training_step: TrainingStep | None
    task: Task[Any]
    loss_function: LossFunction
    val_loss_function: LossFunction
    train_loader: Any


class Runner:
    """Does the work of batches, and keeps what belongs to a step: its gradients.

    Attributes:
        pending: whether there are gradients that no step has used yet.
        scaler: scales the loss in float16, and skips steps that are not finite; None: no step is skipped.
    """

    def __init__(self, learner: LearnerParts) -> None:
        settings, device = learner.settings, learner.device
        self._learner, self._model, self._optimizer = learner, learner.model, learner.optimizer
        self._task, self._step, self._name = learner.task, learner.training_step, learner.name_of_step
        self.scaler = Scaler(device) if settings.scaled else None
        self._shares = settings.accumulate > 1 or learner.ranks.size > 1
        self._share = torch.ones((), device=device)  # what the loss of this rank's batch is multiplied by
        self._weights = torch.zeros(2, device=device)  # of the pending gradients, see `_weigh`
        # Key of a step's weights in `kept_gradients`, which no parameter can have.
        self._weights_key = self._name and f"{self._name}."
        self.pending = False
        self._weighted = False  # whether the pending gradients have to be divided at the step

    # --- for the learner ---

    def enter(self, kind: str) -> None:
        """Begin a pass: "train" or "validate"."""

    def train(self, batch: Batch, share: float) -> Pass:
        """Run a training batch forward and backward; `share` is the share of its images in those of the step."""
        self.pending, targets = True, self._task.targets_of(batch)
        if self._shares:
            self._weigh(batch, targets, share)
        if self._step is None:
            return Pass(*self._run("train", self._forward_backward, batch.images, targets))

        def work(images: Tensor, targets: Tensor, *views: Tensor) -> Tensors:
            return self._step_backward(replace(batch, images=images, targets=targets, views=views))

        (loss,) = self._run("train", work, batch.images, batch.targets, *batch.views)
        return Pass(loss, loss)

    def validate(self, batch: Batch) -> Pass:
        """Run a batch forward."""

        def forward(images: Tensor, targets: Tensor) -> Tensors:
            return self._forward(images, targets, self._learner.val_loss_function, self._learner.settings.tta)

        return Pass(*self._run("validate", forward, batch.images, self._task.targets_of(batch)))

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The model's parameters that the optimizer trains, by name."""
        own = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        return {name: p for name, p in self._model.named_parameters() if id(p) in own}

    @contextmanager
    def gradients(self) -> Iterator[None]:
        """Complete the gradients of a step, which is made inside, or else cancelled: then more are added to them."""
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
        """Make a step with the current gradients, and clear them."""
        if self.scaler is None:
            self._optimizer.step()
        else:
            self.scaler.make_step(self._optimizer)
        self.drop()

    def drop(self) -> None:
        """Clear the gradients, whether or not a step has used them."""
        self._clear()
        self._zero()

    def forget(self) -> None:
        """Discard what was recorded, and the gradients of parameters that are not trained any more."""
        for parameter in self._model.parameters():
            if not parameter.requires_grad:
                parameter.grad = None  # otherwise momentum and decay would still move it

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state as it loads on any device, and the scale of the loss, as "scaler"."""
        state = dict(self._optimizer.state_dict())
        return state if self.scaler is None else state | {"scaler": self.scaler.state_dict()}

    def kept_gradients(self) -> dict[str, Tensor]:
        """Return copies of the gradients that no step has used yet, of the loss itself, by names of parameters."""
        factor = 1.0 if self.scaler is None else self.scaler.factor
        found = self.parameters.items() if self.pending else ()
        weights = {self._weights_key: self._weights.clone()} if self.pending and self._weighted else {}
        return {name: p.grad / factor for name, p in found if p.grad is not None} | weights

    def load_state_dict(self, state: dict[str, Any], gradients: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` and `kept_gradients` returned, from whatever device."""
        if self.scaler is not None and "scaler" in state:  # the saved run may have had another precision
            self.scaler.load_state_dict(state["scaler"])
        kept = {name: value for name, value in state.items() if name != "scaler"}
        # PyTorch moves counts of steps from the host to where the optimizer expects them; an eager step would wait for
        # one on a GPU.
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
        """Set the weight of the batch in its step: its share of the images times their mean weight.

        If the loss declares its denominator, the mean weight of the step's images is known only at its end. Gradients
        are divided by it then.
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

    def _forward(self, images: Tensor, targets: Tensor, loss_function: LossFunction, views: str) -> Tensors:
        with self._learner.settings.autocast(self._learner.device):
            if self._task.own_loss and self._model.training:
                output = self._model(images, targets)
            else:
                output = average(self._model, images, views, self._task)
        check_outputs(output, loss_function, self._learner.train_loader)
        return output, loss_function(output.float(), targets)

    def _forward_backward(self, images: Tensor, targets: Tensor) -> Tensors:
        output, loss = self._forward(images, targets, self._learner.loss_function, "none")
        scaled = loss * self._share if self._shares else loss
        self._backward(scaled if self.scaler is None else self.scaler.scale(scaled))
        return output, loss

    def _step_backward(self, batch: Batch) -> Tensors:
        assert self._step is not None
        with self._learner.settings.autocast(self._learner.device):
            loss = self._step(self._learner, batch)
        if not isinstance(loss, Tensor) or loss.shape or not loss.requires_grad:
            raise UserError("training_step: it must return the loss, a tensor of shape () with a gradient.")
        scaled = loss * self._share if self._shares else loss
        self._backward(scaled if self.scaler is None else self.scaler.scale(scaled))
        return (loss,)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]

    def _backward(self, loss: Tensor) -> None:
        # A training step fills only the gradients of its own optimizer.
        own = None if self._step is None else [p for p in self.parameters.values() if p.requires_grad]
        loss.backward(inputs=own)  # type: ignore[no-untyped-call]

    def _zero(self) -> None:
        self._optimizer.zero_grad()


def check_outputs(outputs: Tensor, loss_function: object, loader: object) -> None:
    """Check that a model has an output for each class if its loss is cross entropy."""
    classes = len(getattr(loader, "classes", ()))
    if loss_function is nn.functional.cross_entropy and outputs.ndim == 2 and outputs.shape[1] < classes:
        raise UserError(
            f"model: its outputs have shape {tuple(outputs.shape)}, but the data have {classes} classes. Give it an "
            f"output for each class, such as nn.Linear(..., {classes})."
        )


def average(model: nn.Module, images: Tensor, tta: str, task: Task[Any]) -> Tensor:
    """Return a model's outputs for images, with "flip" averaged with those for their mirror images.

    Probabilities are averaged, not logits: their mean is what one reads in a table of probabilities, and no single view
    can rule a class out. The mean is returned as a logarithm, so that softmax gives it back and cross-entropy is the
    loss of the averaged prediction. The model sees one view after the other, so that a batch takes no more memory.

    Images are (N, 3, height, width), outputs (N, ...) float32; with "none" the model's output as it is.
    """
    output: Tensor = model(images)
    if tta == "none":
        return output
    mirrored = task.unmirrored(model(images.flip(3)).float(), model)
    return task.average([output.float(), mirrored])


class Scaler(GradScaler):
    """PyTorch's scaler of a loss in float16, where small gradients would vanish (Micikevicius et al. 2018).

    Steps may be cancelled, and checkpoints may be taken within a step.

    PyTorch's fused kernels skip a step without the host; for any other optimizer, the host waits for the decision. In
    between, `GradScaler` keeps a state in Python, so that a step cannot be recorded, only the passes before it. Of
    several ranks, each scales the loss alike, and what is not finite on one is in the sum that all of them check.

    Args:
        device: the device of the loss and of the gradients.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device.type)
        self._one = torch.ones((), device=device)

    @property
    def factor(self) -> Tensor:
        """What the loss is multiplied by, () float32."""
        return self.scale(self._one)

    def keep(self, gradients: list[Tensor]) -> None:
        """Multiply gradients by the factor again after a step that was cancelled, as more are added to them."""
        factor = self.factor
        torch._foreach_mul_(gradients, factor)
        self.update(factor)

    def make_step(self, optimizer: Optimizer) -> None:
        """Make the optimizer's step, unless the gradients are not finite; adapt the factor."""
        complete_momentum(optimizer)
        self.step(optimizer)
        self.update()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors."""
        state = super().state_dict()
        clean = torch.tensor(state["_growth_tracker"], dtype=torch.int32)
        return {"scale": torch.tensor(state["scale"]), "clean": clean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, in place: recorded work reads the factor."""
        kept = {"scale": float(state["scale"]), "_growth_tracker": int(state["clean"])}
        super().load_state_dict(super().state_dict() | kept)


def complete_momentum(optimizer: Optimizer) -> None:
    """Give parameters of fused SGD that were not trained before a momentum of 0.

    Its kernel needs all buffers or none, and where it skips the first step, it leaves them as they came from memory.
    """
    for group in optimizer.param_groups if type(optimizer) is SGD else ():
        trained = [p for p in group["params"] if p.grad is not None]
        new = [p for p in trained if optimizer.state[p].get("momentum_buffer") is None]
        # Without buffers, the first gradients are not dampened.
        if group["fused"] and group["momentum"] and not (group["dampening"] and len(new) == len(trained)):
            for p in new:
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
