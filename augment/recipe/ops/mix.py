"""Batch ops: mix each sample with another one of its batch, and their targets in the same shares."""

from typing import TYPE_CHECKING

import numpy as np

from augment.params import Number
from augment.recipe.op import Array, batch

if TYPE_CHECKING:
    from torch import Tensor


def _beta(uniform: Array, alpha: float) -> Array:
    """Map uniform numbers in [0, 1) to draws from Beta(alpha, alpha), by its inverse distribution function."""
    from scipy.special import betaincinv  # takes a quarter of a second to import

    return np.asarray(betaincinv(alpha, alpha, uniform), np.float64)


def _shares(size: int, uniform: Array, alpha: float) -> dict[str, Array]:
    return {"share": _beta(uniform, alpha).astype(np.float32)}


@batch(
    prepare=_shares,
    uniforms=("uniform",),
    alpha=Number(
        default=0.4, within=(0, 100), above=0, doc="parameter of Beta(alpha, alpha), the distribution of the share"
    ),
)
def mixup(images: "Tensor", partners: "Tensor", share: "Tensor", alpha: float) -> tuple["Tensor", "Tensor"]:
    """Blend each image with another one of its batch, and their targets in the same shares (Zhang et al. 2018)."""
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
    alpha=Number(
        default=1.0, within=(0, 100), above=0, doc="parameter of Beta(alpha, alpha), the distribution of the share"
    ),
)
def cutmix(
    images: "Tensor", partners: "Tensor", box: "Tensor", share: "Tensor", alpha: float
) -> tuple["Tensor", "Tensor"]:
    """Paste a rectangle of another image of the batch, and mix the targets by area (Yun et al. 2019)."""
    import torch

    pixel = torch.arange(images.shape[-1], device=images.device)
    left, right, top, bottom = (edge[:, None] for edge in box.unbind(dim=1))
    across, down = (pixel >= left) & (pixel < right), (pixel >= top) & (pixel < bottom)
    return torch.where(across[:, None, None, :] & down[:, None, :, None], partners, images), share
