"""A stage of a plan: steps that are carried out at once, and the NumPy that composes what was drawn for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from augment.config import Step
from augment.registry import Array

Border = tuple[str, int]
Draws = Mapping[str, Array]
StageKind = Literal["geometry", "color", "local", "batch"]

# Alternatives at one place of the order: at most one of them is applied to a sample, so they may change places.
Place = tuple[Step, ...]

NO_BORDER: Border = ("reflect_101", 0)


@dataclass(frozen=True)
class Stage:
    """Steps that are carried out at once: one warp, one color matrix, or one operator.

    Attributes:
        kind: what is carried out.
        places: in order of application; each holds steps of which at most one is applied to a sample.
        border: geometry: border mode and fill of all its steps.
    """

    kind: StageKind
    places: tuple[Place, ...]
    border: Border = NO_BORDER

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all places."""
        return tuple(step for place in self.places for step in place)

    @property
    def looks(self) -> bool:
        """Whether a color stage's matrix depends on the mean color of the picture."""
        return self.kind == "color" and any(_columns(step) == 7 for step in self.steps)

    def matrix(self, draws: Mapping[str, Draws], size: int) -> Array:
        """Compose the stage's steps.

        Args:
            draws: for each step's key its drawn values, (N,) each, and `applied`, (N,) bool.
            size: side of the picture in pixels.

        Returns:
            geometry: (N, 3, 3), source to destination, pixels, origin in the middle of the picture.
            color: (N, 3, 4) on RGB in 0..255; (N, 3, 7) if it looks at the picture, on (R, G, B, mean R, G, B, 1).
        """
        side = 3 if self.kind == "geometry" else 7 if self.looks else 4
        count = len(draws[self.steps[0].key]["applied"])
        total: Array | None = None
        for place in self.places:
            matrix = np.broadcast_to(np.eye(side), (count, side, side)).copy()
            for step in place:
                _put_matrix(matrix, step, draws[step.key], size)
            total = matrix if total is None else matrix @ total
        assert total is not None
        return total[:, :3]

    def applied(self, draws: Mapping[str, Draws]) -> Array:
        """Return which samples any step of a stage is applied to, (N,) bool."""
        return np.asarray(np.logical_or.reduce([draws[step.key]["applied"] for step in self.steps]))

    @property
    def is_gated(self) -> bool:
        """Whether a sample may be left out."""
        return not (len(self.steps) == 1 and self.steps[0].p == 1)

    @property
    def neutral(self) -> Mapping[str, Any]:
        """Drawn values with which a local stage's op changes nothing; empty if there are none."""
        return self.steps[0].op.neutral

    def values(self, draws: Mapping[str, Draws], size: int, *, neutral: bool = False) -> dict[str, Array]:
        """Return what the function of a local or batch stage's op gets for each sample: {name: (N, ...)}.

        Args:
            draws: as `matrix`.
            size: side of the picture in pixels.
            neutral: give samples that are left out the op's neutral values.
        """
        op, params = self.steps[0].op, self.steps[0].params
        values: dict[str, Array] = {}
        for name in (*op.draws, *op.uniforms):
            value = draws[self.steps[0].key][name]
            for step in self.steps[1:]:
                value = np.where(draws[step.key]["applied"], draws[step.key][name], value)
            if neutral and name in op.neutral:
                value = np.where(self.applied(draws), value, op.neutral[name])
            values[name] = value
        return values if op.prepare is None else op.prepare(size=size, **op.values(params, values))


def _columns(step: Step) -> int:
    """Return how many columns a color step's matrix has."""
    one = {n: np.ones(1) for n in step.op.draws} | {n: np.zeros(1) for n in step.op.uniforms}
    return int(np.shape(step.op.function(**step.op.values(step.params, one)))[-1])


def _put_matrix(total: Array, step: Step, drawn: Draws, size: int) -> None:
    """Write a step's matrix into the rows of the samples to which it is applied."""
    rows = np.flatnonzero(drawn["applied"])
    if not len(rows):
        return
    values = step.op.values(step.params, {n: drawn[n][rows] for n in (*step.op.draws, *step.op.uniforms)})
    if step.op.kind == "geometry":
        total[rows] = step.op.function(size=size, **values)
        return
    matrix = step.op.function(**values)
    if total.shape[-1] == 4:
        total[rows, :3] = matrix
        return
    # On (color, mean color, 1); the mean of the result is what the step makes of the mean, but for what it clips.
    if matrix.shape[-1] == 4:
        matrix = np.concatenate([matrix[..., :3], np.zeros_like(matrix[..., :3]), matrix[..., 3:]], axis=-1)
    total[rows, :3] = matrix
    total[rows, 3:6, 3:6] = matrix[..., :3] + matrix[..., 3:6]
    total[rows, 3:6, 6] = matrix[..., 6]


def step_matrix(step: Step, drawn: Draws, size: int) -> Array:
    """Return a step's matrix for each sample, the exact identity where it is not applied.

    Returns:
        geometry: (N, 3, 3); color: (N, 4, 4) or (N, 7, 7), with the last rows that make it composable.
    """
    side = 3 if step.op.kind == "geometry" else _columns(step)
    matrix = np.broadcast_to(np.eye(side), (len(drawn["applied"]), side, side)).copy()
    _put_matrix(matrix, step, drawn, size)
    return matrix
