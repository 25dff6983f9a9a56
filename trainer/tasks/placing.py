"""Places in stored images of what was found in the images that a model sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def placed(points: Tensor, matrices: Tensor) -> Tensor:
    """Return points, (N, K, 2) float64, moved by a matrix for each image, (N, 3, 3)."""
    import torch

    ends = torch.cat([points.double(), points.new_ones(*points.shape[:-1], 1).double()], dim=-1)
    found = ends @ matrices.double().transpose(1, 2)
    return found[..., :2] / found[..., 2:]
