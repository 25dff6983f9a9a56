"""Where the pixels of a batch went: what masks, boxes and points follow.

Forward, a point of a stored image goes through the EXIF turn, the crop's window, and every stage that moves pixels.
Back, each output pixel is traced through the same stages in reverse, with the border of each, to the one stored pixel
that it shows: a mask is looked up once, however many stages there are, and is never interpolated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample

from augment.params import Size
from augment.pipeline.feed import about_middle
from augment.pipeline.frames import resizes, turns
from augment.recipe.kinds import Array, LocalOp
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler
from augment.recipe.stage import Draws, Stage
from augment.support.errors import UserError

_ITERATIONS = 20  # of the search for a point that a field moves; each is closer by the field's slope, well below 1


@dataclass(frozen=True)
class _Matrix:
    """A geometry stage: matrices, (N, 3, 3), in pixels; a pixel from beyond the edges is found by `border`.

    Images that are not `moved`, (N,), skip the stage.
    """

    matrix: Array
    border: str
    moved: NDArray[np.bool_]


@dataclass(frozen=True)
class _Field:
    """A local stage that moves pixels: how far from each output pixel the one is that it shows, (N, H, W, 2)."""

    shift: Tensor
    moved: NDArray[np.bool_]
    border: str = "reflect_101"


class BatchMotion:
    """The motion of the pixels of a batch, see `augment.data.targets.spatial.Motion`.

    Args:
        plan: the plan of a view.
        draws: what its stages have drawn for the batch.
        window: of each sample, (N, 6), see `GraphImage`.
        orientations: those of EXIF, (N,).
        device: where the outputs are.
    """

    def __init__(
        self,
        plan: Plan,
        draws: dict[str, Draws],
        window: Array,
        orientations: NDArray[np.int64],
        device: torch.device,
    ) -> None:
        self.size = plan.size
        self.device = device
        self._crop, self._window, self._orientations = plan.crop, window, orientations
        self._steps = [_step(stage, draws, plan.size) for stage in plan.stages]
        self._first = resizes(window, plan.size) @ turns(orientations, window[:, :2])

    @property
    def stored_sizes(self) -> NDArray[np.int64]:
        """Height and width of the images as they are stored, (N, 2)."""
        sizes = np.rint(self._window[:, :2]).astype(np.int64)
        return np.where((self._orientations >= 5)[:, None], sizes[:, ::-1], sizes)

    @cached_property
    def frame(self) -> Array:
        """The matrices from stored to output pixels, (N, 3, 3), but for what fields move."""
        frame = self._first
        for step in self._steps:
            if isinstance(step, _Matrix):
                frame = step.matrix @ frame
        return frame

    @property
    def mirrors(self) -> NDArray[np.bool_]:
        """Which images are mirrored, (N,)."""
        return np.asarray(np.linalg.det(self.frame) < 0)

    def forward(self, points: Array, owners: NDArray[np.int64]) -> Array:
        """Return where points of the stored images of `owners` are in the outputs, (M, 2)."""
        moved = _apply(self._first[owners], points)
        for step in self._steps:
            moved = _apply(step.matrix[owners], moved) if isinstance(step, _Matrix) else _moved(step, moved, owners)
        return moved

    def back(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return row and column of the stored pixel that each output pixel shows, and whether it shows any."""
        height, width = self.size
        count = len(self._window)
        lines = [torch.arange(n, dtype=torch.float64, device=self.device) for n in (width, height)]
        x = lines[0].expand(count, height, width)
        y = lines[1][:, None].expand(count, height, width)
        inside = torch.ones_like(x, dtype=torch.bool)
        for step in reversed(self._steps):
            if isinstance(step, _Field):
                shift = _sample(step.shift.to(self.device), x, y)
                traced = x + shift[0], y + shift[1]
            else:
                traced = _traced(self._moved_to(np.linalg.inv(step.matrix)), x, y)
            found = _within(*traced, width, height, step.border, inside)
            moved = self._moved_to(step.moved)[:, None, None]
            x, y, inside = (torch.where(moved, new, old) for new, old in zip(found, (x, y, inside), strict=True))
        x, y, inside = self._uncropped(x, y, inside)
        turned = _traced(self._moved_to(np.linalg.inv(turns(self._orientations, self._window[:, :2]))), x, y)
        column, row = ((axis + 0.5).floor().long().clamp(min=0) for axis in turned)
        sizes = self._moved_to(self.stored_sizes)
        return row.minimum(sizes[:, :1, None] - 1), column.minimum(sizes[:, 1:, None] - 1), inside

    def _uncropped(self, x: Tensor, y: Tensor, inside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Trace pixels of the crop to those of the upright image, in the whole of which there is a border."""
        params = self._crop.params
        border = params.get("border", "constant" if params.get("side") == "long" else "replicate")
        window = self._moved_to(self._window)[:, :, None, None]
        sides, start, end = window[:, :2], window[:, 2:4], window[:, 4:6]
        size = torch.tensor(self.size, dtype=torch.float64, device=self.device)[:, None, None]
        scale = size / (end - start)
        # In pixels of the resized image: there the crop reflects.
        x, y = x + start[:, 1] * scale[:, 1], y + start[:, 0] * scale[:, 0]
        resized = sides * scale
        x, y, inside = _within(x, y, resized[:, 1], resized[:, 0], border, inside)
        return (x + 0.5) / scale[:, 1] - 0.5, (y + 0.5) / scale[:, 0] - 0.5, inside

    def _moved_to(self, values: NDArray[np.generic]) -> Tensor:
        """Copy values to the device without waiting for it."""
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        return tensor if self.device.type == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)


class Motions:
    """Makes the motions of a plan's views, batch by batch, of what a seed and a rank draw.

    Raises:
        UserError: with `targets`, a step moves pixels in a way that targets cannot follow.
    """

    def __init__(self, plan: Plan, seed: int, rank: int, *, targets: str = "") -> None:
        moving = [own.moving for own in plan.per_view]
        for own in moving if targets else ():
            for step in own.steps:
                if step.op.kind == "local" and not (isinstance(step.op, LocalOp) and step.op.displacement):
                    raise UserError(
                        f"{own.path}.{step.key}: {targets} cannot follow the op '{step.op.name}', which does not say "
                        "how it moves pixels. Allowed: displacement=... where it is declared, or moves=False if none."
                    )
        fields = [own if targets else own.only("geometry") for own in moving]
        self._samplers = [Sampler(own, seed, rank, view) for view, own in enumerate(fields)]

    def of(
        self,
        windows: Sequence[Tensor],
        orientations: NDArray[np.int64],
        epoch: int,
        start: int,
        device: torch.device,
    ) -> list[BatchMotion]:
        """Return the motion of each view of a batch that starts at a position of an epoch."""
        motions = []
        for sampler, shown in zip(self._samplers, windows, strict=True):
            draws = sampler.draw(epoch, start, len(shown))
            motions.append(BatchMotion(sampler.plan, draws, shown.double().numpy(), orientations, device))
        return motions


def _step(stage: Stage, draws: dict[str, Draws], size: Size) -> _Matrix | _Field:
    if stage.kind == "geometry":
        there, back = about_middle(size)
        matrix = stage.matrix(draws, size)
        # The identity stays the identity, to the bit.
        moved = (matrix != np.eye(3)).any(axis=(1, 2))
        return _Matrix(np.where(moved[:, None, None], there @ matrix @ back, np.eye(3)), stage.border[0], moved)
    step = stage.steps[0]
    assert isinstance(step.op, LocalOp)
    assert step.op.displacement
    values = {name: torch.from_numpy(value) for name, value in stage.values(draws, size).items()}
    shift = step.op.displacement(size=size, **step.op.fixed(step.params), **values)
    applied = np.asarray(stage.applied(draws), bool)
    return _Field(torch.where(torch.from_numpy(applied)[:, None, None, None], shift.double(), 0.0), applied)


def _apply(matrix: Array, points: Array) -> Array:
    """Map points, (M, 2), by a matrix each, (M, 3, 3); what is at or beyond infinity becomes NaN."""
    moved = np.einsum("nij,nj->ni", matrix[:, :, :2], points) + matrix[:, :, 2]
    with np.errstate(all="ignore"):
        return np.where(moved[:, 2:] > 0, moved[:, :2] / moved[:, 2:], np.nan)


def _moved(field: _Field, points: Array, owners: NDArray[np.int64]) -> Array:
    """Return the output pixels that show points, (M, 2): those q with q + shift(q) = p, by iteration."""
    found = points
    shift = field.shift.cpu()
    for _ in range(_ITERATIONS):
        at = torch.from_numpy(np.nan_to_num(found))
        moved = np.empty_like(found)
        for owner in np.unique(owners):
            rows = np.flatnonzero(owners == owner)
            x, y = at[rows, 0][None, None], at[rows, 1][None, None]
            moved[rows] = torch.stack(_sample(shift[owner : owner + 1], x, y), dim=-1)[0, 0].numpy()
        found = points - moved
    return found


def _sample(shift: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and y of a field, (N, height, width, 2), at places in pixels, (N, H, W), linearly between pixels."""
    height, width = shift.shape[1:3]
    grid = torch.stack([x * (2 / max(width - 1, 1)) - 1, y * (2 / max(height - 1, 1)) - 1], dim=-1)
    found = grid_sample(shift.permute(0, 3, 1, 2), grid, padding_mode="border", align_corners=True)
    return found[:, 0], found[:, 1]


def _traced(matrix: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Map places, (N, H, W), by matrices, (N, 3, 3)."""
    m = matrix[:, :, :, None, None]
    w = m[:, 2, 0] * x + m[:, 2, 1] * y + m[:, 2, 2]
    return (m[:, 0, 0] * x + m[:, 0, 1] * y + m[:, 0, 2]) / w, (m[:, 1, 0] * x + m[:, 1, 1] * y + m[:, 1, 2]) / w


def _within(
    x: Tensor, y: Tensor, width: Tensor | int, height: Tensor | int, border: str, inside: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Bring places beyond the edges of an image inside, as a border does; constant notes that they are not inside."""
    if border == "constant":
        inside = inside & (x >= -0.5) & (x < width - 0.5) & (y >= -0.5) & (y < height - 0.5)
    return _folded(x, width, border), _folded(y, height, border), inside


def _folded(place: Tensor, side: Tensor | int, border: str) -> Tensor:
    """Return places along an axis within the image; what is within half a pixel of its edge shows the pixel there."""
    last = side - 1
    if border == "reflect_101":
        period = 2 * torch.as_tensor(last, dtype=place.dtype, device=place.device).clamp(min=1e-9)
        turned = place.remainder(period)
        # Those inside stay as they are, to the bit.
        reflected = turned.minimum(period - turned)
        outside = (place < 0) | (place > last)
        return torch.where(outside, reflected, place)
    if border == "wrap":
        return (place + 0.5).remainder(torch.as_tensor(side, dtype=place.dtype, device=place.device)) - 0.5
    zero = torch.zeros_like(place)
    return place.maximum(zero).minimum(zero + last)
