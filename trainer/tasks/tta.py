"""Test-time augmentation: the outputs for several views of an image, averaged.

Probabilities are averaged, not logits: their mean is what one reads in a table of probabilities, and no single view
can rule a class out. The mean is returned as a logarithm, so that softmax gives it back and cross-entropy is the loss
of the averaged prediction. Each label has a probability and a logit of its own; numbers are averaged as they are.

`flip_shift` has the views and the weights of airbench94 (Jordan 2024, arXiv:2404.00498), where logits are averaged: the
image and its mirror image together count as much as their four shifted copies together. A shift of one pixel of 32
there is a 32nd of the side here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from augment.support.errors import UserError
from augment.support.lazy import F, Tensor, nn, torch
from trainer.tasks.task import Task

View = Callable[["Tensor"], "Tensor"]

_SHIFT = 1 / 32  # of the side


def _original(images: Tensor) -> Tensor:
    return images


def _mirror(images: Tensor) -> Tensor:
    return images.flip(3)


def _shift(images: Tensor, direction: int, *, mirror: bool) -> Tensor:
    """Shift images along the diagonal, down and right or, with -1, up and left; reflect them at the edge."""
    height, width = images.shape[2:]
    pixels = max(1, round(_SHIFT * min(height, width)))
    start = pixels - direction * pixels
    moved = F.pad(images, (pixels, pixels, pixels, pixels), mode="reflect")
    moved = moved[:, :, start : start + height, start : start + width]
    moved = moved.contiguous(memory_format=torch.channels_last)
    return _mirror(moved) if mirror else moved


_SHIFTED = tuple((0.125, partial(_shift, direction=d, mirror=mirror)) for d in (-1, 1) for mirror in (False, True))

# Name in the configuration -> views of an image with their weights, which sum to 1.
TTA: Mapping[str, tuple[tuple[float, View], ...]] = MappingProxyType(
    {
        "none": ((1.0, _original),),
        "flip": ((0.5, _original), (0.5, _mirror)),
        "flip_shift": ((0.25, _original), (0.25, _mirror), *_SHIFTED),
    }
)


def check_views(tta: str, task: Task[Any]) -> None:
    """Check that a task can average the views of a name.

    Raises:
        UserError: it cannot.
    """
    if tta not in task.views:
        raise UserError(f"fit.tta={tta}: not where {task.kind.units} are predicted. Allowed: {', '.join(task.views)}.")


def average(model: nn.Module, images: Tensor, tta: str, task: Task[Any]) -> Tensor:
    """Return a model's outputs for images, averaged over several views of each.

    The model sees one view after the other, so that a batch takes no more memory than without averaging.

    Args:
        model: (N, 3, height, width) -> (N, ...) outputs.
        images: (N, 3, height, width).
        tta: a name of `TTA`.
        task: the task, which averages the outputs.

    Returns:
        (N, ...) float32; with "none" the model's output as it is.
    """
    if tta == "none":
        output: Tensor = model(images)
        return output
    looks = []
    for weight, view in TTA[tta]:
        output = model(view(images)).float()
        looks.append((weight, task.unmirrored(output, model) if view is _mirror else output))
    return task.average(looks)
