"""Adapt the steps of a recipe to images whose channels are not red, green and blue.

An adapted op takes and returns images with all channels, so the rest of the package does not distinguish formats.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from augment.params.pixel_format import RGB, PixelFormat
from augment.recipe.op import OPS
from augment.recipe.op_kinds import Array, ColorOp, LocalOp, Op
from augment.recipe.step import Step
from augment.support.errors import UserError
from augment.support.formatting import amount


def adapt_steps(steps: Sequence[Step], pixels: PixelFormat, key: str) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Adapt steps to a pixel format.

    Returns:
        The adapted steps, and the names of the ops that were removed from published policies, because the format does
        not support them.

    Raises:
        UserError: the recipe itself names an op that the format does not support.
    """
    left_out: list[str] = []
    adapted = [_adapt(step, pixels, f"{key}.{step.key}", left_out, published=False) for step in steps]
    return tuple(step for step in adapted if step), tuple(sorted(set(left_out)))


def _adapt(step: Step, pixels: PixelFormat, key: str, left_out: list[str], *, published: bool) -> Step | None:
    if step.op.kind == "policy":
        published = published or not step.op.nests
        children = (_adapt(child, pixels, f"{key}.{child.key}", left_out, published=published) for child in step.steps)
        return replace(step, steps=tuple(child for child in children if child))
    if step.op.channels == "rgb" and pixels.rgb is None:
        if published:
            left_out.append(step.op.name)
            return None
        advice = "Use"
        if pixels.channels >= 3:
            advice = "Set data.rgb to three of the channels, such as data.rgb=[2,1,0]. Or use"
        raise UserError(
            f"{key}: '{step.op.name}' needs red, green and blue, but images have {amount(pixels.channels, 'channel')}. "
            f"{advice} aug=bands, or ops that support any channels: {_alternatives(step.op)}."
        )
    op = _adapted(step, pixels)
    return step if op is step.op else AdaptedStep(step.key, op, step.p, step.params, (), step.weight, step, pixels)


@dataclass(frozen=True)
class AdaptedStep(Step):
    base: Step | None = None  # the step of the recipe
    pixels: PixelFormat = RGB

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.base, self.pixels, self.key, self.p)


def _unpickled(base: Step, pixels: PixelFormat, key: str, p: float) -> Step:
    step = _adapt(base, pixels, key, [], published=False)
    assert step is not None
    return replace(step, key=key, p=p)


def _alternatives(op: Op) -> str:
    return ", ".join(name for name, other in OPS.items() if other.kind == op.kind and other.channels != "rgb")


def _adapted(step: Step, pixels: PixelFormat) -> Op:
    op, by_channel = step.op, bool(step.params.get("per_channel"))
    if isinstance(op, ColorOp):
        if op.channels == "separate" or by_channel:
            return SeparateColorOp(**_fields(op), base=op, count=pixels.channels, is_rgb=pixels.is_rgb)
        if not pixels.is_rgb:
            embed = _embed_rgb if op.channels == "rgb" else _repeat_first_row
            return replace(op, function=partial(embed, op, pixels), width=pixels.channels)
    if isinstance(op, LocalOp):
        if by_channel:
            return SeparateLocalOp(**_fields(op), base=op, count=pixels.channels)
        if op.channels == "rgb" and not pixels.is_rgb:
            # Drop the neutral values, because `_on_rgb` rounds to bytes even if the op changes nothing.
            return replace(op, function=partial(_on_rgb, op, pixels), neutral=MappingProxyType({}))
    return op


def _embed_rgb(op: ColorOp, pixels: PixelFormat, **values: Any) -> Array:
    """Extend an op's matrices for red, green and blue to all channels. The other channels stay as they are."""
    matrix = np.asarray(op.function(**values))
    assert pixels.rgb is not None
    rgb, count = list(pixels.rgb), pixels.channels
    uses_mean = matrix.shape[-1] > 4
    result = np.zeros((*matrix.shape[:-2], count, count * (1 + uses_mean) + 1))
    result[..., range(count), range(count)] = 1
    columns = [*rgb, *(count + number for number in rgb)] if uses_mean else rgb
    for row, number in enumerate(rgb):
        result[..., number, [*columns, -1]] = matrix[..., row, :]
    return result


def _repeat_first_row(op: ColorOp, pixels: PixelFormat, **values: Any) -> Array:
    """Repeat the first row of an op's matrices for each channel. The mean of all channels replaces the mean color."""
    first = np.asarray(op.function(**values))[..., :1, :]
    rows = np.repeat(first, pixels.channels, axis=-2)
    return _channel_matrix(rows[..., 0], rows[..., -1], _spread_over_channels(rows[..., 3:-1], pixels.channels))


