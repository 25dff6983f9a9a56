"""The losses that `fit.loss` can name, most of them timm's."""

from typing import Any

from augment.support.lazy import F, Tensor
from trainer.tasks.loss import Named, loss
from trainer.tasks.losses import LossFunction, PixelLoss


@loss("classify")
def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return cross entropy, (N,)."""
    return F.cross_entropy(outputs, targets, reduction="none")


@loss("classify")
def focal(outputs: Tensor, targets: Tensor, *, gamma: float = 2.0) -> Tensor:
    """Return the focal loss, (N,): confident predictions count less (Lin et al. 2017, arXiv:1708.02002)."""
    logs = outputs.log_softmax(dim=1)
    shares = F.one_hot(targets, outputs.shape[1]) if targets.ndim == 1 else targets
    # A power below 1 has no slope at 0.
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


@loss("multilabel", name="focal")
def label_focal(outputs: Tensor, targets: Tensor, *, gamma: float = 2.0, alpha: float | None = None) -> Tensor:
    """Return the focal loss, (N, K); present labels count `alpha`, absent ones 1 - alpha."""
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
    """Return the mean Huber loss, (): quadratic for errors up to `delta`, linear beyond."""
    return F.huber_loss(outputs, targets, delta=delta)


@loss("segment", name="cross_entropy")
def pixel_cross_entropy(outputs: Tensor, targets: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Return cross entropy of pixels, ()."""
    return PixelLoss(smoothing=smoothing)(outputs, targets)


@loss("segment")
def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 - the Dice coefficient, ()."""
    return PixelLoss(("dice",))(outputs, targets)


@loss("segment", name="focal")
def pixel_focal(outputs: Tensor, targets: Tensor, *, gamma: float = 2.0) -> Tensor:
    """Return the focal loss of pixels, ()."""
    return PixelLoss(("focal",), gamma=gamma)(outputs, targets)


_OF_PIXELS: dict[object, str] = {pixel_cross_entropy: "cross_entropy", dice: "dice", pixel_focal: "focal"}


def joined(loss: Named) -> LossFunction:
    """Return a loss of masks whose terms share what they compute, if all are from here."""
    terms = tuple(_OF_PIXELS.get(getattr(term, "func", None), "") for term in loss.terms)
    options = {key: value for term in loss.terms for key, value in getattr(term, "keywords", {}).items()}
    return PixelLoss(terms, **options) if all(terms) else loss


def _timm(name: str, outputs: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """Return what a loss of timm is for each sample."""
    from timm import loss as losses

    values: Tensor = getattr(losses, name)(reduction="none", **options)(outputs, targets)
    return values
