"""Search spaces: what a search varies, in Hydra's syntax for sweeps."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, QuotedString, RangeSweep, Sweep
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
)  # fmt: skip
from optuna.trial import Trial

from augment.cli.overrides import key_of, parse
from augment.support.errors import UserError

# What varies between replicates of a configuration, and says nothing about it.
_REPLICATES = ("seed", "data.fold")

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Dimension:
    """A key that a search varies.

    Attributes:
        key: the key path, or a config group.
        distribution: its values.
        plus: the plus signs of its overrides.
    """

    key: str
    distribution: BaseDistribution
    plus: str

    def override(self, value: Value) -> str:
        """Return the override that sets a value."""
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, float):  # a choice as it was written, but for the rounding errors of a range
            text = f"{value:.{6 if isinstance(self.distribution, FloatDistribution) else 12}g}"
        else:
            text = "null" if value is None else str(value)
        return f"{self.plus}{self.key}={text}"

    @property
    def ends(self) -> Sequence[Any]:
        """All choices, or both ends of an interval."""
        values = self.distribution
        if isinstance(values, CategoricalDistribution):
            return values.choices
        assert isinstance(values, FloatDistribution | IntDistribution)
        return values.low, values.high

    def allows(self, value: object) -> bool:
        """Return whether a value is one of them."""
        if isinstance(self.distribution, CategoricalDistribution):
            return value in self.ends
        kinds = int if isinstance(self.distribution, IntDistribution) else int | float
        return isinstance(value, kinds) and self.ends[0] <= value <= self.ends[1]

    def __str__(self) -> str:
        return f"{self.key}={_written(self.distribution)}"

    def suggest(self, trial: Trial) -> Value:
        """Return the value that a trial draws."""
        values = self.distribution
        if isinstance(values, FloatDistribution):
            return trial.suggest_float(self.key, values.low, values.high, log=values.log)
        if isinstance(values, IntDistribution):
            return trial.suggest_int(self.key, values.low, values.high, log=values.log)
        assert isinstance(values, CategoricalDistribution)
        return trial.suggest_categorical(self.key, values.choices)

    def check_same(self, known: BaseDistribution, folder: Path) -> None:
        """Check that a search can have these values and those of an earlier trial: only intervals may change.

        Raises:
            UserError: it cannot.
        """
        try:
            check_distribution_compatibility(known, self.distribution)
        except ValueError as error:
            raise UserError(
                f"{self}: the search in {folder} began with {_written(known)}. "
                "Allowed: the same choices, or an interval of the same kind; or another hydra.sweep.dir."
            ) from error

    def active(self, chosen: Mapping[str, Value]) -> bool:
        """Return whether the key has an effect, given values of the dimensions before it.

        It has none if what it belongs to was left out: a mapping that is null, or a step with p=0.
        """
        parts = self.key.split(".")
        for count in range(1, len(parts)):
            above = ".".join(parts[:count])
            if above in chosen and chosen[above] in (None, "null"):
                return False
            if f"{above}.p" in chosen and parts[count] != "p" and chosen[f"{above}.p"] == 0:
                return False
        return True


def parse_space(tokens: Sequence[str]) -> list[Dimension]:
    """Return the dimensions of normalized overrides with several values, those that decide about others first.

    Raises:
        UserError: values that cannot be searched.
    """
    dimensions = []
    for token in tokens:
        override = parse(token)
        key = key_of(override)
        if key in _REPLICATES:
            raise UserError(
                f"{key}: not for a search, as it is chance that it would choose. Allowed: {key}=0; the search runs its "
                "best configurations with several seeds itself."
            )
        plus = token[: len(token) - len(token.lstrip("+"))]
        dimensions.append(Dimension(key, _distribution(override, token), plus))
    # A step's p decides whether its other parameters count, and a shorter key about the longer ones below it.
    return sorted(dimensions, key=lambda one: (one.key.count("."), not one.key.endswith(".p")))


def suggest_from(trial: Trial, space: Sequence[Dimension]) -> dict[str, Value]:
    """Return the values that a trial draws, without those that have no effect."""
    chosen: dict[str, Value] = {}
    for one in space:
        if one.active(chosen):
            chosen[one.key] = one.suggest(trial)
    return chosen


def overrides_of(chosen: Mapping[str, Value], space: Sequence[Dimension]) -> list[str]:
    """Return the overrides that set some values."""
    return [one.override(chosen[one.key]) for one in space if one.key in chosen]


def grid(space: Sequence[Dimension]) -> list[dict[str, Value]]:
    """Return all combinations, each once: values without effect are left out.

    Raises:
        UserError: a dimension has infinitely many values.
    """
    found: dict[tuple[tuple[str, Value], ...], None] = {}
    for values in itertools.product(*map(_values, space)):
        chosen: dict[str, Value] = {}
        for one, value in zip(space, values, strict=True):
            if one.active(chosen):
                chosen[one.key] = value
        found[tuple(chosen.items())] = None
    return [*map(dict, found)]


def _values(one: Dimension) -> Sequence[Value]:
    if isinstance(one.distribution, CategoricalDistribution):
        return one.distribution.choices
    if isinstance(one.distribution, IntDistribution):
        return range(one.distribution.low, one.distribution.high + 1, one.distribution.step)
    raise UserError(
        f"{one.key}: an interval has no grid. Allowed for hydra.sweeper.sampler=grid: choices and ranges, "
        f"such as {one.key}=0.1,0.2."
    )


def _distribution(override: Override, token: str) -> BaseDistribution:
    value, choices = override.value(), list[Any]()
    if isinstance(value, IntervalSweep):
        log, low, high = "log" in value.tags, value.start, value.end
        if low is None or high is None or low >= high or (log and low <= 0):
            raise UserError(
                f"{token.lstrip('+')}: not an interval. Allowed: interval(low, high) with low < high, 0 < low for log."
            )
        if isinstance(low, int) and isinstance(high, int) and "int(" in token:
            return IntDistribution(low, high, log=log)
        return FloatDistribution(float(low), float(high), log=log)
    if isinstance(value, RangeSweep):
        choices = [*value.range()]
    elif isinstance(value, ChoiceSweep) and not any(isinstance(one, Sweep) for one in value.list):
        # As Optuna can store them: values that are no scalars as the text of an override.
        texts = zip(value.list, override.sweep_string_iterator(), strict=True)
        choices = [text if isinstance(one, QuotedString | list | dict) else one for one, text in texts]
    if not choices:
        raise UserError(
            f"{token.lstrip('+')}: cannot be searched. Allowed: interval(low, high), tag(log, interval(...)), "
            "int(interval(...)), range(...), choice(...) or values with commas."
        )
    return CategoricalDistribution(choices)


def _written(values: BaseDistribution) -> str:
    """Return values as the command line writes them."""
    if isinstance(values, CategoricalDistribution):
        return ",".join("null" if value is None else str(value) for value in values.choices)
    assert isinstance(values, FloatDistribution | IntDistribution)
    interval = f"interval({values.low:g},{values.high:g})"
    interval = f"int({interval})" if isinstance(values, IntDistribution) else interval
    return f"tag(log,{interval})" if values.log else interval
