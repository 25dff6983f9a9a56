"""Group steps into stages. Neighbors that one operator can run are fused, including the steps of policies."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, zip_longest
from typing import Any, cast

import numpy as np

from augment.recipe.op_kinds import Array, GeometryOp, PolicyOp
from augment.recipe.stage import NO_BORDER, Alternatives, Border, Stage, StageKind, count_matrices
from augment.recipe.step import Step


def slots_of(step: Step) -> list[dict[int, float]]:
    """Return {index of a step: share of samples} for each slot of a policy. A slot runs at most one step per sample."""
    assert isinstance(step.op, PolicyOp)
    if step.op.slots is None:
        return [{i: 1.0} for i in range(len(step.steps))]
    return list(step.op.slots(np.array([child.weight for child in step.steps]), **step.params))


def child_path(path: str, slot: int, slots: list[dict[int, float]], child: Step, index: int) -> str:
    """Return the key path of a step within a policy. A step that may run in several slots has one path per slot."""
    several = sum(index in slot for slot in slots) > 1
    return f"{path}.{slot + 1}.{child.key}" if several else f"{path}.{child.key}"


def positions_of(steps: Iterable[Step]) -> list[Alternatives]:
    """Resolve policies, and return the alternatives at each position, in order of application."""
    return [alternatives for step in steps for alternatives in _positions(step, step.key, 1.0)]


def _positions(step: Step, path: str, chance: float) -> Iterator[Alternatives]:
    """Yield the alternatives at each position of a step.

    The key of an alternative is its path, and its p is its overall probability.
    """
    chance *= step.p
    if chance == 0:
        return
    if step.op.kind != "policy":
        yield (replace(step, key=path, p=chance),)
        return
    slots = slots_of(step)
    for number, slot in enumerate(slots):
        positions_by_step = []
        for index, share in slot.items():
            child = step.steps[index]
            child_key = child_path(path, number, slots, child, index)
            positions_by_step.append(_positions(child, child_key, chance * share))
        # The slot runs at most one of these steps, so their n-th positions become one position.
        for position in zip_longest(*positions_by_step, fillvalue=()):
            yield tuple(chain.from_iterable(position))


def choose(step: Step, uniform: Array, drawn: Mapping[str, Array]) -> Array:
    """Return the index of the step that runs in each slot of a policy, (N, slots), or -1 for none.

    Args:
        step: the policy.
        uniform: random numbers in [0, 1), (N, columns), see `op.combinator`.
        drawn: the policy's drawn values by name, (N,) each.
    """
    weights = np.array([child.weight for child in step.steps])
    return np.asarray(step.op.function(weights, uniform, **step.op.values(step.params, drawn)))


def _border(step: Step) -> Border | None:
    """Return the border of a step, or None if the step never shows a border. Only a constant border has a fill."""
    if isinstance(step.op, GeometryOp) and step.op.moves_inside:
        return None
    mode = step.params["border"]
    return mode, step.params["fill"] if mode == "constant" else 0


class _Group:
    """A stage under construction. Its kind is "geometry" even if it has remap steps."""

    def __init__(self, steps: Alternatives) -> None:
        self.kind = _kind_of(steps[0])
        self.positions = [steps]

    @property
    def borders(self) -> set[Border]:
        return {b for steps in self.positions for b in map(_border, steps) if b} if self.kind == "geometry" else set()

    def fuses_with(self, other: "_Group") -> bool:
        """Return whether one operator can run the steps of this group, then the steps of the other."""
        fusible = self.kind == other.kind and self.kind in ("geometry", "color")
        return fusible and len(self.borders | other.borders) <= 1

    def stage(self, *, chain: bool) -> Stage:
        border = next(iter(self.borders), NO_BORDER)
        several = self.kind == "color" and sum(max(map(count_matrices, steps)) for steps in self.positions) > 1
        remaps = any(step.op.kind == "remap" for steps in self.positions for step in steps)
        return Stage("remap" if remaps else self.kind, tuple(self.positions), border, chained=chain and several)


def stages_of(positions: list[Alternatives], *, fuse: bool, clip: str = "end") -> Iterator[Stage]:
    """Return the stages that run positions in order. `Aug` describes `fuse` and `clip`."""
    done: list[_Group] = []
    groups_by_position = [_groups_at(alternatives, fuse=fuse) for alternatives in positions]
    for groups, following in zip(groups_by_position, [*groups_by_position[1:], []], strict=False):
        for group in _arrange(groups, done[-1] if done else None, following):
            if fuse and done and done[-1].fuses_with(group):
                done[-1].positions += group.positions
            else:
                done.append(group)
    return (group.stage(chain=not fuse or clip == "each") for group in done)


def _groups_at(alternatives: Alternatives, *, fuse: bool) -> list[_Group]:
    """Group the alternatives at a position by the operator that can run them. Without fusion, do not group them."""
    if not fuse:
        return [_Group((step,)) for step in alternatives]
    by_operator: dict[Any, list[Step]] = {}
    for step in alternatives:
        by_operator.setdefault(_operator_key(step), []).append(step)
    bordered = [operator for operator in by_operator if operator[0] == "geometry" and operator[1] is not None]
    if bordered and ("geometry", None) in by_operator:
        by_operator[bordered[0]] += by_operator.pop(("geometry", None))  # steps without a border join any group
    return [_Group(tuple(steps)) for steps in by_operator.values()]


def _operator_key(step: Step) -> tuple[Any, ...]:
    """Return a key that is equal for steps that one operator can run.

    For local and batch ops, it contains the op's name and the fixed parameters.
    """
    if _kind_of(step) == "geometry":
        return "geometry", _border(step)
    if step.op.kind == "color":
        return ("color",)
    return step.op.name, tuple(sorted(step.op.fixed(step.params).items()))


def _kind_of(step: Step) -> StageKind:
    return cast(StageKind, "geometry" if step.op.kind == "remap" else step.op.kind)


def _arrange(groups: list[_Group], before: _Group | None, following: list[_Group]) -> list[_Group]:
    """Order the groups at a position so that as many as possible join their neighbors.

    The order is free, because at most one group applies to a sample.
    """
    first = next((g for g in groups if before is not None and before.fuses_with(g)), None)
    rest = [g for g in groups if g is not first]
    last = next((g for g in rest if any(map(g.fuses_with, following))), None)
    middle = [g for g in rest if g is not last]
    return [g for g in (first, *middle, last) if g is not None]
