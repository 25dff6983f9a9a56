"""What a fit optimizes: the task, its losses, and steps that replace the usual training step."""

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

# Takes the learner and a batch, and returns the loss to minimize, a () mean over the batch.
TrainingStep = Callable[[Any, Batch], Tensor]
T = TypeVar("T", bound=TrainingStep)


@dataclass(frozen=True)
class Objective:
    """What a fit optimizes, and what it measures.

    Attributes:
        task: the task, or its name; it measures passes and averages views.
        loss_function: `(outputs, targets) -> scalar`, a mean over the batch; None: the task's own.
        val_loss_function: the loss of validation; None: `loss_function`.
        training_step: replaces the model's pass over a training batch and its loss; None: the usual pass. With
            several optimizers, a mapping with a step for each, by the optimizer's name.
    """

    task: Task[Any] | str = DEFAULT
    loss_function: LossFunction | None = None
    val_loss_function: LossFunction | None = None
    training_step: TrainingStep | Mapping[str, TrainingStep] | None = None


def losses_of(
    objective: Objective, task: Task[Any], model: nn.Module, device: torch.device
) -> tuple[LossFunction, LossFunction]:
    """Return the losses of training and of validation."""
    own: tuple[LossFunction, LossFunction] = nn.functional.cross_entropy, nn.functional.cross_entropy
    if objective.loss_function is None and task.name != DEFAULT:
        own = task.make_losses(LossSettings(), model, device)
    loss = objective.loss_function or own[0]
    return loss, objective.val_loss_function or objective.loss_function or own[1]


def recordable(step: T) -> T:
    """Declare that CUDA graphs may record a training step.

    The step must do the same work for each batch, read only the batch's images, targets and views, and never wait for
    the GPU.
    """
    step.recordable = True  # type: ignore[attr-defined]
    return step


def by_name(given: Any) -> dict[str, Any]:
    """Return a mapping as it is, and anything else under an empty name."""
    return dict(given) if isinstance(given, Mapping) else {"": given}


def check_names(steps: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
    """Check that each optimizer has a training step.

    Raises:
        UserError: the names differ.
    """
    if steps.keys() != optimizers.keys():
        raise UserError(
            f"training_step: its names are {sorted(steps)}, the optimizers' names are {sorted(optimizers)}. "
            "Give both as mappings with the same names, or both without names."
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
