"""The stages of progressive resizing: settings, and their share of the epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from augment.params import Count, Size, parse_settings, plain_value, setting, settings
from augment.recipe.steps import Aug
from augment.support.errors import UserError
from augment.support.formatting import amount


@dataclass(frozen=True, kw_only=True)
class StageSettings:
    """Some epochs of a fit, with images of one size in batches of one size."""

    epochs: int | None = setting(
        Count(optional=True, within=(1, 10**6), doc="its epochs; null, in at most one stage: all that are left")
    )
    size: Size | None = setting(  # noqa: RUF009
        replace(
            settings(Aug)["size"],
            default=None,
            optional=True,
            doc="size of the images; one number where aug.size is not square: their shorter side; null: aug.size",
        )
    )
    batch_size: int | None = setting(
        Count(optional=True, within=(1, 10**6), doc="images in a batch; null: fit.batch_size")
    )
    name: str = ""


def parse_stages(given: object) -> tuple[StageSettings, ...]:
    """Check an ordered mapping of stages, `{name: {setting: value}}`; null counts as none.

    Raises:
        UserError: an unknown key, a value that is not allowed, or several stages that take what is left.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise UserError(
            f"fit.stages: {given!r} is not allowed. Allowed: a mapping of stages, such as small: {{epochs: 5}}."
        )
    stages = tuple(
        replace(parse_settings(StageSettings, values, f"fit.stages.{name}"), name=str(name))
        for name, values in given.items()
    )
    takers = [stage.name for stage in stages if stage.epochs is None]
    if len(takers) > 1:
        allowed = "at most one stage without epochs, which takes the rest"
        raise UserError(f"fit.stages.{takers[1]}.epochs: null, as in fit.stages.{takers[0]}. Allowed: {allowed}.")
    return stages


def plain_stages(stages: Sequence[StageSettings]) -> dict[str, dict[str, Any]]:
    """Return stages as plain values, with all settings, that `parse_stages` turns back into the same stages."""
    return {
        stage.name: {name: plain_value(getattr(stage, name)) for name in settings(StageSettings)} for stage in stages
    }


@dataclass(frozen=True, kw_only=True)
class FitStage:
    """A stage with all settings filled in; `start` is its first epoch."""

    name: str
    start: int
    epochs: int
    size: Size
    batch_size: int

    def __str__(self) -> str:
        return f"{self.size} px, batch {self.batch_size}"


def complete_stages(
    stages: Sequence[StageSettings], *, epochs: int, size: Size, batch_size: int
) -> tuple[FitStage, ...]:
    """Fill in the settings that stages leave open with those of the whole fit."""
    fixed = sum(stage.epochs or 0 for stage in stages)
    rest = epochs - fixed
    is_open = any(stage.epochs is None for stage in stages)
    if rest < 1 if is_open else rest:
        allowed = "the same number, or fewer and one stage without epochs, which takes the rest"
        raise UserError(
            f"fit.stages: the stages have {amount(fixed, 'epoch')}, fit.epochs is {epochs}. Allowed: {allowed}."
        )
    lengths = [stage.epochs or rest for stage in stages]
    starts = accumulate(lengths, initial=0)
    return tuple(
        FitStage(
            name=stage.name,
            start=start,
            epochs=length,
            size=_size_of(stage, size),
            batch_size=stage.batch_size or batch_size,
        )
        for stage, start, length in zip(stages, starts, lengths, strict=False)
    )


def _size_of(stage: StageSettings, size: Size) -> Size:
    """Return the size of a stage's images; one number stands for the shorter side of images of the same proportions."""
    if stage.size is None:
        return size
    return size.with_shorter(min(stage.size)) if stage.size.is_square else stage.size
