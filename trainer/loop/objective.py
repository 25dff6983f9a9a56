"""The objective of a fit: its task, losses and training steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from augment.pipeline.batch import Batch
from augment.support.errors import UserError
from trainer.tasks.loss import LossFunction, LossSettings
from trainer.tasks.registry import DEFAULT
from trainer.tasks.task import Task

# A function of the learner and a batch. It returns the mean loss of the batch, a tensor of shape ().
TrainingStep = Callable[[Any, Batch], Tensor]
T = TypeVar("T", bound=TrainingStep)


@dataclass(frozen=True)
class Objective:
    """What a fit minimizes: the losses of a task, or your own training step.

    Attributes:
        task: the task or its name. It defines metrics, and averages the outputs for an image and its mirror image.
        loss_function: `(outputs, targets) -> scalar`, a mean over the batch. None: the task's own.
        val_loss_function: the validation loss. None: `loss_function` if given, otherwise the task's own.
        training_step: replaces the forward pass and the loss of a training batch. None: the usual pass. For several
            optimizers, a mapping of steps by the optimizers' names.
    """

    task: Task[Any] | str = DEFAULT
    loss_function: LossFunction | None = None
    val_loss_function: LossFunction | None = None
    training_step: TrainingStep | Mapping[str, TrainingStep] | None = None


def losses_of(
    objective: Objective, task: Task[Any], model: nn.Module, device: torch.device
) -> tuple[LossFunction, LossFunction]:
    """Return the loss functions of training and validation."""
    own: tuple[LossFunction, LossFunction] = nn.functional.cross_entropy, nn.functional.cross_entropy
    if objective.loss_function is None and task.name != DEFAULT:
        own = task.make_losses(LossSettings(), model, device)
    loss = objective.loss_function or own[0]
    return loss, objective.val_loss_function or objective.loss_function or own[1]


def recordable(step: T) -> T:
    """Declare that a training step can be recorded as a CUDA graph.

    The step must do the same work for each batch. It may read only the batch's images, targets and views, and must not
    wait for the GPU.
    """
    step.recordable = True  # type: ignore[attr-defined]
    return step


def by_name(given: Any) -> dict[str, Any]:
    """Return a mapping as a dict. Return anything else as a dict with an empty name."""
    return dict(given) if isinstance(given, Mapping) else {"": given}


def check_names(steps: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
    """Check that each optimizer has a training step.

    Raises:
        UserError: the names differ.
    """
    if steps.keys() != optimizers.keys():
        raise UserError(
            f"training_step has the names {sorted(steps)}, but the optimizers have the names {sorted(optimizers)}. "
            "Pass two mappings with the same names, or one step and one optimizer without names."
        )


def make_optimizer(optimizer: Callable[[nn.Module], Optimizer], model: nn.Module) -> Optimizer:
    """Make the optimizer of a model.

    Raises:
        UserError: an optimizer is given instead of a function that makes it.
    """
    given: object = optimizer
    if isinstance(given, Optimizer):
        name = type(given).__name__
        raise UserError(
            f"optimizer: {name}(...) was made before the model was moved to its device. Pass a function that makes it, "
            f"such as lambda model: {name}(model.parameters(), lr=0.1)."
        )
    return optimizer(model)
