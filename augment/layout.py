"""From steps to stages: policies are resolved into places, and neighbors that one operator can do are joined."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from augment.config import Step
from augment.registry import Array
from augment.stage import NO_BORDER, Border, Place, Stage, StageKind


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
    if chance == 0:
        return
    if step.op.kind != "policy":
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
        border = next(iter(self.borders), NO_BORDER)
        return Stage(self.kind, tuple(self.places), border)


def stages_of(places: list[Place], *, fuse: bool) -> Iterator[Stage]:
    """Return the stages that carry out places in their order; without fusion, one for each step."""
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
    """Split the alternatives of a place into what one operator can do each; without fusion, into single steps."""
    if not fuse:
        return [_Group(_kind_of(step), (step,)) for step in place]
    parts: dict[Any, list[Step]] = {}
    for step in place:
        parts.setdefault(_operator(step), []).append(step)
    bordered = [operator for operator in parts if operator[0] == "geometry" and operator[1] is not None]
    if bordered and ("geometry", None) in parts:
        parts[bordered[0]] += parts.pop(("geometry", None))  # what shows no border joins any
    return [_Group(_kind_of(steps[0]), tuple(steps)) for steps in parts.values()]


def _operator(step: Step) -> tuple[Any, ...]:
    """Return what tells the operators apart that carry out steps: a local op's fixed parameters are built into its."""
    if step.op.kind == "geometry":
        return "geometry", _border(step)
    if step.op.kind == "color":
        return ("color",)
    return step.op.name, tuple(sorted(step.op.fixed(step.params).items()))


def _kind_of(step: Step) -> StageKind:
    kind = step.op.kind
    assert kind in ("geometry", "color", "local", "batch")
    return kind


def _arrange(groups: list[_Group], before: _Group | None, following: list[_Group]) -> list[_Group]:
    """Order the parts of a place, which exclude each other, so that as many as possible join their neighbors."""
    first = next((g for g in groups if before is not None and before.takes(g)), None)
    rest = [g for g in groups if g is not first]
    last = next((g for g in rest if any(g.takes(other) for other in following)), None)
    middle = [g for g in rest if g is not last]
    return [g for g in (first, *middle, last) if g is not None]
