"""The built-in losses for `fit.loss`. Most come from timm."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from augment.support.lazy_torch import F, Tensor, torch
from trainer.tasks.loss import LossFunction, NamedLoss, loss


def pixel_loss(
    outputs: Tensor,
    targets: Tensor,
    *,
    terms: Sequence[str] = ("cross_entropy",),
    smoothing: float = 0.0,
    gamma: float = 2.0,
) -> Tensor:
    """Return a segmentation loss, or the sum of several, ().

    Each loss is computed per image and averaged over the images, so it does not depend on the batch size, accumulation
    or the number of ranks. Pixels without a class, such as ignored pixels, do not count. The loss of an image without
    counted pixels is 0.

    cross_entropy: a mean over the image's pixels.
    focal: cross entropy weighted by (1 - p)^gamma, with p the probability of the pixel's class (Lin et al. 2017,
        arXiv:1708.02002).
    dice: 1 minus the Dice coefficient of probabilities and targets, as a mean over the image's classes (Milletari et
        al. 2016, arXiv:1606.04797). The denominator sums values instead of their squares.

    Args:
        outputs: (N, classes, height, width).
        targets: (N, height, width) class indices.
        terms: names of the losses to add.
        smoothing: for cross_entropy, the share of each target that is spread evenly over all classes, in [0, 1).
        gamma: exponent of (1 - p) in focal.
    """
    logs = outputs.log_softmax(dim=1)
    counted = targets < outputs.shape[1]
    truth = targets.where(counted, 0)[:, None]
    # PyTorch's cross entropy of indices is not deterministic on a GPU.
    entropy = -logs.gather(1, truth)[:, 0]
    pixels = counted.flatten(1).sum(dim=1).clamp(min=1)
    loss = outputs.new_zeros(len(outputs))
    for term in terms:
        if term == "dice":
            loss = loss + _dice_loss(logs.exp() * counted[:, None], truth, counted)
            continue
        if term == "focal":
            each = (1 - (-entropy).exp()).clamp(min=1e-30) ** gamma * entropy
        else:
            each = entropy * (1 - smoothing) - smoothing * logs.mean(dim=1)
        loss = loss + (each * counted).flatten(1).sum(dim=1) / pixels
    return loss.mean()


def _dice_loss(shares: Tensor, truth: Tensor, counted: Tensor) -> Tensor:
    """Return the Dice loss of each image, (N,), for probabilities, (N, classes, height, width)."""
    true = torch.zeros_like(shares).scatter(1, truth, counted[:, None].to(shares.dtype))
    common, true_pixels, predicted_pixels = (part.flatten(2).sum(dim=2) for part in (shares * true, true, shares))
    occurs = true_pixels > 0
    losses = 1 - 2 * common / (true_pixels + predicted_pixels).clamp(min=1e-6)
    return (losses * occurs).sum(dim=1) / occurs.sum(dim=1).clamp(min=1)


@loss("classify")
def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return cross entropy, (N,)."""
    return F.cross_entropy(outputs, targets, reduction="none")


@loss("classify")
def focal(outputs: Tensor, targets: Tensor, *, gamma: float = 2.0) -> Tensor:
    """Return the focal loss, (N,). Confident predictions have a low weight (Lin et al. 2017, arXiv:1708.02002)."""
    logs, shares = outputs.log_softmax(dim=1), _shares(outputs, targets)
    # A power below 1 has an infinite slope at 0.
    return -(shares * (1 - logs.exp()).clamp(min=1e-30) ** gamma * logs).sum(dim=1)


@loss("multilabel")
@loss("classify")
def bce(outputs: Tensor, targets: Tensor, *, target_threshold: float | None = None) -> Tensor:
    """Return binary cross entropy of each class or label, (N, K) (Wightman et al. 2021, arXiv:2110.00476)."""
    return _timm("BinaryCrossEntropy", outputs, targets, smoothing=0.0, target_threshold=target_threshold)


@loss("classify")
def poly(outputs: Tensor, targets: Tensor, *, epsilon: float = 2.0) -> Tensor:
    """Return the Poly-1 loss, (N,) (Leng et al. 2022, arXiv:2204.12511)."""
    return _timm("PolyCrossEntropy", outputs, targets, epsilon=epsilon)


@loss("classify")
def asymmetric(
    outputs: Tensor, targets: Tensor, *, gamma_neg: float = 4.0, gamma_pos: float = 1.0, smoothing: float = 0.0
) -> Tensor:
    """Return the asymmetric loss of class indices, (N,) (Ridnik et al. 2021, arXiv:2009.14119)."""
    return _timm("AsymmetricLossSingleLabel", outputs, targets, gamma_pos=gamma_pos, gamma_neg=gamma_neg, eps=smoothing)


