"""Stages of a plan: the steps that one operator runs, and the NumPy code that composes their drawn values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from augment.params import Size
from augment.recipe.op_kinds import Array, ColorOp, Mask, PreparedOp
from augment.recipe.step import Step
from augment.support.errors import UserError

Border = tuple[str, int]
Draws = Mapping[str, Array]
StageKind = Literal["geometry", "remap", "color", "local", "batch"]

# Steps at the same position in a stage. At most one of them applies to a sample, so their order does not matter.
Alternatives = tuple[Step, ...]

NO_BORDER: Border = ("reflect_101", 0)


@dataclass(frozen=True)
class Stage:
    """Steps that run as one operation: one warp, one color matrix, or one local or batch op.

    A warp with a remap step has kind "remap". It runs remap functions and matrices in order.

    Attributes:
        kind: the kind of operation.
        positions: alternatives in order of application. At most one step of each position applies to a sample.
        border: for warps, the border mode and fill of all steps.
        chained: for colors, whether the matrices are applied one by one, and each result is clipped to 0..255.
    """

    kind: StageKind
    positions: tuple[Alternatives, ...]
    border: Border = NO_BORDER
    chained: bool = False

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for alternatives in self.positions for step in alternatives)

    @property
    def moves(self) -> bool:
        """Whether any step moves pixels."""
        return any(step.op.moves for step in self.steps)

    @property
    def channels(self) -> int:
        """The number of channels that a color stage's matrix maps."""
        return _shape(self.steps[0])[-2]

    @property
    def uses_mean(self) -> bool:
        """Whether a color stage's matrix depends on the mean color of the image."""
        return self.kind == "color" and any(_reads_mean(_shape(step)) for step in self.steps)

    def matrix(self, draws: Mapping[str, Draws], size: Size) -> Array:
        """Compose the matrices of all steps.

        Args:
            draws: for each step's key, its drawn values, (N,) each, and `applied`, (N,) bool.
            size: height and width of the image in pixels.

        Returns:
            For warps, (N, 3, 3) from source to destination, in pixels from the center of the image. Remaps are ignored.
            For colors, (N, 3, 4) on (R, G, B, 1) in 0..255. If the stage uses the image's mean, (N, 3, 7) on
            (R, G, B, mean R, mean G, mean B, 1). For images with C channels, C replaces 3 in all of these shapes.
        """
        if self.kind in ("geometry", "remap"):
            return _total(self.steps, draws, size, 3)
        side = max(_shape(step)[-1] for step in self.steps)
        return _total(self.steps, draws, size, side)[:, : self.channels]

    def chain_matrices(self, draws: Mapping[str, Draws], size: Size) -> list[Array]:
        """Return the matrices of a chained stage in order of application, each like the result of `matrix`.

        A step may have several matrices, as color_jitter does.
        """
        matrices = []
        for alternatives in self.positions:
            side = max(_shape(step)[-1] for step in alternatives)
            for number in range(max(map(count_matrices, alternatives))):
                matrices.append(_total(alternatives, draws, size, side, number)[:, : self.channels])
        return matrices

    @property
    def warp_parts(self) -> list[tuple[Step, ...]]:
        """The steps of a warp in order. Consecutive matrices form one part. Each remap is a part."""
        numbered = ((number if step.op.kind == "remap" else -1, step) for number, step in enumerate(self.steps))
        return [tuple(step for _, step in part) for _, part in groupby(numbered, key=itemgetter(0))]

    def remapped(self, draws: Mapping[str, Draws]) -> Mask:
        """Return whether any remap of the stage applies to each sample, (N,) bool."""
        remaps = [draws[step.key]["applied"] for step in self.steps if step.op.kind == "remap"]
        return np.asarray(np.logical_or.reduce(remaps), bool)

    def applied(self, draws: Mapping[str, Draws]) -> Array:
        """Return whether any step of the stage applies to each sample, (N,) bool."""
        return np.asarray(np.logical_or.reduce([draws[step.key]["applied"] for step in self.steps]))

    def applied_draws(self, draws: Mapping[str, Draws]) -> tuple[NDArray[np.intp], dict[str, Draws]]:
        """Return the samples to which the stage applies, and their draws.

        If any samples skip the stage, the draws of one of them come last. For this row, `values` with `neutral` returns
        the op's neutral values.
        """
        rows, kept_rows = _applied_and_skipped(self.applied(draws))
        kept: dict[str, Draws] = {}
        for step in self.steps:
            kept[step.key] = {name: value[kept_rows] for name, value in draws[step.key].items()}
        return rows, kept

    @property
    def is_gated(self) -> bool:
        """Whether some samples may skip the stage."""
        return not (len(self.steps) == 1 and self.steps[0].p == 1)

    @property
    def neutral(self) -> Mapping[str, Any]:
        """Drawn or prepared values with which a local or batch stage's op changes nothing.

        Empty if the op declares none.
        """
        return self._prepared.neutral

    @property
    def _prepared(self) -> PreparedOp:
        return cast(PreparedOp, self.steps[0].op)

    def values(self, draws: Mapping[str, Draws], size: Size, *, neutral: bool = False) -> dict[str, Array]:
        """Return the arguments of the stage's op for each sample, {name: (N, ...)}.

        Args:
            draws: see `matrix`.
            size: height and width of the image in pixels.
            neutral: whether samples that skip the stage get the op's neutral values, instead of arbitrary values.
        """
        drawn = self._drawn_by_any_step(draws)
        if not neutral:
            return self._prepare(drawn, size)
        applied = self.applied(draws)
        for name in drawn.keys() & self.neutral.keys():
            drawn[name] = np.where(applied, drawn[name], self.neutral[name])
        if self._prepared.prepare is None:
            return drawn
        return self._prepare_applied(drawn, applied, size)

    def _drawn_by_any_step(self, draws: Mapping[str, Draws]) -> dict[str, Array]:
        """Return the op's drawn values. Each sample's values come from the step that applies to it."""
        first, *others = self.steps
        drawn = {}
        for name in (*self._prepared.draws, *self._prepared.uniforms):
            value = draws[first.key][name]
            for step in others:
                value = np.where(draws[step.key]["applied"], draws[step.key][name], value)
            drawn[name] = value
        return drawn

    def _prepare(self, drawn: dict[str, Array], size: Size) -> dict[str, Array]:
        op, params = self._prepared, self.steps[0].params
        return dict(op.prepare(size=size, **op.values(params, drawn))) if op.prepare else drawn

    def _prepare_applied(self, drawn: dict[str, Array], applied: Array, size: Size) -> dict[str, Array]:
        """Prepare values for the samples to which the stage applies, and only once for all skipped samples.

        Preparing values can be slow, and most samples may skip the stage.
        """
        _, rows = _applied_and_skipped(applied)
        prepared = self._prepare({name: value[rows] for name, value in drawn.items()}, size)

        # The k-th applied sample is in row k. Every skipped sample is in the last row.
        row_of_sample = np.where(applied, np.cumsum(applied) - 1, len(rows) - 1)
        values = {name: value[row_of_sample] for name, value in prepared.items()}
        for name, value in values.items():
            if name in self.neutral and name not in drawn:
                value[np.logical_not(applied)] = self.neutral[name]
        return values


