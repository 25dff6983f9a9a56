"""The stages of progressive resizing: their settings, and the epochs of each stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from augment.params import Count, Size, parse_settings, plain_value, setting, settings
from augment.recipe.steps import Aug
from augment.support.errors import UserError
from augment.support.formatting import amount
from trainer.loop.settings import MAX_EPOCHS


@dataclass(frozen=True, kw_only=True)
class StageSettings:
    """Settings of a stage: consecutive epochs with the same image size and batch size."""

    epochs: int | None = setting(
        Count(
            optional=True,
            within=(1, MAX_EPOCHS),
            doc="epochs of the stage. One stage may leave this out to get the remaining epochs",
        )
    )
    size: Size | None = setting(  # noqa: RUF009
        replace(
            settings(Aug)["size"],
            default=None,
            optional=True,
            doc="image size. Default: aug.size. If aug.size is not square, a single number sets the shorter side",
        )
    )
    batch_size: int | None = setting(
        Count(optional=True, within=(1, 10**6), doc="images in a batch. Default: fit.batch_size")
    )
    name: str = ""


def parse_stages(given: object) -> tuple[StageSettings, ...]:
    """Check an ordered mapping of stages, `{name: {setting: value}}`. None means no stages.

    Raises:
        UserError: a key is unknown, a value is not allowed, or several stages have no epochs.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise UserError(f"fit.stages: {given!r} is not a mapping. Write stages by name, such as small: {{epochs: 5}}.")
    stages = tuple(
        replace(parse_settings(StageSettings, values, f"fit.stages.{name}"), name=str(name))
        for name, values in given.items()
    )
    open_stages = [stage.name for stage in stages if stage.epochs is None]
    if len(open_stages) > 1:
        raise UserError(
            f"fit.stages.{open_stages[1]}.epochs is missing, as in fit.stages.{open_stages[0]}. Set one of them. Only "
            "one stage can get the remaining epochs."
        )
    return stages


def plain_stages(stages: Sequence[StageSettings]) -> dict[str, dict[str, Any]]:
    """Return stages with all settings as plain values, the inverse of `parse_stages`."""
    return {
        stage.name: {name: plain_value(getattr(stage, name)) for name in settings(StageSettings)} for stage in stages
    }


@dataclass(frozen=True, kw_only=True)
class FitStage:
    """A stage with all settings filled in. `start` is its first epoch."""

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
    """Fill in missing settings with the settings of the whole fit.

    Raises:
        UserError: the epochs of the stages do not add up to the epochs of the fit.
    """
    fixed = sum(stage.epochs or 0 for stage in stages)
    rest = epochs - fixed
    is_open = any(stage.epochs is None for stage in stages)
    if is_open and rest < 1:
        raise UserError(
            f"fit.stages: the stages have {amount(fixed, 'epoch')}, and fit.epochs is {epochs}. So no epoch remains "
            "for the stage whose epochs are not set. Shorten the other stages, or increase fit.epochs."
        )
    if not is_open and rest:
        raise UserError(
            f"fit.stages: the stages have {amount(fixed, 'epoch')}, but fit.epochs is {epochs}. Make both equal, or "
            "leave out the epochs of one stage, which then gets the remaining epochs."
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
    """Return the image size of a stage. A single number sets the shorter side, and aug.size sets the proportions."""
    if stage.size is None:
        return size
    return size.with_shorter(min(stage.size)) if stage.size.is_square else stage.size
