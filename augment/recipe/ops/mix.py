"""Batch ops: mix each sample with another one of its batch, and their targets in the same shares."""

from typing import TYPE_CHECKING

import numpy as np

from augment.params import Number, Size
from augment.recipe.kinds import Array, Mask
from augment.recipe.op import batch

if TYPE_CHECKING:
    from torch import Tensor


def _beta(uniform: Array, alpha: float) -> Array:
    """Map uniform numbers in [0, 1) to draws from Beta(alpha, alpha), by its inverse distribution function."""
    from scipy.special import betaincinv  # takes a quarter of a second to import

    return np.asarray(betaincinv(alpha, alpha, uniform), np.float64)


def _shares(size: Size, uniform: Array, alpha: float) -> dict[str, Array]:
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


def _between(side: int, center: Array, part: Array) -> Mask:
    """Return which pixels of a side lie within a part of it around a center, both as shares, (N, side)."""
    half = side * part / 2
    start, end = (np.clip(np.rint(side * center + sign * half), 0, side)[:, None] for sign in (-1, 1))
    pixel = np.arange(side)
    return (pixel >= start) & (pixel < end)


def _boxes(size: Size, uniform: Array, x: Array, y: Array, alpha: float) -> dict[str, Array]:
    """Return the columns, (N, width), and the rows, (N, height), of rectangles, and the share of what is outside."""
    height, width = size
    part = np.sqrt(1 - _beta(uniform, alpha))  # of each side
    across, down = _between(width, x, part), _between(height, y, part)
    share = 1 - np.count_nonzero(across, axis=1) * np.count_nonzero(down, axis=1) / (height * width)
    return {"across": across, "down": down, "share": share.astype(np.float32)}


def _inside(across: "Tensor", down: "Tensor", **others: object) -> "Tensor":
    """Return which pixels are in the rectangle, (N, height, width)."""
    return across[:, None, :] & down[:, :, None]


@batch(
    prepare=_boxes,
    pastes=_inside,
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
