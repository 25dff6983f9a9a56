"""Try `fit.loss` and the metrics of plugins on a few samples before training."""

import warnings
from collections.abc import Iterable
from itertools import count
from typing import Any

from augment.support.errors import UserError, first_line
from augment.support.lazy_torch import Tensor, torch
from augment.support.user_code import OwnCodeError, describe_own, describe_raised
from trainer.tasks.loss import LOSSES, LabelLoss, LossFunction, LossSettings, NamedLoss, declared, smooths
from trainer.tasks.meter import Meter
from trainer.tasks.metric import TaskMetric
from trainer.tasks.task import Task


def check_loss(task: Task[Any], fit: LossSettings, classes: int, *, mixing: str = "", weighted: bool = False) -> None:
    """Check `fit.loss` by computing each of its terms once.

    Args:
        task: the task.
        fit: settings of the fit.
        classes: number of classes, labels, numbers or keypoints.
        mixing: the setting that mixes targets, for messages. Empty: targets are not mixed.
        weighted: whether classes or labels have weights.

    Raises:
        UserError: the loss is unknown, or cannot be computed with these settings.
    """
    if fit.loss is None:
        if fit.loss_options:
            raise UserError(
                "fit.loss_options needs fit.loss. Remove fit.loss_options, or set fit.loss to one of "
                f"{', '.join(declared(LOSSES, task.lineage))}."
            )
        return
    named = task.named_loss(fit)
    if fit.label_smoothing and task.loss_type is NamedLoss and not any(map(smooths, named.terms)):
        raise UserError(
            f"fit.label_smoothing={fit.label_smoothing:g}: fit.loss={fit.loss} has no label smoothing. Set "
            "fit.label_smoothing=0."
        )
    for term in named.terms:
        smoothing = f"fit.label_smoothing={fit.label_smoothing:g}" if named.smoothing and not smooths(term) else ""
        shape = _try(term, task, fit, classes, mixing or smoothing)
        each, whole = "label" if task.loss_type is LabelLoss else "sample", "sample" if shape else "batch"
        if weighted and len(shape) < 1 + (each == "label"):
            raise UserError(
                f"data.balance=weights needs one loss value per {each}, but fit.loss={fit.loss} returns one value per "
                f"{whole}. Set another fit.loss, or data.balance=oversample."
            )


def _try(term: LossFunction, task: Task[Any], fit: LossSettings, classes: int, mixing: str) -> tuple[int, ...]:
    """Compute a loss for a few samples, and return the shape of the result."""
    outputs, targets = _samples(task, classes, shares=bool(mixing))
    samples = len(outputs)
    try:
        shape = tuple(term(outputs, targets).shape)
    except Exception as error:
        what = "cannot take mixed targets" if mixing else "fails"
        change = f"remove {mixing}" if mixing else "change fit.loss_options"
        if own := describe_own(error):
            change = f", or {change}" if mixing or fit.loss_options else ""
            raise OwnCodeError(f"fit.loss={fit.loss}: {what}. {own} Correct the loss{change}.") from error
        text = f"{what} ({first_line(error)}). Set another fit.loss, or {change}."
        raise UserError(f"fit.loss={fit.loss}: {text}") from error
    if shape[:1] not in ((), (samples,)) or samples in shape[1:]:
        raise UserError(
            f"fit.loss={fit.loss} returns shape {shape} for {samples} samples. Return one value per sample, "
            f"({samples},), or their mean, ()."
        )
    return shape


def _samples(task: Task[Any], classes: int, *, shares: bool = False) -> tuple[Tensor, Tensor]:
    """Return outputs and targets of a few samples.

    The number of samples differs from all other dimensions, so that accidental broadcasting fails.
    """
    example = task.example(classes, shares=shares)
    sizes = {size for tensor in example for size in tensor.shape[1:]}
    samples = next(number for number in count(3) if number not in sizes)
    outputs, targets = (tensor[:1].repeat_interleave(samples, dim=0) for tensor in example)
    return outputs, targets


def check_own_metrics(task: Task[Any], metrics: Iterable[TaskMetric], classes: int) -> None:
    """Check metrics of plugins by measuring a few samples. Errors that may depend on the data are ignored.

    Raises:
        UserError: a metric returns neither a number nor one value per sample, or its code raises an error.
    """
    for metric in metrics:
        if not metric.own or task.own_loss:  # such a task has no samples without a network
            continue
        outputs, targets = _samples(task, classes)
        meter = Meter(task, [metric], outputs.device, keep=True)
        try:
            with warnings.catch_warnings(action="ignore"):
                meter.update(torch.zeros(()), outputs, targets)
                meter.scores()
        except (ArithmeticError, LookupError, RuntimeError, ValueError):
            continue
        except (AttributeError, ImportError, NameError, TypeError) as error:
            raise OwnCodeError(f"metric {metric.name}: {describe_raised(error)} Correct the metric.") from error
