"""Words for pictures: the values of a step, pinned to a place of its ranges or as they were drawn for a sample."""

from collections.abc import Mapping
from math import floor
from typing import Any, Literal

from augment.config import Step, parse_steps, plain_steps
from augment.params import Interval, Param, Range, Values
from augment.plan import Plan
from augment.stage import Draws

Place = Literal["low", "middle", "high"]
PLACES: tuple[Place, ...] = ("low", "middle", "high")


def ranges_of(step: Step) -> dict[str, Range]:
    """Return the parameters that values are drawn from, those of a crop included."""
    return {name: param for name, param in step.op.params.items() if isinstance(param, Range)}


def value_at(param: Range, value: Interval | Values, place: Place) -> float:
    """Return the lowest, the middle or the highest value of a range; of a few values the one in the middle."""
    if isinstance(value, Values):
        few = sorted(set(value.values))
        return few[{"low": 0, "middle": len(few) // 2, "high": -1}[place]]
    low, high = value
    if place != "middle":
        return low if place == "low" else high
    return floor((low + high) / 2 + 0.5) if param.whole else (low + high) / 2


def is_fixed(value: Interval | Values) -> bool:
    """Whether a range holds one value only."""
    return len(set(value.values if isinstance(value, Values) else value)) == 1


def pin(step: Step, place: Place | None = None) -> Step:
    """Return a step that applies to every picture, its ranges narrowed to one place."""
    plain = plain_steps((step,))[step.key]
    if "p" in plain:
        plain["p"] = 1.0
    if place is not None:
        for name, param in ranges_of(step).items():
            plain[name] = [value_at(param, step.params[name], place)] * 2
    (pinned,) = parse_steps({step.key: plain}, "preview")
    return pinned


def pinned_values(step: Step, place: Place) -> list[str]:
    """Return the values of a step's ranges at one place, "angle -7 deg"; what is the same at all places is left out."""
    ranges = ranges_of(step)
    told = {n: p for n, p in ranges.items() if not is_fixed(step.params[n])} or ranges
    return [
        f"{_plain(name.removesuffix('_range'))} {_number(param, value_at(param, step.params[name], place))}"
        for name, param in told.items()
    ]


def settings_of(step: Step) -> list[str]:
    """Return a step's probability and parameters as phrases, what it leaves at null not among them."""
    shown = [
        f"{_plain(name.removesuffix('_range'))} {param.show(step.params[name])}"
        for name, param in step.op.own_params.items()
        if step.params[name] is not None
    ]
    if step.op.nests:
        shown.append("of " + ", ".join(_plain(child.key) for child in step.steps))
    return ([f"p {step.p:.4g}"] if "p" in step.op.params else []) + shown


def title_of(step: Step) -> str:
    """Return what a step is called: its key, and its op where that is another name."""
    return step.key if step.key == step.op.name else f"{step.key} ({step.op.name})"


def applied_steps(plan: Plan, draws: Mapping[str, Draws], sample: int) -> list[str]:
    """Return what was done to a sample, a phrase a step: "rotate -5.2 deg", "warp (u 0.03, v -0.08)".

    Args:
        plan: its steps, in their order; the crop is none of them.
        draws: as the plan's sampler drew them.
        sample: place in the draws.
    """
    return [drawn_step(step, draws[step.key], sample) for step in plan.steps if draws[step.key]["applied"][sample]]


def drawn_step(step: Step, drawn: Draws, sample: int) -> str:
    """Return a step's name and the values drawn for a sample, but for numbers in [0, 1) that only mean a place."""
    # Within a policy the key is a path, often of keys that the policy made up.
    name = _plain(step.op.name if "." in step.key else step.key)
    values = step.op.draws
    told = {v: n for v, n in values.items() if not is_fixed(step.params[n])} or values
    words = {v: _number(step.op.params[n], float(drawn[v][sample])) for v, n in told.items()}
    if len(values) <= 1:
        return " ".join([name, *words.values()])
    pairs = [f"{_plain(value)} {number}" for value, number in words.items()]
    return f"{name} {pairs[0]}" if len(pairs) == 1 else f"{name} ({', '.join(pairs)})"


def _number(param: Param[Any], value: float) -> str:
    # Adding zero turns -0 into 0.
    return f"{round(value, 6) + 0.0:.3g} {param.unit}".strip()


def _plain(name: str) -> str:
    return name.replace("_", " ")
