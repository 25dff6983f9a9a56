"""Captions that state the ranges of a step, one level of each range, or the values drawn for a sample."""

from math import floor
from typing import Literal

from augment.params import Interval, Range, Values
from augment.recipe.fusion import slots_of
from augment.recipe.stage import Draws
from augment.recipe.step import Step, parse_steps, plain_steps

Level = Literal["low", "middle", "high"]
LEVELS: tuple[Level, ...] = ("low", "middle", "high")


def ranges_of(step: Step) -> dict[str, Range]:
    return {name: param for name, param in step.op.params.items() if isinstance(param, Range)}


def range_value(param: Range, value: Interval | Values, level: Level) -> float:
    """Return the lowest, middle or highest value of a range.

    The middle of a list of values is the upper median of its distinct values.
    """
    if isinstance(value, Values):
        distinct = sorted(set(value.values))
        return {"low": distinct[0], "middle": distinct[len(distinct) // 2], "high": distinct[-1]}[level]
    low, high = value
    middle = (low * high) ** 0.5 if param.log else (low + high) / 2
    if param.whole:
        middle = floor(middle + 0.5)
    return {"low": low, "middle": middle, "high": high}[level]


def is_fixed(value: Interval | Values) -> bool:
    return len(set(value.values if isinstance(value, Values) else value)) == 1


def is_random(step: Step) -> bool:
    """Return whether a step's effect on an image varies between two calls."""
    if step.p == 0:
        return False
    has_one_value = not step.op.uniforms and all(is_fixed(step.params[name]) for name in step.op.draws.values())
    if step.op.random or step.p < 1 or not (step.drawn_once or has_one_value):
        return True
    all_in_order = [{number: 1.0} for number in range(len(step.steps))]
    chooses = bool(step.steps) and slots_of(step) != all_in_order
    return chooses or any(map(is_random, step.steps))


def pin(step: Step, level: Level | None = None) -> Step:
    """Return a step that applies to every image. If a level is given, all ranges are narrowed to it."""
    plain = plain_steps((step,))[step.key]
    if "p" in plain:
        plain["p"] = 1.0
    if level is not None:
        for name, param in ranges_of(step).items():
            plain[name] = [range_value(param, step.params[name], level)] * 2
    (pinned,) = parse_steps({step.key: plain}, "preview")
    return pinned


def pinned_values(step: Step, level: Level) -> list[str]:
    """Return the values of a step's ranges at one level: "-7 deg", or "x 7 deg" if there are several ranges.

    Ranges with a single value are left out, unless all ranges have a single value.
    """
    ranges = ranges_of(step)
    varying = {name: param for name, param in ranges.items() if not is_fixed(step.params[name])} or ranges
    captions = []
    for name, param in varying.items():
        number = f"{range_value(param, step.params[name], level):.4g} {param.unit}".strip()
        captions.append(number if len(ranges) == 1 else f"{name.removesuffix('_range')} {number}")
    return captions


def step_settings(step: Step) -> list[str]:
    """Return a step's parameters as phrases. If the step nests steps, add their names."""
    return step.settings + (["of " + ", ".join(child.key for child in step.steps)] if step.op.nests else [])


def drawn_step(step: Step, drawn: Draws, sample: int) -> str:
    """Return a step's name and the values that were drawn for a sample: "warp (u 0.03, v -0.08)"."""
    # Within a policy, the key is a long path, and the op's name is enough.
    name = step.op.name if "." in step.key else step.key
    draws = step.op.draws
    varying = {value: param for value, param in draws.items() if not is_fixed(step.params[param])} or draws
    captions = []
    for value, param in varying.items():
        number = f"{float(drawn[value][sample]):.3g} {step.op.params[param].unit}".strip()
        captions.append(number if len(draws) == 1 else f"{value} {number}")
    return f"{name} ({', '.join(captions)})" if len(captions) > 1 else " ".join([name, *captions])
