"""The plan: what will be done to the pictures of a split, grouped into stages. Pure data and NumPy, no DALI."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal

import numpy as np

from augment.config import IMAGENET_MEAN, IMAGENET_STD, Aug, SplitName, Step, Views, parse_steps
from augment.crops import resize as _resize
from augment.registry import Array

Border = tuple[str, int]
Draws = Mapping[str, Array]
StageKind = Literal["geometry", "color", "local", "batch"]

# Alternatives at one place of the order: at most one of them is applied to a sample, so they may change places.
Place = tuple[Step, ...]

_NO_BORDER: Border = ("reflect_101", 0)


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
    border: Border = _NO_BORDER

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
        return np.logical_or.reduce([draws[step.key]["applied"] for step in self.steps])

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
        tree: the steps as they are chosen, policies with what is within; without those of p = 0.
        skipped: steps with p = 0, which are not in the plan.
        views: how many pictures are made of each picture.
    """

    split: SplitName
    size: int
    crop: Step
    stages: tuple[Stage, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    tree: tuple[Step, ...] = ()
    skipped: tuple[Step, ...] = ()
    views: Views = Views()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all stages, in order; a step within a policy has its path as key, and for p its chance."""
        return tuple(step for stage in self.stages for step in stage.steps)

    @property
    def image_stages(self) -> tuple[Stage, ...]:
        """The stages that each picture goes through by itself."""
        return tuple(stage for stage in self.stages if stage.kind != "batch")

    @property
    def batch_stages(self) -> tuple[Stage, ...]:
        """The stages that mix samples."""
        return tuple(stage for stage in self.stages if stage.kind == "batch")

    @property
    def draws_in_dali(self) -> bool:
        """Whether DALI itself draws anything: the window of a crop, or noise."""
        return self.crop.op.random or any(step.op.random for step in self.steps)

    @property
    def checkpoints(self) -> bool:
        """Whether DALI can save the state of all operators."""
        return all(step.op.checkpoints for step in self.steps)

    @property
    def digest(self) -> str:
        """A hash of everything that decides about pixels, to the last digit."""
        stages = [(s.kind, s.border, [[_identity(step) for step in place] for place in s.places]) for s in self.stages]
        tree = [_identity(step) for step in self.tree]
        whole = (self.split, self.size, _identity(self.crop), stages, tree, self.mean, self.std, self.views)
        return blake2b(repr(whole).encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        views = f", {self.views.count} views, {self.views.crop} crop" if self.views.count > 1 else ""
        lines = [f"{self.split}: {self.size} x {self.size} px{views}"]
        lines.append(f"  crop      {str(self.crop).replace('  p 1', '')}")
        lines += [line for stage in self.image_stages for line in _lines(stage)]
        lines.append(f"  normalize mean {_list(self.mean)}, std {_list(self.std)}")
        lines += [line for stage in self.batch_stages for line in _lines(stage)]
        if self.skipped:
            lines.append(f"  left out (p 0): {', '.join(step.key for step in self.skipped)}")
        return "\n".join(lines)


def _identity(step: Step) -> tuple[object, ...]:
    params = sorted(step.params.items(), key=lambda item: item[0])
    return step.key, step.op.name, step.p, params, step.weight, [_identity(s) for s in step.steps]


def _lines(stage: Stage) -> list[str]:
    if stage.kind in ("local", "batch") and len(stage.steps) == 1:
        return [f"  {stage.kind:<9} {stage.steps[0]}"]
    return [f"  {stage.kind:<9} {_what(stage)}", *(f"    {step}" for step in stage.steps)]


def _what(stage: Stage) -> str:
    mode, fill = stage.border
    alternatives = max(len(place) for place in stage.places)
    count = f"{len(stage.steps)} step{'s' * (len(stage.steps) > 1)} in one"
    if stage.kind == "color":
        return f"{count} color matrix" + (" and the picture's mean" if stage.looks else "")
    if stage.kind == "geometry":
        return f"{count} warp, border {mode}" + (f" {fill}" if mode == "constant" else "")
    return f"{stage.steps[0].op.name}, one of {alternatives}"


def _list(values: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{v:g}" for v in values) + "]"


def build_plan(aug: Aug, split: SplitName) -> Plan:
    """Group the steps of a split into stages.

    Adjacent geometry steps with one border become one stage, and so do adjacent color steps, unless `aug.fuse` is
    false. A step with p = 0 is left out, and its neighbors are adjacent. What is chosen within a policy is a matter of
    the draws: its steps join the stages around them.
    """
    steps = aug.steps(split)
    crop = steps[0] if steps and steps[0].op.kind == "crop" else parse_steps({_resize.__name__: None}, "")[0]
    rest = [step for step in steps if step.op.kind != "crop"]
    tree = tuple(pruned for step in rest if (pruned := _prune(step)) is not None)
    return Plan(
        split=split,
        size=aug.size,
        crop=crop,
        stages=tuple(_stages(places_of(tree), fuse=aug.fuse)),
        mean=aug.mean or IMAGENET_MEAN,
        std=aug.std or IMAGENET_STD,
        tree=tree,
        skipped=tuple(step for step in rest if step.p == 0),
        views=aug.views if split == "train" else Views(),
    )


def _prune(step: Step) -> Step | None:
    """Leave out policies without effect; within a policy p = 0 is kept, for its chance to be chosen counts."""
    if step.p == 0:
        return None
    return step if any(True for _ in step.leaves()) else None


def slots_of(step: Step) -> list[dict[int, float]]:
    """Return for each slot of a policy the indices of the steps that may run in it, each with its share of samples."""
    if step.op.slots is None:
        return [{i: 1.0} for i in range(len(step.steps))]
    return list(step.op.slots(np.array([child.weight for child in step.steps]), **step.params))


def child_path(path: str, slot: int, slots: list[dict[int, float]], child: Step, index: int) -> str:
    """Return the key path of a step within a policy; one that may run in several slots has a path for each."""
    several = sum(index in slot for slot in slots) > 1
    return f"{path}.{slot + 1}.{child.key}" if several else f"{path}.{child.key}"


def places_of(steps: Iterable[Step]) -> list[Place]:
    """Return the order of application of steps, policies resolved into places."""
    return [place for step in steps for place in _places(step, step.key, 1.0)]


def _places(step: Step, path: str, chance: float) -> Iterator[Place]:
    """Yield the places of a step, its leaves keyed by their paths and with their chance of being applied for p."""
    chance *= step.p
    if step.op.kind != "policy":
        if step.p > 0:
            yield (replace(step, key=path, p=chance),)
        return
    slots = slots_of(step)
    for number, slot in enumerate(slots):
        columns = [
            list(_places(step.steps[i], child_path(path, number, slots, step.steps[i], i), chance * share))
            for i, share in slot.items()
        ]
        for depth in range(max(map(len, columns), default=0)):
            yield tuple(leaf for column in columns if depth < len(column) for leaf in column[depth])


def choose(step: Step, uniform: Array, drawn: Mapping[str, Array]) -> Array:
    """Return which of a policy's steps runs in each slot, (N, slots), -1 for none.

    Args:
        step: the policy.
        uniform: (N, steps) in [0, 1).
        drawn: its drawn values, (N,) each.
    """
    if step.op.slots is None:
        return np.broadcast_to(np.arange(len(step.steps)), (len(uniform), len(step.steps))).astype(np.float64)
    weights = np.array([child.weight for child in step.steps])
    return np.asarray(step.op.function(weights, uniform, **step.op.values(step.params, drawn)))


def _border(step: Step) -> Border | None:
    """Return the step's border, or None if it never shows one; fill tells borders apart only where it is seen."""
    if step.op.moves_inside:
        return None
    mode = step.params["border"]
    return mode, step.params["fill"] if mode == "constant" else 0


class _Group:
    """A stage in the making."""

    def __init__(self, kind: StageKind, place: Place) -> None:
        self.kind = kind
        self.places = [place]

    @property
    def borders(self) -> set[Border]:
        return {b for place in self.places for b in map(_border, place) if b} if self.kind == "geometry" else set()

    def takes(self, other: "_Group") -> bool:
        """Whether the steps of another group can be carried out in the same go, after its own."""
        if self.kind != other.kind or self.kind in ("local", "batch"):
            return False
        return len(self.borders | other.borders) <= 1

    def stage(self) -> Stage:
        border = next(iter(self.borders), _NO_BORDER)
        return Stage(self.kind, tuple(self.places), border)


def _stages(places: list[Place], *, fuse: bool) -> Iterator[Stage]:
    done: list[_Group] = []
    parts = [_parts(place, fuse=fuse) for place in places]
    for i, groups in enumerate(parts):
        following = parts[i + 1] if i + 1 < len(parts) else []
        for group in _arrange(groups, done[-1] if done else None, following):
            if fuse and done and done[-1].takes(group):
                done[-1].places += group.places
            else:
                done.append(group)
    return (group.stage() for group in done)


def _parts(place: Place, *, fuse: bool) -> list[_Group]:
    """Split the alternatives of a place into what one operator can do each; at p = 1 of one only, one part."""
    parts: dict[Any, list[Step]] = {}
    for number, step in enumerate(place):
        kind = step.op.kind
        key: Any = (number,)
        if fuse and kind == "geometry":
            key = (kind,)
        elif fuse and kind == "color":
            key = (kind,)
        elif fuse:
            key = (step.op.name, tuple(sorted(step.op.fixed(step.params).items())))
        if kind == "geometry" and fuse and (border := _border(step)):
            key = (kind, border)
        parts.setdefault(key, []).append(step)
    if ("geometry",) in parts and (bordered := [k for k in parts if k[0] == "geometry" and len(k) > 1]):
        parts[bordered[0]] += parts.pop(("geometry",))  # what shows no border joins any
    return [_Group(_kind_of(steps[0]), tuple(steps)) for steps in parts.values()]


def _kind_of(step: Step) -> StageKind:
    kind = step.op.kind
    assert kind in ("geometry", "color", "local", "batch")
    return kind  # type: ignore[return-value]


def _arrange(groups: list[_Group], before: _Group | None, following: list[_Group]) -> list[_Group]:
    """Order the parts of a place, which exclude each other, so that as many as possible join their neighbors."""
    first = next((g for g in groups if before is not None and before.takes(g)), None)
    rest = [g for g in groups if g is not first]
    last = next((g for g in rest if any(g.takes(other) for other in following)), None)
    middle = [g for g in rest if g is not last]
    return [g for g in (first, *middle, last) if g is not None]
