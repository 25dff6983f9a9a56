"""Loss functions, and their settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from augment.params import Choice, Flag, Number, setting

if TYPE_CHECKING:
    from torch import Tensor

LossFunction = Callable[["Tensor", "Tensor"], "Tensor"]

# Losses of numbers, means over the batch and the numbers of each image -> names in torch.nn.functional.
REGRESSION_LOSSES = {"mse": "mse_loss", "mae": "l1_loss", "huber": "huber_loss"}


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """How the loss is computed; some settings apply to some tasks only."""

    label_smoothing: float = setting(
        Number(default=0, within=(0, 0.999), doc="share of each training target that is spread over all classes")
    )
    regression_loss: str = setting(
        Choice(
            default="huber",
            options=REGRESSION_LOSSES,
            doc="regression: the loss to minimize; huber: quadratic for errors up to 1, linear beyond, which allows a "
            "higher lr than mse",
        )
    )
    standardize: bool = setting(
        Flag(
            default=True,
            doc="regression: learn targets standardized by mean and deviation of the train split, which the loss is "
            "computed on; everything else is in original units",
        )
    )


def regression_loss(name: str) -> LossFunction:
    """Return the loss of numbers of a name in the configuration."""
    from torch.nn import functional

    loss: LossFunction = getattr(functional, REGRESSION_LOSSES[name])
    return loss


@dataclass(frozen=True)
class CrossEntropy:
    """Cross entropy, a mean over the batch.

    Attributes:
        smoothing: share of every target that is spread evenly over all classes (Szegedy et al. 2016,
            arXiv:1512.00567), in [0, 1).
        weights: (classes,) weights of the classes, on the device; None: 1. For class indices the mean is PyTorch's:
            each image has the weight of its class, and the sum is divided by the sum of these weights. For shares
            PyTorch divides by the number of images; here the mean is as for indices, as an index is the share 1.
    """

    smoothing: float = 0.0
    weights: Tensor | None = field(default=None, compare=False)

    def weight_of(self, targets: Tensor) -> Tensor | None:
        """Return the () sum of weights that the mean over a batch divides by; None: the number of its images."""
        if self.weights is None:
            return None
        return (targets @ self.weights if targets.ndim == 2 else self.weights[targets]).sum().float()

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss.

        Args:
            outputs: (N, classes).
            targets: (N,) class indices, or (N, classes) shares.
        """
        from torch.nn.functional import cross_entropy, one_hot

        if self.weights is None or (targets.ndim == 1 and not self.smoothing):
            return cross_entropy(outputs, targets, self.weights, label_smoothing=self.smoothing)
        if targets.ndim == 1:
            # With weights and smoothing PyTorch selects images by a mask, for which it waits for the GPU.
            targets = one_hot(targets, outputs.shape[1]).to(outputs.dtype)
        total = cross_entropy(outputs, targets, self.weights, label_smoothing=self.smoothing, reduction="sum")
        return total / (targets @ self.weights).sum()


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Cross entropy of each label on its own, present or absent, a mean over the batch and the labels.

    Attributes:
        smoothing: share of every target that is spread evenly over present and absent, in [0, 1).
        weights: (labels,) weights of present labels, on the device; an absent label has weight 1. None: 1.
    """

    smoothing: float = 0.0
    weights: Tensor | None = field(default=None, compare=False)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss.

        Args:
            outputs: (N, labels) logits.
            targets: (N, labels) in [0, 1].
        """
        from torch.nn.functional import binary_cross_entropy_with_logits

        if self.smoothing:
            targets = targets * (1 - self.smoothing) + self.smoothing / 2
        return binary_cross_entropy_with_logits(outputs, targets, pos_weight=self.weights)
