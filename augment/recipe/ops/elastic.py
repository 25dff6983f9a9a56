"""Elastic deformation."""

import numpy as np

from augment.params import Count, Range, Size
from augment.recipe.op import remap
from augment.recipe.op_kinds import Array
from augment.support.lazy_torch import F, Tensor, torch


def _displacements(size: Size, std: Array, seed: Array, points: int) -> dict[str, Array]:
    """Draw normal displacements in pixels, (N, 2, points, points) for x and y, from `seed` in [0, 1)."""
    uniform = _hashed(seed, 2 * points * points).reshape(len(seed), 2, points, points)
    # Two uniform numbers give two normal numbers (Box and Muller).
    radius, angle = np.sqrt(-2 * np.log1p(-uniform[:, 0])), 2 * np.pi * uniform[:, 1]
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return {"shift": (min(size) * std[:, None, None, None] * normal).astype(np.float32)}


def _hashed(seed: Array, count: int) -> Array:
    """Return (N, count) numbers in [0, 1), one stream per seed in [0, 1) (SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        state = (seed * 2**53).astype(np.uint64)[:, None] * np.uint64(2**11 + 1)
        z = state + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return np.asarray((z >> np.uint64(11)) * 2.0**-53, np.float64)


@remap(
    prepare=_displacements,
    uniforms=("seed",),
    std_range=Range(
        default=(0, 0.03), within=(0, 0.5), doc="standard deviation of the shifts as a share of the shorter side"
    ),
    points=Count(default=4, within=(2, 32), doc="number of random shifts along each side of the grid"),
)
def elastic(x: Tensor, y: Tensor, size: Size, shift: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """Deform the image smoothly by random shifts on a coarse grid (used for U-Net, Ronneberger et al. 2015)."""
    height, width = size
    grid = torch.stack([x * (2 / max(width - 1, 1)), y * (2 / max(height - 1, 1))], dim=-1)
    fine = F.grid_sample(shift, grid, mode="bicubic", padding_mode="border", align_corners=True)
    return x - fine[:, 0], y - fine[:, 1]
