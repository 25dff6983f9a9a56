"""The plan: what will be done to the pictures of a split, grouped into stages. Pure data and NumPy, no DALI."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import Literal

import numpy as np

from augment.config import IMAGENET_MEAN, IMAGENET_STD, Aug, SplitName, Step
from augment.ops import resize as _resize
from augment.registry import OPS, Array

Border = tuple[str, int]
Draws = Mapping[str, Array]


@dataclass(frozen=True)
class Stage:
    """Steps that are carried out at once: one warp, or one color matrix.

    Attributes:
        kind: geometry or color.
        steps: in order of application.
        border: geometry: border mode and fill of all its steps.
    """

    kind: Literal["geometry", "color"]
    steps: tuple[Step, ...]
    border: Border = ("reflect_101", 0)

    def matrix(self, draws: Mapping[str, Draws], size: int) -> Array:
        """Compose the stage's steps.

        Args:
            draws: for each step's key its drawn values, (N,) each, and `applied`, (N,) bool.
            size: side of the picture in pixels.

        Returns:
            geometry: (N, 3, 3), source to destination, pixels, origin in the middle of the picture.
            color: (N, 3, 4) on RGB in 0..255.
        """
        total: Array | None = None
        for step in self.steps:
            matrix = step_matrix(step, draws[step.key], size)
            total = matrix if total is None else matrix @ total
        assert total is not None
        return total[:, : 3 if self.kind == "geometry" else -1]


def step_matrix(step: Step, drawn: Draws, size: int) -> Array:
    """Return a step's matrix for each sample, the exact identity where it is not applied.

    Returns:
        geometry: (N, 3, 3); color: (N, 4, 4), the (3, 4) matrix with a last row that makes it composable.
    """
    values = step.op.values(step.params, {n: drawn[n] for n in step.op.draws})
    applied = drawn["applied"]
    if step.op.kind == "geometry":
        return np.where(applied[:, None, None], step.op.function(size=size, **values), np.eye(3))
    matrix = np.where(applied[:, None, None], step.op.function(**values), np.eye(3, 4))
    last = np.broadcast_to([0.0, 0.0, 0.0, 1.0], (len(matrix), 1, 4))
    return np.concatenate([matrix, last], axis=1)


@dataclass(frozen=True)
class Plan:
    """What is done to every picture of a split: crop, stages, normalization.

    `str(plan)` is for people; `plan.digest` tells whether two plans are the same.

    Attributes:
        split: train or val.
        size: side of the square in pixels.
        crop: which part of the picture becomes (size, size).
        stages: in order.
        mean: subtracted from RGB in 0..1.
        std: divided by, in 0..1.
        skipped: steps with p = 0, which are not in the plan.
    """

    split: SplitName
    size: int
    crop: Step
    stages: tuple[Stage, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    skipped: tuple[Step, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all stages, in order."""
        return tuple(step for stage in self.stages for step in stage.steps)

    @property
    def digest(self) -> str:
        """A hash of everything that decides about pixels, to the last digit."""
        stages = [(s.kind, s.border, [_identity(step) for step in s.steps]) for s in self.stages]
        whole = (self.split, self.size, _identity(self.crop), stages, self.mean, self.std)
        return blake2b(repr(whole).encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        lines = [f"{self.split}: {self.size} x {self.size} px", f"  crop      {str(self.crop).replace('  p 1', '')}"]
        for stage in self.stages:
            lines.append(f"  {stage.kind:<9} {_what(stage)}")
            lines += [f"    {step}" for step in stage.steps]
        lines.append(f"  normalize mean {_list(self.mean)}, std {_list(self.std)}")
        if self.skipped:
            lines.append(f"  left out (p 0): {', '.join(step.key for step in self.skipped)}")
        return "\n".join(lines)


def _identity(step: Step) -> tuple[object, ...]:
    return step.key, step.op.name, step.p, sorted(step.params.items())


def _what(stage: Stage) -> str:
    mode, fill = stage.border
    count = f"{len(stage.steps)} step{'s' * (len(stage.steps) > 1)} in one"
    if stage.kind == "color":
        return f"{count} color matrix"
    return f"{count} warp, border {mode}" + (f" {fill}" if mode == "constant" else "")


def _list(values: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{v:g}" for v in values) + "]"


def build_plan(aug: Aug, split: SplitName) -> Plan:
    """Group the steps of a split into stages.

    Adjacent geometry steps with one border become one stage, and so do adjacent color steps, unless `aug.fuse` is
    false. A step with p = 0 is left out, and its neighbours are adjacent.
    """
    steps = aug.steps(split)
    crop = steps[0] if steps and steps[0].op.kind == "crop" else Step("resize", OPS[_resize.__name__])
    rest = [step for step in steps if step.op.kind != "crop"]
    active = [step for step in rest if step.p > 0]
    return Plan(
        split=split,
        size=aug.size,
        crop=crop,
        stages=tuple(_stages(active, fuse=aug.fuse)),
        mean=aug.mean or IMAGENET_MEAN,
        std=aug.std or IMAGENET_STD,
        skipped=tuple(step for step in rest if step.p == 0),
    )


def _border(step: Step) -> Border | None:
    """Return the step's border, or None if it never shows one; fill tells borders apart only where it is seen."""
    if step.op.moves_inside:
        return None
    mode = step.params["border"]
    return mode, step.params["fill"] if mode == "constant" else 0


def _stages(steps: list[Step], *, fuse: bool) -> list[Stage]:
    groups: list[list[Step]] = []
    for kind, run in groupby(steps, key=lambda step: step.op.kind):
        for i, step in enumerate(run):
            if i and fuse and (kind == "color" or _fits(step, groups[-1])):
                groups[-1].append(step)
            else:
                groups.append([step])
    return [_stage(group) for group in groups]


def _fits(step: Step, group: list[Step]) -> bool:
    borders = {_border(s) for s in [*group, step]} - {None}
    return len(borders) <= 1


def _stage(group: list[Step]) -> Stage:
    steps = tuple(group)
    if group[0].op.kind == "color":
        return Stage("color", steps)
    borders = [b for b in map(_border, group) if b is not None]
    return Stage("geometry", steps, borders[0]) if borders else Stage("geometry", steps)


if __name__ == "__main__":
    import sys

    from augment.show_plan import main

    sys.exit(main())
