"""The motion of a batch's pixels, which masks, boxes and keypoints follow.

Forward, a point of a stored image passes through the EXIF turn, the crop window and each stage that moves pixels.
Backward, each output pixel is traced through the same steps in reverse, with their borders, to one stored pixel. A mask
is therefore looked up only once and never interpolated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from augment.data.images import SIDEWAYS
from augment.data.targets.visible_regions import Parts
from augment.params import Size
from augment.pipeline.geometry.frames import resizes, turns
from augment.pipeline.geometry.remap import find_points, map_points, trace
from augment.pipeline.graph.parameter_feed import DrawAhead, about_middle, remap_values
from augment.recipe.op_kinds import Array
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler, SampleRange
from augment.recipe.stage import Draws, Stage
from augment.support.device import to_device
from augment.support.errors import UserError

_Rows = slice | NDArray[np.int64]


@dataclass(frozen=True)
class _Matrix:
    """A geometry stage for N samples.

    Attributes:
        matrix: the matrices in pixels, (N, 3, 3).
        border: the border mode.
        moved: whether the stage moves the sample, (N,).
    """

    matrix: Array
    border: str
    moved: NDArray[np.bool_]

    def of(self, rows: _Rows) -> "_Matrix":
        return replace(self, matrix=self.matrix[rows], moved=self.moved[rows])

    def forward(self, points: Array, owners: NDArray[np.int64]) -> Array:
        """Move points, (M, 2), of the samples `owners`, (M,)."""
        return map_points(self.matrix[owners], points)


@dataclass(frozen=True)
class _Remap(_Matrix):
    """A remap stage for N samples. `matrix` leaves out the remaps. `values` come from `remap_values`."""

    stage: Stage
    size: Size
    values: Mapping[str, NDArray[Any]]

    def of(self, rows: _Rows) -> "_Remap":
        values = {name: value[rows] for name, value in self.values.items()}
        return replace(self, matrix=self.matrix[rows], moved=self.moved[rows], values=values)

    def forward(self, points: Array, owners: NDArray[np.int64]) -> Array:
        """Move points, (M, 2), of the samples `owners`, (M,).

        A point becomes NaN if the search finds no output coordinate that shows it.
        """
        middle = (np.array(self.size)[::-1] - 1) / 2
        moved = find_points(self.stage, self.size, self.values, points - middle, owners) + middle
        return np.where(self.moved[owners, None], moved, points)

    def back(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Trace output coordinates, (N, H, W), back to input coordinates."""
        down, across = ((side - 1) / 2 for side in self.size)
        x, y = trace(self.stage, self.size, to_device(self.values, x.device), x - across, y - down)
        return x + across, y + down


