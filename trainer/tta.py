"""Test-time augmentation: what a model says of several views of a picture, averaged.

Probabilities are averaged, not logits: the mean is then what one reads in a table of probabilities, and no single view
can rule a class out. It is returned as a logarithm, so that softmax gives it back and cross-entropy is the loss of the
averaged prediction. Of labels, each has its own probability and logit; numbers are averaged as they are.

`flip_shift` has the views and the weights of airbench94 (Jordan 2024, arXiv:2404.00498), where logits are averaged: the
picture and its mirror count as much as their four shifted copies together. What is one pixel of 32 there is a 32nd of
the side here.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import log
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from augment.dataset import Task

View = Callable[[Tensor], Tensor]

_SHIFT = 1 / 32  # of the side


def _itself(images: Tensor) -> Tensor:
    return images


def _mirror(images: Tensor) -> Tensor:
    return images.flip(3)


def _shift(images: Tensor, direction: int) -> Tensor:
    """Move pictures along the diagonal, down and right or, with -1, up and left; the edge is reflected."""
    height, width = images.shape[2:]
    pixels = max(1, round(_SHIFT * min(height, width)))
    start = pixels - direction * pixels
    moved = F.pad(images, (pixels, pixels, pixels, pixels), mode="reflect")
    moved = moved[:, :, start : start + height, start : start + width]
    return moved.contiguous(memory_format=torch.channels_last)


def _mirrored_shift(images: Tensor, direction: int) -> Tensor:
    return _mirror(_shift(images, direction))


_SHIFTED = tuple((0.125, partial(view, direction=way)) for way in (-1, 1) for view in (_shift, _mirrored_shift))

# Name in the configuration -> views of a picture with their weights, which sum to 1.
TTA: Mapping[str, tuple[tuple[float, View], ...]] = MappingProxyType(
    {
        "none": ((1.0, _itself),),
        "flip": ((0.5, _itself), (0.5, _mirror)),
        "flip_shift": ((0.25, _itself), (0.25, _mirror), *_SHIFTED),
    }
)


def average(model: Callable[[Tensor], Tensor], images: Tensor, tta: str, task: Task = "classify") -> Tensor:
    """Return what a model says of pictures, averaged over views of each.

    The views are looked at one after the other, so that a batch takes no more memory than without.

    Args:
        model: (N, 3, size, size) -> (N, classes) logits.
        images: (N, 3, size, size).
        tta: a name of `TTA`.
        task: what the outputs are.

    Returns:
        (N, classes) float32, the logarithm of the mean probabilities, logits of those of labels, or mean numbers;
        with "none" the model's output as it is.
    """
    if tta == "none":
        return model(images)
    if task == "regress":
        return torch.stack([weight * model(view(images)).float() for weight, view in TTA[tta]]).sum(dim=0)
    if task == "multilabel":
        # The logit of a mean probability from logarithms alone, so that none is rounded to 0 or 1.
        logits = [(log(weight), model(view(images)).float()) for weight, view in TTA[tta]]
        yes, no = (
            torch.stack([weight + F.logsigmoid(sign * logit) for weight, logit in logits]).logsumexp(dim=0)
            for sign in (1, -1)
        )
        return yes - no
    looks = [log(weight) + F.log_softmax(model(view(images)).float(), dim=1) for weight, view in TTA[tta]]
    return torch.stack(looks).logsumexp(dim=0)
