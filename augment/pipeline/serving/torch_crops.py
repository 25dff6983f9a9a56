"""The validation transform as a PyTorch module of plain arithmetic, which can be exported with a model.

For each axis, the image is multiplied by a matrix of filter weights, which is built at run time from the image size.
The filter is a triangle. It reaches one output pixel to each side if the image is shrunk, and one image pixel
otherwise. Beyond the edges of the image, DALI's filter repeats the edge pixels. Here, the weights beyond an edge are
added to the weight of the edge pixel.
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
    """The image positions of the result's rows or columns."""

    centers: Tensor  # (length,) in image pixels from the edge of the image
    step: Tensor  # (1,) image pixels per output pixel
    inside: Tensor | None = None  # (length,) whether the row or column shows the image. None: all show it


class Crop(nn.Module):
    """A plan with a fixed crop and no steps. It converts images of any size to the input of a model.

    Raises:
        UserError: the plan is random, has steps in addition to the crop, or has an unsupported crop.
    """

    empty: Tensor
    low: Tensor
    gain: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        require_fixed(plan)
        name, values = crop_call(plan.crop)
        self._size, self._fill = plan.size, float(values.pop("fill", 0))
        self._grid, self._values = _GRIDS[name], values
        self._pixels = plan.pixels
        if not plan.pixels.is_bytes:
            low, high = torch.tensor(plan.pixels.low), torch.tensor(plan.pixels.high)
            self.register_buffer("low", low[:, None, None], persistent=False)
            self.register_buffer("gain", (255 / (high - low))[:, None, None], persistent=False)
        if plan.pixels.nodata is not None:
            self.register_buffer("empty", torch.from_numpy(plan.pixels.empty_value).float(), persistent=False)
        mean, std = torch.tensor(plan.mean), torch.tensor(plan.std)
        self.register_buffer("scale", (1 / (255 * std))[:, None, None], persistent=False)
        self.register_buffer("shift", (mean / std)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Transform (N, height, width, C) of the stored data type to (N, C, height, width) float32, normalized."""
        (rows, columns), (height, width) = _sides(images)
        y, x = self._grids((height, width))
        part = torch.einsum("sh,nhwc->nswc", _weights(y, rows, height), self._filled(images))
        part = torch.einsum("tw,nswc->ncst", _weights(x, columns, width), part)
        part = part.round() if self._pixels.is_bytes else (part - self.low) * self.gain
        part = part.clamp(0, 255)
        for inside, shape in ((y.inside, (-1, 1)), (x.inside, (1, -1))):
            if inside is not None:
                part = torch.where(inside.reshape(shape), part, self._fill)
        return part * self.scale - self.shift

    def _filled(self, images: Tensor) -> Tensor:
        """Return stored pixels as float32. Pixels without data get the value whose level is 0."""
        stored, nodata = images.float(), self._pixels.nodata
        return stored if nodata is None else torch.where((stored == nodata) | stored.isnan(), self.empty, stored)

    def boxes_in(self, images: Tensor, boxes: Tensor) -> Tensor:
        """Convert boxes, (K, 4), from pixels of the result to pixels of the images. Clip them to the images."""
        _, (height, width) = _sides(images)
        edges, positions = [], (boxes[:, 1::2], boxes[:, ::2])
        for grid, along, side in zip(self._grids((height, width)), positions, (height, width), strict=True):
            middle = (len(grid.centers) - 1) // 2  # a letterbox always shows the image here
            edges.append((grid.centers[middle] + (along - middle - 0.5) * grid.step).clamp(min=0).minimum(side))
        return torch.stack(edges[::-1], dim=2).flatten(1)

    def _grids(self, sides: _Sides) -> list[Grid]:
        pixels = [torch.arange(side, device=sides[0].device) + 0.5 for side in self._size]
        return [self._grid(pixels[axis], axis, sides, self._size, **self._values) for axis in (0, 1)]


def _sides(images: Tensor) -> tuple[list[Tensor], _Sides]:
    """Return the positions of the rows and columns of images, and their height and width, (1,) each."""
    # All are tensors, so that an exported graph works for any image size.
    rows, columns = (torch.arange(n, device=images.device) + 0.5 for n in images.shape[1:3])
    return [rows, columns], (rows[-1:] + 0.5, columns[-1:] + 0.5)


def _weights(grid: Grid, pixels: Tensor, length: Tensor) -> Tensor:
    """Return the filter weights, (output length, image length), of the rows or columns."""
    reach = grid.step.clamp(min=1)
    centers = grid.centers[:, None]
    inner = (1 - (pixels - centers).abs() / reach).clamp(min=0)
    first, last = pixels < 1, pixels > length - 1
    weights = inner + first * _beyond(centers, reach) + last * _beyond(length - centers, reach)
    return weights / weights.sum(dim=1, keepdim=True)


def _beyond(distance: Tensor, reach: Tensor) -> Tensor:
    """Return the sum of a filter's weights beyond an edge of the image, `distance` away from the filter's center."""
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
    length = (side / step + 0.5).floor().clamp(min=1)  # the length of the image in output pixels
    position = pixels - ((len(pixels) - length) / 2).floor()
    inside = (position > 0) & (position < length)
    position = torch.minimum(position.clamp(min=0.5), length - 0.5)
    # Keep the exact scale. If the length was rounded, it differs from the image by a fraction of a pixel.
    return Grid(side / 2 + (position - length / 2) * step, step, inside)


# The functions that return the grid of a crop op, by the op's name.
_GRIDS: Mapping[str, Callable[..., Grid]] = {"resize": _resize, "center_crop": _center_crop, "letterbox": _letterbox}
