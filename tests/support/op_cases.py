"""Test cases for every op, derived from its declaration, so that a new op needs no test code of its own."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from augment.params import Choice, Count, Flag, Number, Param, Range
from augment.recipe.op import OPS
from augment.recipe.op_kinds import BORDERS, Op
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import parse_aug

# Steps for policies that nest steps: some that fuse with others, and one that does not.
NESTED: dict[str, Any] = {"turn": {"op": "rotate"}, "negative": {"op": "invert"}, "levels": {"op": "posterize"}}

CROPS = [op for op in OPS.values() if op.kind == "crop"]
APPLIED = [op for op in OPS.values() if op.kind != "crop"]  # applied with probability p
LEAVES = [op for op in APPLIED if op.kind != "policy"]  # not policies
MATRICES = [op for op in LEAVES if op.kind in ("geometry", "color")]

EVERY_APPLIED_OP = pytest.mark.parametrize("op", APPLIED, ids=lambda op: op.name)
EVERY_LEAF = pytest.mark.parametrize("op", LEAVES, ids=lambda op: op.name)


def given(op: Op, **params: Any) -> dict[str, Any]:
    """Return a step with an op, as in YAML."""
    return {"op": op.name, **({"steps": NESTED} if op.nests else {}), **params}


def variants(op: Op) -> Iterator[dict[str, Any]]:
    """Yield parameters of an op: all defaults, then each other option of each `Choice`."""
    yield {}
    for name, param in op.own_params.items():
        if isinstance(param, Choice) and not (
            op.kind == "policy" and param.options == BORDERS
        ):  # tested with its steps
            yield from ({name: option} for option in param.options if option != param.default)


def label(case: tuple[Op, dict[str, Any]]) -> str:
    """Return the name of a test case from an op and its parameters."""
    return "-".join([case[0].name, *(f"{name}={value}" for name, value in case[1].items())])


def cases(ops: Sequence[Op]) -> pytest.MarkDecorator:
    """Parametrize a test by each use of some ops, see `variants`."""
    uses = [(op, params) for op in ops for params in variants(op)]
    return pytest.mark.parametrize(("op", "params"), uses, ids=map(label, uses))


def plan_with(op: Op, *, size: int | Sequence[int] = 32, split: str = "train", **params: Any) -> Plan:
    """Return the plan of a single op under the key `tested`; a crop replaces the default one."""
    return build_plan(
        parse_aug({"size": size, split: {"tested": given(op, **params)}}),
        split,
    )  # type: ignore[arg-type]


def other_values(param: Param[Any], value: Any) -> list[Any]:
    """Return other allowed values of a parameter, as close to `value` as possible."""
    if isinstance(param, Choice):
        return [option for option in param.options if option != value]
    if isinstance(param, Flag):
        return [not value]
    if isinstance(param, Count):
        return [value + 1 if value + 1 <= param.within[1] else value - 1]
    if isinstance(param, Number):
        return [_nudged(value, param.within[1], 1e-7)]
    assert isinstance(param, Range), f"add other values of a {type(param).__name__} here"
    low, high = value
    step = 1 if param.whole else 1e-7
    if low < high:
        return [[low, high - step], [low + step, high]]
    return [[low, high + step], [low - step, high]]


def _nudged(value: float, most: float, step: float) -> float:
    return value + step if value + step <= most else value - step
