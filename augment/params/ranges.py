"""Ranges: parameters from which a value is drawn for each sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from augment.params.param import Interval, Param, bounds, number_in


@dataclass(frozen=True)
class Values:
    """A finite set of equally likely values."""

    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Range(Param[Interval | Values]):
    """The distribution of a value that is drawn for each sample: uniform on [low, high], or one of a few values.

    Attributes:
        within: closed bounds of the interval's ends.
        above: exclusive lower bound.
        draws: names of the values drawn from the range, each independently; by default one value, named like the
            parameter without its ending `_range`.
        whole: draw integers only, both ends included.
        few: whether `{values: [...]}` is allowed; false if only an interval can be drawn from, as by DALI itself.
        log: draw the logarithm uniformly, so that x and 1 / x are equally likely.
        doubt: a size and a note; a range within that size was probably meant in another unit, which the note names.
    """

    within: Interval = (-inf, inf)
    above: float = -inf
    draws: tuple[str, ...] = ()
    whole: bool = False
    few: bool = True
    log: bool = False
    doubt: tuple[float, str] | None = None

    @property
    def neutral(self) -> float | None:
        """The middle of a default range around 0 or 1, where the op changes nothing; None: it has another range."""
        low, high = self.default if isinstance(self.default, tuple) else (0, 1)
        return {0.0: 0.0, 2.0: 1.0}.get(float(low + high)) if not self.whole else None

    def draw(self, value: Interval | Values, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map uniform numbers in [0, 1), of any shape, to draws of the same shape."""
        if isinstance(value, Values):
            return np.array(value.values)[(uniform * len(value.values)).astype(np.int64)]
        low, high = value
        if self.whole:
            return low + np.floor((high - low + 1) * uniform)  # low is added last, or rounding could yield high + 1
        return low * (high / low) ** uniform if self.log else low + (high - low) * uniform

    def doubts(self, value: Interval | Values) -> str:
        """Return a note if a value seems to be meant in another unit; otherwise an empty string."""
        size = max(map(abs, value.values if isinstance(value, Values) else value))
        return self.doubt[1] if self.doubt is not None and 0 < size <= self.doubt[0] else ""

    def _convert(self, value: object) -> Interval | Values | None:
        if isinstance(value, Values):
            value = {"values": value.values}
        if isinstance(value, Mapping):
            return self._parse_values(value.get("values")) if self.few and set(value) == {"values"} else None
        if isinstance(value, int | float) and self.neutral is not None and not isinstance(value, bool) and value >= 0:
            value = (self.neutral - value, self.neutral + value)
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
            return None
        low, high = (self._parse_number(v) for v in value)
        return None if low is None or high is None or low > high else (low, high)

    def _parse_values(self, values: object) -> Values | None:
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            return None
        numbers = [number for number in map(self._parse_number, values) if number is not None]
        return Values(tuple(numbers)) if len(numbers) == len(values) else None

    def _parse_number(self, value: object) -> float | None:
        number = number_in(value, self.within)
        if number is None or number <= self.above or (self.whole and number % 1):
            return None
        return number

    def _allowed(self) -> str:
        numbers = "whole numbers" if self.whole else "numbers"
        few = " or {values: [...]}" if self.few else ""
        one = {None: "", 0.0: " or x for [-x, x]", 1.0: " or x for [1 - x, 1 + x]"}[self.neutral]
        return f"[low, high] with low <= high{one}{few}, {numbers}{bounds(self.within, self.above)}"

    def _show(self, value: Interval | Values) -> str:
        if isinstance(value, Values):
            return _shown(value.values)
        return f"{value[0]:.4g}..{value[1]:.4g}"


def _shown(values: tuple[float, ...]) -> str:
    """Return a set of values as text: opposite values as +-3, a long list by its ends."""
    unique = sorted(set(values))
    size = sorted({abs(v) for v in unique})
    if len(unique) > 1 and unique == sorted({-v for v in unique}):
        return f"+-{size[0]:.4g}" if len(size) == 1 else f"+-({_shown(tuple(size))})"
    if len(unique) > 4:
        return f"{unique[0]:.4g}..{unique[-1]:.4g} in {len(unique)} levels"
    return " or ".join(f"{v:.4g}" for v in unique)
