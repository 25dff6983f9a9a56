"""Test-time augmentation: the outputs for an image and its mirror image, averaged.

Probabilities are averaged, not logits: their mean is what one reads in a table of probabilities, and no single view
can rule a class out. The mean is returned as a logarithm, so that softmax gives it back and cross-entropy is the loss
of the averaged prediction. Each label has a probability and a logit of its own; numbers are averaged as they are.
"""

from __future__ import annotations

from typing import Any

from augment.support.errors import UserError
from augment.support.lazy import Tensor, nn
from trainer.tasks.task import Task

TTA = ("none", "flip")  # values of fit.tta


def check_views(tta: str, task: Task[Any]) -> None:
    """Check that a task can average the views of a name.

    Raises:
        UserError: it cannot.
    """
    if tta not in task.views:
        raise UserError(f"fit.tta={tta}: not where {task.kind.units} are predicted. Allowed: {', '.join(task.views)}.")


def average(model: nn.Module, images: Tensor, tta: str, task: Task[Any]) -> Tensor:
    """Return a model's outputs for images, with "flip" averaged with those for their mirror images.

    The model sees one view after the other, so that a batch takes no more memory than without averaging.

    Args:
        model: (N, 3, height, width) -> (N, ...) outputs.
        images: (N, 3, height, width).
        tta: a name of `TTA`.
        task: the task, which averages the outputs.

    Returns:
        (N, ...) float32; with "none" the model's output as it is.
    """
    output: Tensor = model(images)
    if tta == "none":
        return output
    mirrored = task.unmirrored(model(images.flip(3)).float(), model)
    return task.average([(0.5, output.float()), (0.5, mirrored)])