def _spread_over_channels(mean_factors: Array, count: int) -> Array:
    """Spread the factors of the mean red, green and blue, (..., 3), evenly over the means of all channels."""
    if not mean_factors.shape[-1]:
        return mean_factors
    return np.repeat(mean_factors.sum(axis=-1, keepdims=True) / count, count, axis=-1)


def _channel_matrix(factor: Array, offset: Array, mean_factors: Array | None = None) -> Array:
    """Return matrices on (channels, their means, 1) that change each channel by its own factor and offset.

    Args:
        factor: (..., C).
        offset: (..., C).
        mean_factors: factors of the mean color, (..., C, C). If None or (..., C, 0), the matrices have no columns for
            the means.
    """
    count = np.shape(factor)[-1]
    parts = [np.eye(count) * np.asarray(factor)[..., None], np.asarray(offset)[..., None]]
    if mean_factors is not None:
        parts.insert(1, mean_factors)
    return np.concatenate(parts, axis=-1)


@dataclass(frozen=True, repr=False)
class _Separate(Op):
    """An op whose values are drawn for each of `count` channels. `base` is the op of the recipe."""

    base: Any = None
    count: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "uniforms", tuple(self._channel_names(self.base.uniforms)))

    @cached_property
    def draws(self) -> dict[str, str]:
        return {name: self.base.draws[name.rpartition(" ")[0]] for name in self._channel_names(self.base.draws)}

    def _channel_names(self, values: Iterable[str]) -> list[str]:
        return [f"{value} {channel}" for value in values for channel in range(self.count)]

    def _gathered(self, values: dict[str, Any]) -> dict[str, Any]:
        """Gather the drawn values of all channels, (N,) each, as (N, channels). Fixed parameters stay as they are."""
        gathered = dict(values)
        for name in (*self.base.draws, *self.base.uniforms):
            gathered[name] = np.stack([gathered.pop(f"{name} {channel}") for channel in range(self.count)], axis=-1)
        return gathered


@dataclass(frozen=True, repr=False)
class SeparateColorOp(_Separate, ColorOp):
    is_rgb: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "function", self._matrix)
        object.__setattr__(self, "width", self.count)

    def _matrix(self, **values: Any) -> Array:
        gathered = self._gathered(values)
        if self.base.channels == "separate":
            factor, offset = self.base.function(**gathered)
            return _channel_matrix(factor, offset)
        rows = np.stack([self._first_row(gathered, channel) for channel in range(self.count)], axis=1)
        mean_factors = rows[..., 3:-1]
        if not self.is_rgb:
            mean_factors = _spread_over_channels(mean_factors, self.count)
        return _channel_matrix(rows[..., 0], rows[..., -1], mean_factors)

    def _first_row(self, gathered: dict[str, Any], channel: int) -> Array:
        """Return the first row of the matrices that the recipe's op returns for a channel's drawn values."""
        drawn = {*self.base.draws, *self.base.uniforms}
        values = {name: value[:, channel] if name in drawn else value for name, value in gathered.items()}
        return np.asarray(self.base.function(**values))[:, 0]


@dataclass(frozen=True, repr=False)
class SeparateLocalOp(_Separate, LocalOp):
    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "prepare", self._prepare)

    def _prepare(self, size: Any, **values: Any) -> dict[str, Array]:
        gathered = self._gathered(values)
        return {name: gathered[name] for name in (*self.base.draws, *self.base.uniforms)}


def _fields(op: Op) -> dict[str, Any]:
    return {field.name: getattr(op, field.name) for field in fields(op)}


def _on_rgb(op: LocalOp, pixels: PixelFormat, images: Any, dali: Any, **values: Any) -> Any:
    """Convert the channels that serve as red, green and blue to bytes, and apply an op to them."""
    assert pixels.rgb is not None

    def channel(node: Any, number: int) -> Any:
        return node[:, :, number : number + 1]

    three = dali.fn.cat(*(channel(images, number) for number in pixels.rgb), axis=2)
    changed = dali.fn.cast_like(op.function(dali.fn.cast(three, dtype=dali.types.UINT8), dali, **values), images)
    channels = [
        channel(changed, pixels.rgb.index(number)) if number in pixels.rgb else channel(images, number)
        for number in range(pixels.channels)
    ]
    return dali.fn.cat(*channels, axis=2)
