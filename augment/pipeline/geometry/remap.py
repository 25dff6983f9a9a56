"""Remap stages in PyTorch: tracing output coordinates back to the input, resampling, and finding moved points.

Coordinates are x and y, (N, rows, columns) each, in pixels from the middle of the image. The arguments `values` and
`arrays` come from `parameter_feed.remap_values`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample

from augment.params import Size
from augment.recipe.op_kinds import Array
from augment.recipe.stage import Stage
from augment.support.device import to_device

_PADDING = {"reflect_101": "reflection", "constant": "zeros", "replicate": "border"}
_STARTS, _ROUNDS = 24, 20  # for Newton's method: starting points along each side, and iterations
_APART = 0.25  # distance in pixels between two points of a numerical derivative


def resample(stage: Stage, images: Tensor, **values: Tensor) -> Tensor:
    """Apply a remap stage to (N, height, width, C) images, uint8 or float32 levels."""
    size = Size(*images.shape[1:3])
    mode, fill = stage.border
    across, down = (torch.arange(side, device=images.device) - (side - 1) / 2 for side in (size.width, size.height))
    shape = images.shape[:3]
    x, y = trace(stage, size, values, across.expand(shape), down[:, None].expand(shape))
    grid = torch.stack([x * (2 / max(size.width - 1, 1)), y * (2 / max(size.height - 1, 1))], dim=-1)
    planes = images.permute(0, 3, 1, 2).float().sub_(fill)
    moved = grid_sample(planes, grid, padding_mode=_PADDING[mode], align_corners=True).add_(fill).clamp_(0, 255)
    moved = moved if images.is_floating_point() else moved.round_().byte()
    return moved.permute(0, 2, 3, 1).contiguous()


def trace(
    stage: Stage, size: Size, values: Mapping[str, Tensor], x: Tensor, y: Tensor, *, after: int = -1
) -> tuple[Tensor, Tensor]:
    """Trace output coordinates back to the input of the stage, or only to the output of the part `after`."""
    for number in reversed(range(after + 1, len(stage.warp_parts))):
        x, y = _trace_part(stage, number, size, values, x, y)
    return x, y


def _trace_part(
    stage: Stage, number: int, size: Size, values: Mapping[str, Tensor], x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Trace output coordinates of one part back to its input."""
    step, m = stage.warp_parts[number][0], values["chain"][:, number, :, :, None, None]
    if step.op.kind != "remap":
        u, v, w = (m[:, row, 0] * x + (m[:, row, 1] * y + m[:, row, 2]) for row in range(3))
        return u / w, v / w
    own = {name.rpartition(" ")[0]: value for name, value in values.items() if name.endswith(f" {number}")}
    drawn = {name: value[:, None, None] if value.ndim == 1 else value for name, value in own.items()}
    given = (axis.to(torch.float32, copy=True) for axis in (x, y))  # copies, because the op may change them
    made = step.op.function(*given, size=size, **step.op.fixed(step.params), **drawn)
    shapes = [] if made is None else [tuple(np.shape(axis)) for axis in made]
    if shapes != [x.shape] * 2:
        raise TypeError(f"op '{step.op.name}' returned {shapes}. Return x and y, {tuple(x.shape)} each.")
    applies = m[:, 0, 0] == 0
    return torch.where(applies, made[0].to(x.dtype), x), torch.where(applies, made[1].to(y.dtype), y)


def find_points(
    stage: Stage, size: Size, arrays: Mapping[str, NDArray[Any]], points: Array, owners: NDArray[np.int64]
) -> Array:
    """Find where input points, (M, 2) as x and y, of the images `owners`, (M,), appear in the output.

    A point becomes NaN if no output coordinate shows it. Results can be outside the output image.
    """
    for number, steps in enumerate(stage.warp_parts):
        chain = arrays["chain"][:, number]
        if steps[0].op.kind != "remap":
            points = map_points(np.linalg.inv(chain)[owners], points)
            continue
        # Arrange the points in a table with one row per image: (rows, most points of an image, 2).
        moved = np.flatnonzero(chain[owners, 0, 0] == 0)
        moved = moved[np.argsort(owners[moved], kind="stable")]
        if not len(moved):
            continue
        rows, row = np.unique(owners[moved], return_inverse=True)
        column = np.arange(len(moved)) - np.searchsorted(row, row)
        table = np.zeros((len(rows), column.max() + 1, 2))
        table[row, column] = points[moved]
        values = to_device({name: value[rows] for name, value in arrays.items()}, torch.device("cpu"))
        points = points.copy()
        points[moved] = _inverse(stage, number, size, values, torch.from_numpy(table)).numpy()[row, column]
    return points


def _inverse(stage: Stage, number: int, size: Size, values: Mapping[str, Tensor], wanted: Tensor) -> Tensor:
    """Find the output coordinates of a remap that show `wanted`, (N, K, 2) float64, by Newton's method.

    A remap can be any function, so the method starts from the best point of a grid over the whole output.
    """

    def shown(points: Tensor) -> Tensor:
        return torch.stack(_trace_part(stage, number, size, values, points[..., 0], points[..., 1]), dim=-1)

    # No starting point is on an edge, because a remap may jump there.
    share = (torch.arange(_STARTS, dtype=torch.float64) + 0.5) / _STARTS - 0.5
    across, down = share * size.width, share * size.height
    x, y = (axis.expand(len(wanted), _STARTS, _STARTS) for axis in (across, down[:, None]))
    starts = torch.stack(trace(stage, size, values, x, y, after=number), dim=-1)
    far = torch.nan_to_num(shown(starts), nan=1e6, posinf=1e6, neginf=-1e6).flatten(1, 2)
    nearest = torch.cdist(torch.nan_to_num(wanted), far).argmin(dim=2, keepdim=True).expand(-1, -1, 2)
    best = point = starts.flatten(1, 2).gather(1, nearest)
    step, least = torch.zeros_like(point), torch.full_like(point[..., :1], torch.inf)
    apart = torch.tensor([[0, 0], [_APART, 0], [0, _APART]], dtype=torch.float64)[:, None]
    for _ in range(_ROUNDS):
        here, right, below = shown(point[:, None] + apart).unbind(1)
        off, a, b = wanted - here, (right - here) / _APART, (below - here) / _APART
        newton = torch.stack([off[..., 0] * b[..., 1] - off[..., 1] * b[..., 0],
                              off[..., 1] * a[..., 0] - off[..., 0] * a[..., 1]], dim=-1)  # fmt: skip
        newton = newton / (a[..., :1] * b[..., 1:] - a[..., 1:] * b[..., :1])
        distance = off.norm(dim=-1, keepdim=True)
        better = distance < least
        least, best = torch.where(better, distance, least), torch.where(better, point, best)
        if (least < 1e-3).all():
            break
        step = torch.where(better, torch.nan_to_num(newton, posinf=0, neginf=0), step / 2)
        point = best + step
    return torch.where(least < 0.5, best, torch.nan)


def map_points(matrix: Array, points: Array) -> Array:
    """Map points, (M, 2), with matrices, (M, 3, 3). A point on or behind the horizon of a perspective becomes NaN."""
    moved = np.einsum("nij,nj->ni", matrix[:, :, :2], points) + matrix[:, :, 2]
    with np.errstate(all="ignore"):
        return np.where(moved[:, 2:] > 0, moved[:, :2] / moved[:, 2:], np.nan)
