"""Color stages of images whose channels are not red, green and blue, in PyTorch."""

import torch
from torch import Tensor

from augment.pipeline.graph.parameter_feed import LEVEL


def change_colors(images: Tensor, **values: Tensor) -> Tensor:
    """Apply the matrices of a color stage to (N, height, width, C) images, uint8 or float32 levels.

    The values come from `parameter_feed.stage_values`: one matrix, or all matrices of a chained stage in order.
    """
    numbers = sorted(int(name.split()[1]) for name in values if name.startswith("matrix "))
    links = [f" {number}" for number in numbers] or [""]
    # Use doubles. With fit.precision, PyTorch may multiply float32 matrices in TF32, with only 11 significant bits.
    doubles = {name: value.double() for name, value in values.items()}
    levels = images.double()
    for link in links:
        highest = 255 if link == links[-1] else 255 * LEVEL
        levels = _linear(levels, doubles[f"matrix{link}"], doubles.get(f"mean_matrix{link}")).clamp(0, highest)
    levels = levels if images.is_floating_point() else levels.round()
    return levels.to(images.dtype).contiguous()


def _linear(levels: Tensor, matrix: Tensor, mean_matrix: Tensor | None) -> Tensor:
    """Apply a matrix to each pixel. Add the product of `mean_matrix` and the mean color."""
    if mean_matrix is None:
        matrix, offset = matrix[..., :-1], matrix[..., -1]
    else:
        mean = levels.mean(dim=(1, 2))
        offset = torch.einsum("ndc,nc->nd", mean_matrix[..., :-1], mean) + mean_matrix[..., -1]
    return torch.einsum("nhwc,ndc->nhwd", levels, matrix) + offset[:, None, None]