class BatchMotion:
    """The motion of the pixels of a batch, from stored images to outputs.

    Without mixing, each of the N entries is a whole sample. With mixing, each entry is a part of a sample.

    Args:
        plan: the plan of one view.
        steps: the plan's geometry and remap stages for these samples.
        window: the crop windows, (N, 6), see `GraphImage`.
        orientations: the EXIF orientations, (N,).
        device: the device of the outputs.
        parts: the parts that the outputs show, one per entry. Default: each output shows its whole sample.
    """

    def __init__(
        self,
        plan: Plan,
        steps: Sequence[_Matrix],
        window: Array,
        orientations: NDArray[np.int64],
        device: torch.device,
        parts: Parts | None = None,
    ) -> None:
        self.size = plan.size
        self.device = device
        self.parts = Parts.whole(len(window), plan.size) if parts is None else parts
        self._plan, self._window, self._orientations = plan, window, orientations
        self._steps, self._mixed = steps, parts is not None
        self._first = resizes(window, plan.size) @ turns(orientations, window[:, :2])

    def mixed(self, parts: Parts) -> "BatchMotion":
        """Return the motion of the parts of mixed samples."""
        rows, matrix = parts.samples, parts.matrices
        last = _Matrix(matrix, "replicate", (matrix != np.eye(3)).any(axis=(1, 2)))
        steps = [*(step.of(rows) for step in self._steps), last]
        return BatchMotion(self._plan, steps, self._window[rows], self._orientations[rows], self.device, parts)

    @property
    def stored_sizes(self) -> NDArray[np.int64]:
        """Height and width of the stored images, (N, 2)."""
        sizes = np.rint(self._window[:, :2]).astype(np.int64)
        return np.where((self._orientations >= SIDEWAYS)[:, None], sizes[:, ::-1], sizes)

    @cached_property
    def frame(self) -> Array:
        """The matrices that map stored pixels to output pixels, (N, 3, 3), without remaps."""
        frame = self._first
        for step in self._steps:
            frame = step.matrix @ frame
        return frame

    @property
    def bends(self) -> bool:
        """Whether straight lines may become curves."""
        return any(isinstance(step, _Remap) for step in self._steps)

    @property
    def mirrors(self) -> NDArray[np.bool_]:
        """Whether each upright image is mirrored, (N,), so that left and right keypoints must be swapped."""
        return np.asarray(np.linalg.det(self.frame) * np.linalg.det(self._first) < 0)

    def forward(
        self, points: Array, owners: NDArray[np.int64], watch: Callable[[Array], None] = lambda moved: None
    ) -> Array:
        """Move points from stored images to outputs.

        Args:
            points: x and y in pixels of the stored images, (M, 2).
            owners: the entry of each point, (M,): a sample, or a part of a mixed sample.
            watch: called with the points after the crop and after each step except the last. Callers use it to find
                points that leave `edges`. The image has lost such points, even if a later step moves them back.

        Returns:
            The points in output pixels, (M, 2). A point is NaN if a perspective puts it on or behind the horizon, or if
            no output coordinate of a remap shows it.
        """
        moved = map_points(self._first[owners], points)
        for step in self._steps:
            watch(moved)
            moved = step.forward(moved, owners)
        return moved

    @property
    def edges(self) -> tuple[Array, Array]:
        """The smallest and the largest (x, y) inside an output image."""
        return np.full(2, -0.5), np.array(self.size)[::-1] - 0.5

    def back(self, rows: slice) -> tuple[Any, Any, Any]:
        """Trace each output pixel back to a stored pixel.

        Args:
            rows: the entries to trace.

        Returns:
            The row and the column of the stored pixel, int64, and whether the output pixel shows the image, bool. These
            are NumPy arrays on the CPU or tensors on a GPU, (N, height, width) each.
        """
        # On the CPU, PyTorch's threads would slow down DALI's threads.
        xp: Any = np if self.device.type == "cpu" else torch
        arrays = self._back_arrays(rows)
        here: Mapping[str, Any] = arrays if xp is np else to_device(arrays, self.device)
        shape = (len(here["last"]), *self.size)
        x, y = xp.broadcast_to(here["x"], shape), xp.broadcast_to(here["y"], shape)
        inside = self._shown(x, y, here, xp)
        for number in reversed(range(len(self._steps))):
            x, y, inside = self._undo(number, rows, (x, y, inside), arrays, here)
        if border := self._crop_border:
            # The border belongs to the resized image, so fold coordinates in pixels of that image.
            first, resized = here["first"], here["resized"]
            sides = (resized[:, 1], resized[:, 0])
            x, y, inside = _within(x + first[:, 1], y + first[:, 0], sides, border, inside, xp)
        factor, shift, last = here["factor"], here["shift"], here["last"]
        x = x * factor[:, 1] + shift[:, 1]
        y = y * factor[:, 0] + shift[:, 0]
        if "turn" in here:
            x, y = _traced(here["turn"], x, y, affine=True)
        return _nearest(y, last[:, 0], xp), _nearest(x, last[:, 1], xp), inside

    def _shown(self, x: Any, y: Any, here: Mapping[str, Any], xp: Any) -> Any:
        """Return whether each output pixel shows the entry's part, and no other part covers the pixel."""
        if not self._mixed:
            return xp.ones_like(x, dtype=bool)
        x, y = x[:, None], y[:, None]
        left, top, right, bottom = here["rectangles"]
        within = (x >= left) & (x < right) & (y >= top) & (y < bottom)
        return within[:, 0] & ~within[:, 1:].any(1)

    def _undo(
        self,
        number: int,
        rows: slice,
        traced: tuple[Any, Any, Any],
        arrays: Mapping[str, NDArray[Any]],
        here: Mapping[str, Any],
    ) -> Sequence[Any]:
        """Trace coordinates back through a step, and update whether they are inside the image.

        `arrays` and `here` hold the same values, on the CPU and on the device. Reading `arrays` never waits for a GPU.
        """
        moved, mask = arrays[f"moved {number}"], here[f"moved {number}"]
        if not moved.any():
            return traced
        x, y, inside = traced
        step, matrix = self._steps[number], f"matrix {number}"
        xp: Any = np if here is arrays else torch
        if not isinstance(step, _Remap):
            affine = (arrays[matrix][:, 2, :2] == 0).all()
            x, y = _traced(here[matrix], x, y, affine=affine)
        elif xp is torch:
            x, y = step.of(rows).back(x, y)
        else:
            x, y = (axis.numpy() for axis in step.of(rows).back(torch.tensor(x), torch.tensor(y)))
        before = _within(x, y, self.size[::-1], step.border, inside, xp)
        if moved.all():
            return before
        return [xp.where(mask, new, old) for new, old in zip(before, traced, strict=True)]

    @property
    def _crop_border(self) -> str:
        """The border of the crop, or "" if the crop never reaches beyond the image."""
        params = self._plan.crop.params
        return str(params.get("border", "constant" if params.get("side") == "long" else ""))

    def _back_arrays(self, rows: slice) -> dict[str, NDArray[Any]]:
        window, orientations = self._window[rows], self._orientations[rows]
        sides, start, end = window[:, :2], window[:, 2:4], window[:, 4:6]
        scale = self.size / (end - start)
        first, resized = start * scale, sides * scale
        if self._crop_border:
            start = 0 * start
        if self._crop_border == "reflect_101":
            # The crop resized the image to a whole number of pixels around the same center, and cut at a whole pixel.
            whole = np.floor(resized)
            from_pixel = first - (resized - whole) / 2
            whole += np.abs(from_pixel - np.rint(from_pixel)) > 0.25
            start = (resized - whole) / 2 / scale
            first, resized = first - (resized - whole) / 2, whole
        given: dict[str, NDArray[Any]] = {
            "first": first,
            "resized": resized,
            "last": self.stored_sizes[rows] - 1,
            "factor": 1 / scale,
            "shift": start + 0.5 / scale - 0.5,
        }
        given = {name: values[:, :, None, None] for name, values in given.items()}
        for number, step in enumerate(self._steps):
            given[f"moved {number}"] = step.moved[rows][:, None, None]
            if not isinstance(step, _Remap):
                given[f"matrix {number}"] = np.linalg.inv(step.matrix[rows])[..., None, None]
        if self._mixed:
            given["rectangles"] = np.moveaxis(self.parts.rectangles[rows] - 0.5, -1, 0)[..., None, None]
        if (orientations != 1).any():
            given["turn"] = np.linalg.inv(turns(orientations, sides))[..., None, None]
        y, x = (np.arange(n, dtype=np.float64) for n in self.size)
        return given | {"x": x, "y": y[:, None]}


