"""Stages of a plan: steps that one operator runs, and the composition of their drawn parameters in NumPy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from augment.params import Size
from augment.recipe.op_kinds import Array, Mask, PreparedOp
from augment.recipe.step import Step
from augment.support.errors import UserError

Border = tuple[str, int]
Draws = Mapping[str, Array]
StageKind = Literal["geometry", "remap", "color", "local", "batch"]

# Steps at one position of the order. At most one of them applies to a sample, so their own order does not matter.
Alternatives = tuple[Step, ...]

NO_BORDER: Border = ("reflect_101", 0)


@dataclass(frozen=True)
class Stage:
    """Steps that run as one operation: one warp, one color matrix, or one local or batch op.

    A warp is of kind "remap" if any of its steps is, whose functions then take turns with the matrices of the others.

    Attributes:
        kind: the kind of operation.
        positions: alternatives in order of application. At most one of each applies to a sample.
        border: warps only: the border mode and fill of all its steps.
        chained: color only: the matrices are applied one after the other, and each result is clipped to 0..255.
    """

    kind: StageKind
    positions: tuple[Alternatives, ...]
    border: Border = NO_BORDER
    chained: bool = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all positions."""
        return tuple(step for alternatives in self.positions for step in alternatives)

    @property
    def uses_mean(self) -> bool:
        """Whether a color stage's matrix depends on the mean color of the image."""
        return self.kind == "color" and any(_shape(step)[-1] == 7 for step in self.steps)

    def matrix(self, draws: Mapping[str, Draws], size: Size) -> Array:
        """Compose the matrices of the stage's steps.

        Args:
            draws: each step's drawn values, (N,) each, and `applied`, (N,) bool, by the step's key.
            size: height and width of the image in pixels.

        Returns:
            warps: (N, 3, 3), source to destination, in pixels, origin in the middle of the image; remaps are left out.
            color: (N, 3, 4) on (R, G, B, 1) in 0..255, or (N, 3, 7) on (R, G, B, mean R, mean G, mean B, 1) if the
            stage uses the image's mean.
        """
        side = 3 if self.kind in ("geometry", "remap") else 7 if self.uses_mean else 4
        return _total(self.steps, draws, size, side)[:, :3]

    def links(self, draws: Mapping[str, Draws], size: Size) -> list[Array]:
        """Return the matrices of a chained stage in order of application, each as `matrix` returns them.

        A step may consist of several, as color_jitter does.
        """
        links = []
        for alternatives in self.positions:
            side = max(_shape(step)[-1] for step in alternatives)
            for part in range(max(map(parts_of, alternatives))):
                links.append(_total(alternatives, draws, size, side, part)[:, :3])
        return links

    @property
    def parts(self) -> list[tuple[Step, ...]]:
        """The steps of a warp in order: those that follow each other as matrices together, remaps one by one."""
        numbered = groupby(enumerate(self.steps), lambda item: item[0] if item[1].op.kind == "remap" else -1)
        return [tuple(step for _, step in part) for _, part in numbered]

    def remapped(self, draws: Mapping[str, Draws]) -> Mask:
        """Return which samples any remap of the stage applies to, (N,) bool."""
        remaps = [draws[step.key]["applied"] for step in self.steps if step.op.kind == "remap"]
        return np.asarray(np.logical_or.reduce(remaps), bool)

    def applied(self, draws: Mapping[str, Draws]) -> Array:
        """Return which samples any step of the stage applies to, (N,) bool."""
        return np.asarray(np.logical_or.reduce([draws[step.key]["applied"] for step in self.steps]))

    def packed(self, draws: Mapping[str, Draws]) -> tuple[NDArray[np.intp], dict[str, Draws]]:
        """Return the samples that the stage applies to, and the draws of these and of one that stands for the others.

        That one is the last, if there is any: what is prepared for several samples may depend on it.
        """
        applied = self.applied(draws)
        rows = np.flatnonzero(applied)
        some = np.append(rows, np.flatnonzero(np.logical_not(applied))[:1])
        return rows, {s.key: {name: value[some] for name, value in draws[s.key].items()} for s in self.steps}

    @property
    def is_gated(self) -> bool:
        """Whether some samples may skip the stage."""
        return not (len(self.steps) == 1 and self.steps[0].p == 1)

    @property
    def neutral(self) -> Mapping[str, Any]:
        """Drawn values with which a local or batch stage's op changes nothing; empty if it has none."""
        return self._prepared.neutral

    @property
    def _prepared(self) -> PreparedOp:
        op = self.steps[0].op
        assert isinstance(op, PreparedOp)
        return op

    def values(self, draws: Mapping[str, Draws], size: Size, *, neutral: bool = False) -> dict[str, Array]:
        """Return the arguments that the stage's op takes for each sample, {name: (N, ...)}.

        Args:
            draws: see `matrix`.
            size: height and width of the image in pixels.
            neutral: whether samples that skip the stage get the op's neutral values. Otherwise their values are
                unspecified.
        """
        drawn = self._drawn_by_any_step(draws)
        if neutral:
            drawn = self._with_neutral(drawn, draws)
        if self._prepared.prepare is None:
            return drawn
        if neutral:
            return self._prepare_applied(drawn, draws, size)
        return self._prepare(drawn, size)

    def _drawn_by_any_step(self, draws: Mapping[str, Draws]) -> dict[str, Array]:
        """Return each drawn value of the op, taken from the step that applies to the sample."""
        first, *others = self.steps
        drawn = {}
        for name in (*self._prepared.draws, *self._prepared.uniforms):
            value = draws[first.key][name]
            for step in others:
                value = np.where(draws[step.key]["applied"], draws[step.key][name], value)
            drawn[name] = value
        return drawn

    def _with_neutral(self, drawn: dict[str, Array], draws: Mapping[str, Draws]) -> dict[str, Array]:
        """Replace the drawn values of samples that skip the stage by neutral ones, if the op declares some."""
        neutral, applied = self.neutral, self.applied(draws)
        return {
            name: np.where(applied, value, neutral[name]) if name in neutral else value for name, value in drawn.items()
        }

    def _prepare(self, drawn: dict[str, Array], size: Size) -> dict[str, Array]:
        op, params = self._prepared, self.steps[0].params
        assert op.prepare is not None
        return dict(op.prepare(size=size, **op.values(params, drawn)))

    def _prepare_applied(self, drawn: dict[str, Array], draws: Mapping[str, Draws], size: Size) -> dict[str, Array]:
        """Prepare the samples that the stage applies to, and one skipped sample instead of all skipped ones.

        Most samples skip the stage, and preparing can be slow.
        """
        applied = self.applied(draws)
        skipped = np.logical_not(applied)
        rows = np.concatenate([np.flatnonzero(applied), np.flatnonzero(skipped)[:1]])
        prepared = self._prepare({name: value[rows] for name, value in drawn.items()}, size)

        # The k-th applied sample is in row k, and every skipped sample in the last row.
        row_of_sample = np.where(applied, np.cumsum(applied) - 1, len(rows) - 1)
        values = {name: value[row_of_sample] for name, value in prepared.items()}
        for name, value in values.items():
            if name in self.neutral and name not in drawn:
                value[skipped] = self.neutral[name]
        return values


