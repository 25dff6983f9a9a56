"""The corruptions of a stress test, derived from the op registry."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from augment.params import Range
from augment.recipe.op import OPS
from augment.recipe.op_kinds import Op
from augment.recipe.plan import Plan, build_plan
from augment.recipe.step import parse_steps, plain_steps
from augment.recipe.steps import Aug
from augment.support.errors import UserError, suggest

STRENGTHS = 5

# Ops that imitate effects of cameras, viewpoints and file formats. `--ops` selects other ops.
USUAL = (
    "flip", "rotate", "translate", "scale", "shear", "perspective", "brightness", "contrast", "saturation", "hue",
    "grayscale", "gaussian_blur", "motion_blur", "gaussian_noise", "shot_noise", "jpeg", "downscale", "posterize",
    "erase",
)  # fmt: skip

_STEP = "stress"  # all corruptions have this key, so that they draw the same random numbers


@dataclass(frozen=True)
class Corruption:
    """An op at rising strengths.

    Attributes:
        name: the op and, if it has two directions, "lower" or "higher".
        op: name of the op.
        setting: the setting that rises, or empty for an op without strengths.
        values: the setting's value at each strength, from mild to severe. (0.0,) for an op without strengths.
        signed: whether each image gets either the value or its negative, at random.
    """

    name: str
    op: str
    setting: str = ""
    values: tuple[float, ...] = (0.0,)
    signed: bool = False

    def describe(self, strength: int) -> str:
        """Describe the corruption at a strength, such as "rotate, angle 9 deg"."""
        if not self.setting:
            return self.name
        param = OPS[self.op].params[self.setting]
        return f"{self.name}, {self.setting.removesuffix('_range')} {self.values[strength]:.3g} {param.unit}".rstrip()

    def ends(self, strength: int) -> tuple[float, float]:
        """Return both ends of a range that contains all strengths up to this one, and at least the milder half."""
        end = self.values[max(strength, STRENGTHS // 2)]
        return (-end, end) if self.signed else (self.values[0], end)

    def plan(self, aug: Aug, strength: int, *, moving_targets: bool) -> Plan:
        """Return the validation plan with the corruption as its last step.

        Args:
            aug: the recipe of the run.
            strength: position in `values`, from 0.
            moving_targets: whether the targets are masks, boxes or keypoints. Areas beyond the image are then black,
                because mirrored objects would have no targets.
        """
        op = OPS[self.op]
        step: dict[str, Any] = {"op": self.op}
        for name, param in op.params.items():
            if isinstance(param, Range) and param.neutral is not None:
                step[name] = [param.neutral] * 2
        if self.setting:
            value = self.values[strength]
            step[self.setting] = {"values": [-value, value]} if self.signed else [value, value]
        if moving_targets and "border" in op.params:
            step["border"] = "constant"
        steps = {**plain_steps(aug.val), _STEP: step}
        return build_plan(replace(aug, val=parse_steps(steps, "aug.val")), "val")


def corruptions(names: Sequence[str] = ()) -> list[Corruption]:
    """Return the corruptions of the named ops. Default: the usual ops and all ops of plugins.

    Raises:
        UserError: an op is unknown, or it crops, mixes samples or chooses other ops.
    """
    allowed = [name for name, op in OPS.items() if op.kind not in ("crop", "batch", "policy")]
    plugins = [name for name in allowed if not OPS[name].function.__module__.startswith("augment.")]
    if wrong := next((name for name in names if name not in allowed), None):
        raise UserError(f"--ops {wrong}: not a corruption.{suggest(wrong, allowed)}")
    return [corruption for name in names or (*USUAL, *plugins) for corruption in _of_op(OPS[name])]


def _of_op(op: Op) -> Iterator[Corruption]:
    ranges = {name: param for name, param in op.params.items() if isinstance(param, Range)}
    title = op.name.replace("_", " ")
    if not ranges:
        yield Corruption(title, op.name)
        return
    with_severe = [name for name, param in ranges.items() if param.severe]
    setting = [*with_severe, *ranges][0]
    param = ranges[setting]
    severest = param.severe or (_default_severest(param),)
    for severe in severest:
        start = _mildest(param, severe)
        name = title
        if len(severest) > 1:
            name += " lower" if severe < start else " higher"
        values = tuple(start + (severe - start) * (strength + 1) / STRENGTHS for strength in range(STRENGTHS))
        if param.whole:
            values = tuple(float(round(value)) for value in values)
        yield Corruption(name, op.name, setting, values, signed=param.neutral == 0 and param.few)


def _mildest(param: Range, severest: float) -> float:
    """Return the value that changes nothing, or else the end of the default range that is farther from `severest`."""
    if param.neutral is not None:
        return param.neutral
    assert isinstance(param.default, tuple)
    return max(param.default, key=lambda end: abs(severest - end))


def _default_severest(param: Range) -> float:
    """Return the severest value of an op that does not declare it: four times its largest default change."""
    assert isinstance(param.default, tuple)
    low, high = param.default
    start = low if param.neutral is None else param.neutral
    return min(start + 4 * (high - start), param.within[1])