class Motions:
    """Makes the motions of a plan's views, batch by batch.

    Args:
        plan: the plan.
        seed: the seed of the draws.
        rank: the rank, which also seeds the draws.
        targets: a name for the targets that follow the pixels, for messages. Empty without such targets.
        ahead: draws the steps of several batches at once. A subclass of `DrawAhead`.

    Raises:
        UserError: targets cannot follow a step.
    """

    def __init__(
        self, plan: Plan, seed: int, rank: int, *, targets: str = "", ahead: Callable[..., DrawAhead[Any]] = DrawAhead
    ) -> None:
        moving = [own.moving for own in plan.per_view]
        for own in moving if targets else ():
            for step in own.steps:
                if step.op.kind == "local":
                    raise UserError(
                        f"{own.path}.{step.key}: {targets} cannot follow the op '{step.op.name}', because it does not "
                        "declare how it moves pixels. Declare the op with `remap`, or with moves=False if it moves "
                        "none."
                    )
        known = [own.only("geometry", "remap") for own in moving]
        self._samplers = [Sampler(own, seed, rank, view) for view, own in enumerate(known)]
        self._steps: DrawAhead[list[list[_Matrix]]] = ahead(self._draw)

    def of(
        self, windows: Sequence[Tensor], orientations: NDArray[np.int64], epoch: int, start: int, device: torch.device
    ) -> list[BatchMotion]:
        """Return the motion of each view of the batch that begins at position `start` of an epoch."""
        drawn, rows = self._steps.take(epoch, start, len(orientations))
        motions = []
        for own, steps, window in zip(self._samplers, drawn, windows, strict=True):
            of_batch = [step.of(rows) for step in steps]
            motions.append(BatchMotion(own.plan, of_batch, window.double().numpy(), orientations, device))
        return motions

    @property
    def mirrors(self) -> bool:
        """Whether the plan mirrors images, judged by the first thousand samples."""
        for own in self._samplers:
            matrix = np.eye(3)
            draws = own.draw(0, 0, 1000)
            for stage in own.plan.stages:
                matrix = stage.matrix(draws, own.plan.size) @ matrix
            if (np.linalg.det(matrix) < 0).any():
                return True
        return False

    def _draw(self, where: SampleRange) -> list[list[_Matrix]]:
        steps = []
        for sampler in self._samplers:
            draws = sampler.draw(*where)
            steps.append([_step(stage, draws, sampler.plan.size) for stage in sampler.plan.stages])
        return steps


