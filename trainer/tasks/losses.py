"""Loss functions, and their settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from augment.params import Flag, Number, OptionMap, Text, setting
from augment.support.lazy import F, Tensor, torch

LossFunction = Callable[["Tensor", "Tensor"], "Tensor"]


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """How the loss is computed; some settings apply to some tasks only."""

    loss: str | None = setting(
        Text(
            aliases=("criterion", "loss_fn", "loss_function", "regression_loss", "mask_loss"),
            optional=True,
            doc="the loss to train with, or a sum, as cross_entropy+dice; classes: asymmetric, bce, cross_entropy, "
            "focal, poly; labels: asymmetric, bce, focal, poly; numbers: huber, mae, mse; masks: "
            "cross_entropy, dice, focal; null: cross_entropy, of labels bce, of numbers huber",
        )
    )
    loss_options: Mapping[str, Any] | None = setting(
        OptionMap(
            optional=True,
            doc="arguments of fit.loss, such as {gamma: 3}; focal: gamma=2; poly: epsilon=2; asymmetric: gamma_neg=4, "
            "gamma_pos=1; bce: target_threshold; huber: delta=1; labels: also alpha of focal, alpha and gamma of poly, "
            "clip=0.05 of asymmetric",
        )
    )
    label_smoothing: float = setting(
        Number(default=0, within=(0, 0.999), doc="share of each training target that is spread over all classes")
    )
    standardize: bool = setting(
        Flag(
            default=True,
            doc="regression: learn targets standardized by mean and deviation of the train split, which the loss is "
            "computed on; everything else is in original units",
        )
    )


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
        if self.weights is None or (targets.ndim == 1 and not self.smoothing):
            return F.cross_entropy(outputs, targets, self.weights, label_smoothing=self.smoothing)
        if targets.ndim == 1:
            # With weights and smoothing PyTorch selects images by a mask, for which it waits for the GPU.
            targets = F.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
        total = F.cross_entropy(outputs, targets, self.weights, label_smoothing=self.smoothing, reduction="sum")
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
        if self.smoothing:
            targets = targets * (1 - self.smoothing) + self.smoothing / 2
        return F.binary_cross_entropy_with_logits(outputs, targets, pos_weight=self.weights)


@dataclass(frozen=True)
class PixelLoss:
    """A loss of masks, or a sum of several: each is computed for every image, and the mean is over the images.

    So it means the same for any batch size, accumulation and number of ranks. Pixels whose target is no class, such as
    those to ignore, do not count; an image that has no other counts as 0.

    cross_entropy: a mean over the image's pixels.
    focal: the same, each pixel weighted by (1 - p)^gamma, with p the probability of its class (Lin et al. 2017,
        arXiv:1708.02002).
    dice: 1 - the Dice coefficient of probabilities and targets, a mean over the classes that the image has (Milletari
        et al. 2016, arXiv:1606.04797, but with sums of the values, not of their squares).

    Attributes:
        terms: names of the losses to add up.
        smoothing: share of every target that is spread evenly over all classes, in cross_entropy, in [0, 1).
        gamma: exponent of (1 - p) in focal.
    """

    terms: tuple[str, ...] = ("cross_entropy",)
    smoothing: float = 0.0
    gamma: float = 2.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss.

        Args:
            outputs: (N, classes, height, width).
            targets: (N, height, width) class indices.
        """
        logs = outputs.log_softmax(dim=1)
        counted = targets < outputs.shape[1]
        truth = targets.where(counted, 0)[:, None]
        # PyTorch's own loss of indices is not deterministic on a GPU.
        entropy = -logs.gather(1, truth)[:, 0]
        pixels = counted.flatten(1).sum(dim=1).clamp(min=1)
        loss = outputs.new_zeros(len(outputs))
        for term in self.terms:
            if term == "dice":
                loss = loss + _dice_loss(logs.exp() * counted[:, None], truth, counted)
                continue
            if term == "focal":
                each = (1 - (-entropy).exp()).clamp(min=1e-30) ** self.gamma * entropy
            else:
                each = entropy * (1 - self.smoothing) - self.smoothing * logs.mean(dim=1)
            loss = loss + (each * counted).flatten(1).sum(dim=1) / pixels
        return loss.mean()


def _dice_loss(shares: Tensor, truth: Tensor, counted: Tensor) -> Tensor:
    """Return the loss of each image, (N,), of probabilities, (N, classes, height, width), and (N, 1, height, width)."""
    there = torch.zeros_like(shares).scatter(1, truth, counted[:, None].to(shares.dtype))
    common, in_truth, in_shares = (part.flatten(2).sum(dim=2) for part in (shares * there, there, shares))
    has = in_truth > 0
    lost = 1 - 2 * common / (in_truth + in_shares).clamp(min=1e-6)
    return (lost * has).sum(dim=1) / has.sum(dim=1).clamp(min=1)
