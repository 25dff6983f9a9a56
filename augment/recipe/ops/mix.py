"""Batch ops: mix each sample with another one of its batch, and their targets in the same shares."""

from typing import TYPE_CHECKING

import numpy as np

from augment.params import Number
from augment.recipe.kinds import Array
from augment.recipe.op import batch

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
    neutral={"uniform": 1.0},
    uniforms=("uniform",),
    writes=False,
    alpha=Number(
        default=0.4, within=(0, 100), above=0, doc="parameter of Beta(alpha, alpha), the distribution of the share"
    ),
)
def mixup(images: "Tensor", partners: "Tensor", share: "Tensor", alpha: float) -> tuple["Tensor", "Tensor"]:
    """Blend each image with another one of its batch, and their targets in the same shares (Zhang et al. 2018)."""
    return partners.lerp(images, share[:, None, None, None].to(images.dtype)), share


def _boxes(size: int, uniform: Array, x: Array, y: Array, alpha: float) -> dict[str, Array]:
    """Return the columns and the rows of rectangles, (N, size) each, and the share of what is outside."""
    half = size * np.sqrt(1 - _beta(uniform, alpha)) / 2
    edges = [np.clip(np.rint(size * center + sign * half), 0, size) for center in (x, y) for sign in (-1, 1)]
    left, right, top, bottom = (edge[:, None] for edge in edges)
    pixel = np.arange(size)
    across, down = (pixel >= left) & (pixel < right), (pixel >= top) & (pixel < bottom)
    share = 1 - np.count_nonzero(across, axis=1) * np.count_nonzero(down, axis=1) / size**2
    return {"across": across, "down": down, "share": share.astype(np.float32)}


@batch(
    prepare=_boxes,
    neutral={"uniform": 1.0},
    uniforms=("uniform", "x", "y"),
    writes=False,
    alpha=Number(
        default=1.0, within=(0, 100), above=0, doc="parameter of Beta(alpha, alpha), the distribution of the share"
    ),
)
def cutmix(
    images: "Tensor", partners: "Tensor", across: "Tensor", down: "Tensor", share: "Tensor", alpha: float
) -> tuple["Tensor", "Tensor"]:
    """Paste a rectangle of another image of the batch, and mix the targets by area (Yun et al. 2019)."""
    import torch

    return torch.where(across[:, None, None, :] & down[:, None, :, None], partners, images), share