def _applied_and_skipped(applied: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of the samples to which a stage applies, and these rows plus one skipped sample, if any."""
    rows = np.flatnonzero(applied)
    return rows, np.append(rows, np.flatnonzero(np.logical_not(applied))[:1])


def count_matrices(step: Step) -> int:
    """Return the number of matrices that a color step returns for one sample."""
    shape = _shape(step)
    return shape[-3] if len(shape) == 4 else 1


def _reads_mean(shape: tuple[int, ...]) -> bool:
    """Return whether matrices of a shape also act on the mean color of the image."""
    return shape[-1] > shape[-2] + 1


def _shape(step: Step) -> tuple[int, ...]:
    """Return the shape of the matrices that a color step returns for one sample."""
    drawn = dict.fromkeys(step.op.draws, np.ones(1)) | dict.fromkeys(step.op.uniforms, np.zeros(1))
    return np.shape(step.op.function(**step.op.values(step.params, drawn)))


def _total(steps: Sequence[Step], draws: Mapping[str, Draws], size: Size, side: int, part: int | None = None) -> Array:
    """Multiply the matrices of some steps, or only matrix number `part` of each step, to (N, side, side)."""
    count = len(draws[steps[0].key]["applied"])
    total, before = np.tile(np.eye(side), (count, 1, 1)), np.zeros(count, bool)
    for step in steps:
        rows = np.flatnonzero(draws[step.key]["applied"])
        if len(rows) and step.op.kind != "remap":
            product = np.zeros((len(rows), side, side)) + _matrices(step, draws[step.key], size, rows, side, part)
            again = before[rows]
            product[again] = product[again] @ total[rows[again]]
            total[rows], before[rows] = product, True
    return total


def _matrices(
    step: Step, drawn: Draws, size: Size, rows: NDArray[np.intp], side: int, part: int | None = None
) -> Array:
    """Return the product of a step's matrices, or only matrix number `part`, for some samples, (rows, side, side)."""
    values = step.op.values(step.params, {n: drawn[n][rows] for n in (*step.op.draws, *step.op.uniforms)})
    if step.op.kind == "geometry":
        return np.broadcast_to(_checked(step, step.op.function(size=size, **values), len(rows)), (len(rows), 3, 3))
    matrix = _checked(step, step.op.function(**values), len(rows))
    parts = matrix if matrix.ndim == 4 else matrix.reshape(-1, 1, *matrix.shape[-2:])
    if part is None:
        return _square(_product(parts), side)
    if part < parts.shape[1]:
        return _square(parts[:, part], side)
    return np.tile(np.eye(side), (len(rows), 1, 1))  # another step at this position has more parts


def _checked(step: Step, returned: Any, count: int) -> Array:
    """Check the matrices that an op returned for `count` samples."""
    matrix, op = np.asarray(returned), step.op
    rows, columns, most = 3, [3], 1
    if isinstance(op, ColorOp):
        rows, columns, most = op.width, [op.width + 1, 2 * op.width + 1], 2
    leading, ending = matrix.shape[:-2], matrix.shape[-2:]
    if ending not in [(rows, c) for c in columns] or len(leading) > most or leading[:1] not in ((), (1,), (count,)):
        allowed = " or ".join(f"(N, {rows}, {c})" for c in columns)
        raise UserError(f"op '{step.op.name}' returned {matrix.shape} for N = {count}. Return {allowed}.")
    if not np.isfinite(matrix).all():
        raise UserError(f"op '{step.op.name}' returned a matrix with infinite or NaN entries. Check its function.")
    return matrix


def _square(matrix: Array, side: int) -> Array:
    """Add rows to matrices of C channels, (..., C, C + 1) or (..., C, 2 C + 1), so that they can be multiplied."""
    rows = matrix.shape[-2]
    square = np.broadcast_to(np.eye(side), (*matrix.shape[:-2], side, side)).copy()
    square[..., :rows, :rows], square[..., :rows, -1] = matrix[..., :rows], matrix[..., -1]
    if side > rows + 1:
        # The square acts on (color, mean color, 1). A step maps the mean color like any color, apart from clipping.
        from_mean = np.zeros_like(matrix[..., :rows])
        if _reads_mean(matrix.shape):
            from_mean = matrix[..., rows:-1]
        square[..., :rows, rows:-1] = from_mean
        square[..., rows:-1, rows:-1] = matrix[..., :rows] + from_mean
        square[..., rows:-1, -1] = matrix[..., -1]
    return square


def _product(matrices: Array) -> Array:
    """Multiply each sample's matrices, (N, K, rows, columns) in order of application, to (N, rows, columns)."""
    if matrices.shape[1] == 1:
        return matrices[:, 0]
    squares = _square(matrices, matrices.shape[-1])
    total = squares[:, 0]
    for number in range(1, squares.shape[1]):
        total = squares[:, number] @ total
    return np.asarray(total[:, : matrices.shape[-2]])
