"""The validation transform as a PyTorch module of plain arithmetic, so that it can be exported with a model.

Each side of the result is a product of the image with a matrix of filter weights, built from the image's size when it
runs: a triangle, as wide as a pixel of the larger of image and result. DALI's filter repeats the edge pixels beyond the
edges of the image; here their weights are added to those of the edge pixels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from augment.params import Size
from augment.pipeline.serving.transform_source import crop_call, require_fixed
from augment.recipe.plan import Plan

_Sides = tuple[Tensor, Tensor]  # height and width of an image


@dataclass(frozen=True)
class Grid:
    """Where the rows, or the columns, of the result lie in the image."""

    centers: Tensor  # (length,) in pixels of the image, from its edge
    step: Tensor  # (1,) pixels of the image per pixel of the result
    inside: Tensor | None = None  # (length,) whether they show the image; None: all do


class Crop(nn.Module):
    """A plan that consists of a crop that is not random: images of any size to the input of a model.

    Raises:
        UserError: the plan is random, has steps besides the crop, or a crop that is not available here.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        require_fixed(plan)
        name, values = crop_call(plan.crop)
        self._size, self._fill = plan.size, float(values.pop("fill", 0))
        self._grid, self._values = _GRIDS[name], values
        mean, std = torch.tensor(plan.mean), torch.tensor(plan.std)
        self.register_buffer("scale", (1 / (255 * std))[:, None, None], persistent=False)
        self.register_buffer("shift", (mean / std)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Transform (N, height, width, 3) uint8 RGB to (N, 3, height, width) float32, normalized."""
        # Positions and lengths are tensors, so that an exported graph has them for any size of image.
        rows, columns = (torch.arange(n, device=images.device) + 0.5 for n in images.shape[1:3])
        height, width = rows[-1:] + 0.5, columns[-1:] + 0.5
        pixels = [torch.arange(side, device=images.device) + 0.5 for side in self._size]
        y, x = (self._grid(pixels[axis], axis, (height, width), self._size, **self._values) for axis in (0, 1))
        part = torch.einsum("sh,nhwc->nswc", _weights(y, rows, height), images.float())
        part = torch.einsum("tw,nswc->ncst", _weights(x, columns, width), part).round().clamp(0, 255)
        for inside, shape in ((y.inside, (-1, 1)), (x.inside, (1, -1))):
            if inside is not None:
                part = torch.where(inside.reshape(shape), part, self._fill)
        return part * self.scale - self.shift


def _weights(grid: Grid, pixels: Tensor, length: Tensor) -> Tensor:
    """Return the weights of an image's rows or columns in those of the result, (its length, length)."""
    reach = grid.step.clamp(min=1)
    centers = grid.centers[:, None]
    inner = (1 - (pixels - centers).abs() / reach).clamp(min=0)
    first, last = pixels < 1, pixels > length - 1
    all_of = inner + first * _beyond(centers, reach) + last * _beyond(length - centers, reach)
    return all_of / all_of.sum(dim=1, keepdim=True)


def _beyond(distance: Tensor, reach: Tensor) -> Tensor:
    """Return the sum of a triangle's weights over all pixels beyond an edge at a distance from its center."""
    nearest = distance + 0.5
    count = (reach - nearest).ceil().clamp(min=0)
    return count - (count * nearest + count * (count - 1) / 2) / reach


def _resize(pixels: Tensor, axis: int, sides: _Sides, size: Size) -> Grid:
    step = sides[axis] / len(pixels)
    return Grid(pixels * step, step)


def _center_crop(pixels: Tensor, axis: int, sides: _Sides, size: Size, scale: float) -> Grid:
    rows, columns = size.proportions
    window = scale * torch.minimum(sides[0] / rows, sides[1] / columns) * size.proportions[axis]
    step = window / len(pixels)
    return Grid((sides[axis] - window) / 2 + pixels * step, step)


def _letterbox(pixels: Tensor, axis: int, sides: _Sides, size: Size) -> Grid:
    side = sides[axis]
    step = torch.maximum(sides[0] / size.height, sides[1] / size.width)
    length = (side / step + 0.5).floor().clamp(min=1)  # of the image in the result, in pixels
    place = pixels - ((len(pixels) - length) / 2).floor()
    inside = (place > 0) & (place < length)
    place = torch.minimum(place.clamp(min=0.5), length - 0.5)
    # The scale is exact: if the length was rounded, the image's edges are a fraction of a pixel off.
    return Grid(side / 2 + (place - length / 2) * step, step, inside)


# Crop ops by name: how each places the result in the image.
_GRIDS: Mapping[str, Callable[..., Grid]] = {"resize": _resize, "center_crop": _center_crop, "letterbox": _letterbox}