def parts_of(step: Step) -> int:
    """Return the number of matrices that a color step consists of, one after the other."""
    shape = _shape(step)
    return shape[-3] if len(shape) == 4 else 1


def _shape(step: Step) -> tuple[int, ...]:
    """Return the shape of what a color step's function returns for one sample."""
    one = {n: np.ones(1) for n in step.op.draws} | {n: np.zeros(1) for n in step.op.uniforms}
    return np.shape(step.op.function(**step.op.values(step.params, one)))


def _total(steps: Sequence[Step], draws: Mapping[str, Draws], size: Size, side: int, part: int | None = None) -> Array:
    """Return the product of the matrices of some steps, (N, side, side), or of one part of each."""
    count = len(draws[steps[0].key]["applied"])
    total, before = np.tile(np.eye(side), (count, 1, 1)), np.zeros(count, bool)
    for step in steps:
        rows = np.flatnonzero(draws[step.key]["applied"])
        if len(rows) and step.op.kind != "remap":
            made = np.zeros((len(rows), side, side)) + _matrices(step, draws[step.key], size, rows, side, part)
            again = before[rows]
            made[again] = made[again] @ total[rows[again]]
            total[rows], before[rows] = made, True
    return total


def _matrices(
    step: Step, drawn: Draws, size: Size, rows: NDArray[np.intp], side: int, part: int | None = None
) -> Array:
    """Return a step's matrices for some samples, (rows, side, side), or those of one of its parts."""
    values = step.op.values(step.params, {n: drawn[n][rows] for n in (*step.op.draws, *step.op.uniforms)})
    if step.op.kind == "geometry":
        return np.broadcast_to(_checked(step, step.op.function(size=size, **values), len(rows)), (len(rows), 3, 3))
    matrix = _checked(step, step.op.function(**values), len(rows))
    parts = matrix if matrix.ndim == 4 else matrix.reshape(-1, 1, *matrix.shape[-2:])
    if part is None:
        return _square(_product(parts), side)
    if part < parts.shape[1]:
        return _square(parts[:, part], side)
    return np.tile(np.eye(side), (len(rows), 1, 1))  # another step at this position has more


def _checked(step: Step, made: Any, count: int) -> Array:
    """Return the matrices that an op made for `count` samples. Reject invalid results."""
    matrix = np.asarray(made)
    columns, most = ("3", 1) if step.op.kind == "geometry" else ("47", 2)
    leading, ending = matrix.shape[:-2], matrix.shape[-2:]
    if ending not in [(3, int(c)) for c in columns] or len(leading) > most or leading[:1] not in ((), (1,), (count,)):
        allowed = " or ".join(f"(N, 3, {c})" for c in columns)
        raise UserError(f"op '{step.op.name}' made {matrix.shape} for N = {count}. Allowed: {allowed}.")
    if not np.isfinite(matrix).all():
        raise UserError(f"op '{step.op.name}' made a matrix that is not finite.")
    return matrix


def _square(matrix: Array, side: int) -> Array:
    """Return (..., 3, 4) or (..., 3, 7) with the rows that make matrices composable, (..., side, side)."""
    square = np.broadcast_to(np.eye(side), (*matrix.shape[:-2], side, side)).copy()
    square[..., :3, :3], square[..., :3, -1] = matrix[..., :3], matrix[..., -1]
    if side == 7:
        # On (color, mean color, 1): a step maps the mean like any color, apart from clipping.
        from_mean = matrix[..., 3:6] if matrix.shape[-1] == 7 else np.zeros_like(matrix[..., :3])
        square[..., :3, 3:6] = from_mean
        square[..., 3:6, 3:6] = matrix[..., :3] + from_mean
        square[..., 3:6, 6] = matrix[..., -1]
    return square


def _product(matrices: Array) -> Array:
    """Multiply the matrices of each sample, (N, K, 3, C) in order of application, to (N, 3, C)."""
    squares = _square(matrices, matrices.shape[-1])
    total = squares[:, 0]
    for number in range(1, squares.shape[1]):
        total = squares[:, number] @ total
    return np.asarray(total[:, :3])
