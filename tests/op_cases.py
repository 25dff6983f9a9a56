"""Uses of every op, derived from its declaration, so that a new op is tested like the others without a line here."""

from collections.abc import Iterator
from typing import Any

from augment.config import parse_aug
from augment.params import Choice, Count, Flag, Number, Param, Range
from augment.plan import Plan, build_plan
from augment.registry import BORDERS, OPS, Op

# What a policy that nests steps is given: one step that is fused with others and one that is not.
NESTED: dict[str, Any] = {"turn": {"op": "rotate"}, "negative": {"op": "invert"}, "levels": {"op": "posterize"}}

CROPS = [op for op in OPS.values() if op.kind == "crop"]
APPLIED = [op for op in OPS.values() if op.kind != "crop"]  # to a share p of the samples
LEAVES = [op for op in APPLIED if op.kind != "policy"]  # what is carried out
MATRICES = [op for op in LEAVES if op.kind in ("geometry", "color")]


def given(op: Op, **params: Any) -> dict[str, Any]:
    """Return what YAML gives for a step of an op."""
    return {"op": op.name, **({"steps": NESTED} if op.nests else {}), **params}


def variants(op: Op) -> Iterator[dict[str, Any]]:
    """Yield the parameters of an op's uses: all defaults, and each other name that a parameter may be."""
    yield {}
    for name, param in op.own_params.items():
        if isinstance(param, Choice) and not (op.kind == "policy" and param.options == BORDERS):  # its steps' matter
            yield from ({name: option} for option in param.options if option != param.default)


def label(case: tuple[Op, dict[str, Any]]) -> str:
    """Return an op and its parameters as the name of a test's case."""
    return "-".join([case[0].name, *(f"{name}={value}" for name, value in case[1].items())])


def plan_with(op: Op, *, size: int = 32, split: str = "train", **params: Any) -> Plan:
    """Return the plan of an op alone, under the key `tested`; a crop in place of the default one."""
    return build_plan(parse_aug({"size": size, split: {"tested": given(op, **params)}}), split)  # type: ignore[arg-type]


def other_values(param: Param[Any], value: Any) -> list[Any]:
    """Return values that a parameter may have in place of one, as near as they get."""
    if isinstance(param, Choice):
        return [option for option in param.options if option != value]
    if isinstance(param, Flag):
        return [not value]
    if isinstance(param, Count):
        return [value + 1 if value + 1 <= param.within[1] else value - 1]
    if isinstance(param, Number):
        return [_nudged(value, param.within[1], 1e-7)]
    assert isinstance(param, Range), f"say here what else a {type(param).__name__} may be"
    low, high = value
    step = 1 if param.whole else 1e-7
    if low < high:
        return [[low, high - step], [low + step, high]]
    return [[low, high + step], [low - step, high]]


def _nudged(value: float, most: float, step: float) -> float:
    return value + step if value + step <= most else value - step