@loss("classify")
def gce(outputs: Tensor, targets: Tensor, *, q: float = 0.7) -> Tensor:
    """Return the generalized cross entropy, (N,). It limits the effect of each label (Zhang and Sabuncu 2018).

    For q near 0, it is cross entropy. For q = 1, it is 1 - p, which tolerates wrong labels best but learns slowest
    (arXiv:1805.07836).
    """
    # Computed from logarithms, because a power of p has an infinite slope at p = 0.
    each = -torch.expm1(q * outputs.log_softmax(dim=1)) / q
    return (_shares(outputs, targets) * each).sum(dim=1)


@loss("classify")
def sce(outputs: Tensor, targets: Tensor, *, alpha: float = 0.1, beta: float = 1.0) -> Tensor:
    """Return the symmetric cross entropy, (N,) (Wang et al. 2019, arXiv:1908.06112).

    It is `alpha` times cross entropy, plus `beta` times the cross entropy with targets and probabilities swapped.
    Target shares below 1e-4 count as 1e-4, because the logarithm of 0 is infinite.
    """
    logs, shares = outputs.log_softmax(dim=1), _shares(outputs, targets)
    swapped = logs.exp() * shares.clamp(min=1e-4).log()
    return -(alpha * shares * logs + beta * swapped).sum(dim=1)


@loss("multilabel", name="focal")
def label_focal(outputs: Tensor, targets: Tensor, *, gamma: float = 2.0, alpha: float | None = None) -> Tensor:
    """Return the focal loss, (N, K). Present labels have the weight `alpha`, and absent labels 1 - alpha."""
    return label_poly(outputs, targets, epsilon=0.0, gamma=gamma, alpha=alpha)


@loss("multilabel", name="poly")
def label_poly(
    outputs: Tensor, targets: Tensor, *, epsilon: float = 2.0, gamma: float = 0.0, alpha: float | None = None
) -> Tensor:
    """Return the Poly-1 loss, (N, K)."""
    return _timm("PolyBinaryCrossEntropy", outputs, targets, epsilon=epsilon, gamma=gamma, alpha=alpha)


@loss("multilabel", name="asymmetric")
def label_asymmetric(
    outputs: Tensor, targets: Tensor, *, gamma_neg: float = 4.0, gamma_pos: float = 1.0, clip: float | None = 0.05
) -> Tensor:
    """Return the asymmetric loss, (N, K)."""
    return _timm("AsymmetricLossMultiLabel", outputs, targets, gamma_neg=gamma_neg, gamma_pos=gamma_pos, clip=clip)


@loss("regress")
def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error, ()."""
    return F.mse_loss(outputs, targets)


@loss("regress")
def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean absolute error, ()."""
    return F.l1_loss(outputs, targets)


@loss("regress")
def huber(outputs: Tensor, targets: Tensor, *, delta: float = 1.0) -> Tensor:
    """Return the mean Huber loss, (). It is quadratic up to an error of `delta`, and linear beyond."""
    return F.huber_loss(outputs, targets, delta=delta)


@loss("segment", name="cross_entropy")
def pixel_cross_entropy(outputs: Tensor, targets: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Return the cross entropy of pixels, ()."""
    return pixel_loss(outputs, targets, smoothing=smoothing)


@loss("segment")
def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 minus the Dice coefficient, ()."""
    return pixel_loss(outputs, targets, terms=["dice"])


@loss("segment", name="focal")
def pixel_focal(outputs: Tensor, targets: Tensor, *, gamma: float = 2.0) -> Tensor:
    """Return the focal loss of pixels, ()."""
    return pixel_loss(outputs, targets, terms=["focal"], gamma=gamma)


def _shares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Convert class indices, (N,), to shares, (N, K). Shares are returned unchanged."""
    return F.one_hot(targets, outputs.shape[1]).to(outputs.dtype) if targets.ndim == 1 else targets


_PIXEL_TERMS: dict[object, str] = {pixel_cross_entropy: "cross_entropy", dice: "dice", pixel_focal: "focal"}


def merge_terms(loss: NamedLoss) -> LossFunction:
    """Merge the terms of a segmentation loss into one function, so that they share computations.

    A loss with terms from other modules is returned unchanged.
    """
    terms = tuple(_PIXEL_TERMS.get(getattr(term, "func", None), "") for term in loss.terms)
    options = {key: value for term in loss.terms for key, value in getattr(term, "keywords", {}).items()}
    return partial(pixel_loss, terms=terms, **options) if all(terms) else loss


def _timm(name: str, outputs: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """Return a timm loss for each sample."""
    from timm import loss as losses

    values: Tensor = getattr(losses, name)(reduction="none", **options)(outputs, targets)
    return values
