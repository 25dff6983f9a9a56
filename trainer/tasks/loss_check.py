"""A check of `fit.loss` before training."""

from itertools import count
from typing import Any

from augment.support.errors import UserError, first_line
from trainer.tasks.loss import LOSSES, LabelLoss, LossSettings, NamedLoss, declared, smooths
from trainer.tasks.task import Task


def check_loss(task: Task[Any], fit: LossSettings, classes: int, *, mixing: str = "", weighted: bool = False) -> None:
    """Check `fit.loss` by trying it with a number of samples that no other dimension has.

    Raises:
        UserError: the loss is unknown, or cannot be computed with these settings.
    """
    if fit.loss is None:
        if fit.loss_options:
            names = ", ".join(declared(LOSSES, task.lineage))
            raise UserError(f"fit.loss_options={fit.loss_options}: needs fit.loss. Allowed: null, or with {names}.")
        return
    named = task.named_loss(fit)
    if fit.label_smoothing and task.loss_type is NamedLoss and not any(map(smooths, named.terms)):
        raise UserError(f"fit.label_smoothing={fit.label_smoothing:g}: not with fit.loss={fit.loss}. Allowed: 0.")
    for term in named.terms:
        smoothed = named.smoothing and not smooths(term)
        soft = mixing or (f"fit.label_smoothing={fit.label_smoothing:g}" if smoothed else "")
        example = task.example(classes, shares=bool(soft))
        sizes = {size for tensor in example for size in tensor.shape[1:]}
        samples = next(number for number in count(3) if number not in sizes)
        outputs, targets = (tensor[:1].repeat_interleave(samples, dim=0) for tensor in example)
        try:
            shape = tuple(term(outputs, targets).shape)
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, AssertionError) as error:
            why = f"cannot take mixed targets, of {soft}" if soft else "fails"
            raise UserError(f"fit.loss={fit.loss}: {why} ({first_line(error)}).") from error
        if shape[:1] not in ((), (samples,)) or samples in shape[1:]:
            raise UserError(
                f"fit.loss={fit.loss}: returns shape {shape} for {samples} samples. Return one value per sample, "
                f"({samples},), or their mean, ()."
            )
        each, whole = "label" if task.loss_type is LabelLoss else "sample", "sample" if shape else "batch"
        if weighted and len(shape) < 1 + (each == "label"):
            raise UserError(
                f"data.balance=weights: fit.loss={fit.loss} returns one value for a {whole}, in which {task.units} "
                f"have no weights. Allowed: a loss that returns a value for each {each}; or data.balance=oversample."
            )