def _step(stage: Stage, draws: dict[str, Draws], size: Size) -> _Matrix:
    there, back = about_middle(size)
    matrix = stage.matrix(draws, size)
    # Leave identity matrices as they are: a product would have rounding errors.
    moved = (matrix != np.eye(3)).any(axis=(1, 2))
    matrix = np.where(moved[:, None, None], there @ matrix @ back, np.eye(3))
    if stage.kind == "geometry":
        return _Matrix(matrix, stage.border[0], moved)
    values = remap_values(stage, draws, size)
    return _Remap(matrix, stage.border[0], moved | stage.remapped(draws), stage, size, values)


def _traced(m: Any, x: Any, y: Any, *, affine: Any) -> tuple[Any, Any]:
    """Map coordinates, (N, H, W), with matrices, (N, 3, 3, 1, 1)."""
    u, v = (m[:, row, 0] * x + (m[:, row, 1] * y + m[:, row, 2]) for row in (0, 1))
    if affine:
        return u, v
    w = m[:, 2, 0] * x + (m[:, 2, 1] * y + m[:, 2, 2])
    return u / w, v / w


def _nearest(position: Any, last: Any, xp: Any) -> Any:
    """Return the index of the pixel at each position along an axis, limited to 0..last."""
    return xp.clip(xp.asarray(xp.floor(position + 0.5), dtype=xp.int64), 0 * last, last)


def _within(x: Any, y: Any, sides: tuple[Any, Any], border: str, inside: Any, xp: Any) -> tuple[Any, Any, Any]:
    """Map coordinates outside an image to the coordinates inside it that a border mode shows.

    With a constant border, `inside` becomes false instead. `sides` are width and height. `xp` is NumPy or PyTorch.
    """
    if border == "constant":
        for position, side in ((x, sides[0]), (y, sides[1])):
            inside = inside & (position >= -0.5) & (position < side - 0.5)
    return _folded(x, sides[0], border, xp), _folded(y, sides[1], border, xp), inside


def _folded(position: Any, side: Any, border: str, xp: Any) -> Any:
    last = side - 1
    if border == "reflect_101":
        period = 2 * last + (last == 0)  # an image of one pixel repeats that pixel
        # Few positions are so far outside that they need a remainder, which is slow in NumPy.
        far = xp is torch or ((position < -last) | (position > period)).any()
        turned = xp.remainder(position, period) if far else abs(position)
        # Leave positions inside the image as they are, because folding would round them.
        return xp.where((position < 0) | (position > last), xp.minimum(turned, period - turned), position)
    if border == "wrap":
        return xp.remainder(position + 0.5, side) - 0.5
    return xp.clip(position, 0 * last, last)
