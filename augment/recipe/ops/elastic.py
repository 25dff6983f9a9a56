"""Elastic deformation: neither a matrix nor a DALI operator that runs on the CPU, so PyTorch resamples."""

from typing import TYPE_CHECKING, Any

import numpy as np

from augment.params import Count, Range, Size
from augment.recipe.kinds import Array
from augment.recipe.op import local
from augment.support.lazy import F, Tensor, torch

if TYPE_CHECKING:
    from augment.pipeline.operators import Dali

Node = Any  # a DALI DataNode: the package has no types


def _displacements(size: Size, std: Array, seed: Array, points: int) -> dict[str, Array]:
    """Draw normal displacements in pixels, (N, 2, points, points) for x and y; `seed` is uniform in [0, 1)."""
    count = points * points  # of each of two uniform numbers, which give two normal ones (Box and Muller)
    uniform = _hashed(seed, 2 * count).reshape(len(seed), 2, points, points)
    radius, angle = np.sqrt(-2 * np.log1p(-uniform[:, 0])), 2 * np.pi * uniform[:, 1]
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return {"shift": (min(size) * std[:, None, None, None] * normal).astype(np.float32)}


def _hashed(seed: Array, count: int) -> Array:
    """Return (N, count) numbers in [0, 1), a stream for each seed in [0, 1) (SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        state = (seed * 2**53).astype(np.uint64)[:, None] * np.uint64(2**11 + 1)
        z = state + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return np.asarray((z >> np.uint64(11)) * 2.0**-53, np.float64)


def _bend(images: Tensor, shift: Tensor) -> Tensor:
    """Move pixels of (N, height, width, 3) uint8 by pixels on a coarse grid, (N, 2, points, points)."""
    height, width = images.shape[1:3]
    fine = _fine(shift.to(images.device, non_blocking=True), (height, width))
    x, y = (torch.linspace(-1, 1, side, dtype=torch.float32, device=images.device) for side in (width, height))
    source = torch.stack([x - fine[:, 0] * (2 / (width - 1)), y[:, None] - fine[:, 1] * (2 / (height - 1))], dim=-1)
    planes = images.permute(0, 3, 1, 2).float()
    moved = F.grid_sample(planes, source, padding_mode="reflection", align_corners=True)
    return moved.round_().clamp_(0, 255).byte().permute(0, 2, 3, 1).contiguous()


def _fine(shift: Tensor, size: tuple[int, int]) -> Tensor:
    """Return displacements of each pixel, (N, 2, height, width)."""
    return F.interpolate(shift, size, mode="bicubic", align_corners=True)


def _offsets(size: Size, shift: Tensor, points: int) -> Tensor:
    """Return how far from each pixel of the result the one is that it shows, (N, height, width, 2)."""
    return -_fine(shift, size).permute(0, 2, 3, 1)


@local(
    prepare=_displacements,
    displacement=_offsets,
    neutral={"std": 0.0},
    uniforms=("seed",),
    std_range=Range(
        default=(0, 0.03), within=(0, 0.5), doc="standard deviation of the shifts as a share of the shorter side"
    ),
    points=Count(default=4, within=(2, 32), doc="shifts along each side, between which pixels move smoothly"),
)
def elastic(images: Node, dali: "Dali", shift: Node, points: int) -> Node:
    """Deform the image smoothly by random shifts on a coarse grid (as for U-Net, Ronneberger et al. 2015)."""
    return dali.torch_function(_bend, images, {"shift": shift})
