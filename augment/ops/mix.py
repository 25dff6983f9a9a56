"""Batch ops: they mix each sample with another one of its batch, and their targets alike."""

from typing import TYPE_CHECKING

import numpy as np

from augment.params import Number
from augment.registry import Array, batch

if TYPE_CHECKING:
    from torch import Tensor


def _beta(uniform: Array, alpha: float) -> Array:
    """Turn numbers of [0, 1) into draws of Beta(alpha, alpha), by the inverse of its distribution function."""
    from scipy.special import betaincinv  # a quarter of a second that only mixing needs

    return np.asarray(betaincinv(alpha, alpha, uniform), np.float64)


def _shares(size: int, uniform: Array, alpha: float) -> dict[str, Array]:
    return {"share": _beta(uniform, alpha).astype(np.float32)}


@batch(
    prepare=_shares,
    uniforms=("uniform",),
    alpha=Number(default=0.4, within=(0, 100), above=0, doc="of Beta(alpha, alpha), from which the share is drawn"),
)
def mixup(images: "Tensor", partners: "Tensor", share: "Tensor", alpha: float) -> tuple["Tensor", "Tensor"]:
    """Lay another picture of the batch over it, the targets in the same shares (Zhang et al. 2018)."""
    return partners.lerp(images, share[:, None, None, None].to(images.dtype)), share


def _boxes(size: int, uniform: Array, x: Array, y: Array, alpha: float) -> dict[str, Array]:
    half = size * np.sqrt(1 - _beta(uniform, alpha)) / 2
    edges = [np.clip(np.rint(size * center + sign * half), 0, size) for center in (x, y) for sign in (-1, 1)]
    left, right, top, bottom = edges
    share = 1 - (right - left) * (bottom - top) / size**2
    return {"box": np.stack(edges, axis=1).astype(np.float32), "share": share.astype(np.float32)}


@batch(
    prepare=_boxes,
    uniforms=("uniform", "x", "y"),
    alpha=Number(default=1.0, within=(0, 100), above=0, doc="of Beta(alpha, alpha), from which the share is drawn"),
)
def cutmix(
    images: "Tensor", partners: "Tensor", box: "Tensor", share: "Tensor", alpha: float
) -> tuple["Tensor", "Tensor"]:
    """Put a rectangle of another picture of the batch into it, the targets by their areas (Yun et al. 2019)."""
    import torch

    place = torch.arange(images.shape[-1], device=images.device)
    left, right, top, bottom = (edge[:, None] for edge in box.unbind(dim=1))
    across, down = (place >= left) & (place < right), (place >= top) & (place < bottom)
    return torch.where(across[:, None, None, :] & down[:, None, :, None], partners, images), share
