"""Parameter types, such as numbers, sizes, and ranges of random values."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from augment.params.param import Interval, Param, bounds, number_in
from augment.support.errors import suggest


@dataclass(frozen=True, kw_only=True)
class Number(Param[float]):
    """A real number within closed bounds. `above`, if given, is an exclusive lower bound."""

    within: Interval = (-inf, inf)
    above: float = -inf

    def _convert(self, value: object) -> float | None:
        number = number_in(value, self.within)
        return number if number is not None and number > self.above else None

    def _allowed(self) -> str:
        return f"a number{bounds(self.within, self.above)}"

    def _show(self, value: float) -> str:
        return f"{value:g}"


@dataclass(frozen=True, kw_only=True)
class Count(Param[int]):
    """An integer within closed bounds."""

    within: Interval = (0, inf)

    def _convert(self, value: object) -> int | None:
        if isinstance(value, bool) or not isinstance(value, Integral):  # Integral includes NumPy integers
            return None
        number = int(value)
        return number if self.within[0] <= number <= self.within[1] else None

    def _allowed(self) -> str:
        return f"a whole number{bounds(self.within)}"


@dataclass(frozen=True, kw_only=True)
class Flag(Param[bool]):
    """True or false."""

    _phrase = "true or false"

    def _convert(self, value: object) -> bool | None:
        return value if isinstance(value, bool) else None

    def _show(self, value: bool) -> str:
        return str(value).lower()


@dataclass(frozen=True, kw_only=True)
class Text(Param[str]):
    """A nonempty string."""

    _phrase = "text"

    def _convert(self, value: object) -> str | None:
        text = _as_text(value)  # a folder name may be a number, such as 2024
        return text if text and len(text) <= 4096 and "\0" not in text else None  # 4096 is the longest path

    def _rejection(self, value: object, key: str) -> str:
        return f"{super()._rejection(value, key)[:-1]} ({self.doc})."  # `doc` states which text is needed


@dataclass(frozen=True, kw_only=True)
class Choice(Param[str]):
    """One of a fixed set of names.

    Attributes:
        options: the names.
        others: maps common aliases to names, for suggestions in errors.
        hint: a sentence at the end of the error about an unknown name.
    """

    _lead = "Allowed:"

    options: Collection[str]
    others: Mapping[str, str] = field(default_factory=dict)
    hint: str = ""

    def _convert(self, value: object) -> str | None:
        text = _as_text(value)  # a name may be a number, such as 320
        return text if text in self.options else None

    def _rejection(self, value: object, key: str) -> str:
        if (name := _as_text(value)) is None:
            return super()._rejection(value, key)
        return f"unknown name '{name}'.{suggest(name, self.options, self.others)} {self.hint}".rstrip()

    def _allowed(self) -> str:
        return ", ".join(self.options)


def _as_text(value: object) -> str | None:
    """Return a string or integer as a string, and None for other types. YAML reads unquoted digits as integers."""
    if isinstance(value, str):
        return value  # including the str subclass of `augment.data.own.factory`
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, kw_only=True)
class Texts(Param[tuple[str, ...]]):
    """A list of strings."""

    _phrase = "a list of names"

    def _convert(self, value: object) -> tuple[str, ...] | None:
        if isinstance(value, str) or not isinstance(value, Sequence):
            return None
        return tuple(value) if all(isinstance(v, str) and v for v in value) else None

    def _rejection(self, value: object, key: str) -> str:
        example = ""
        if isinstance(value, str) and value:
            example = f", such as {key}=[{Path(value).stem if value.endswith('.py') else value}]"  # a plugin's file
        return f"{super()._rejection(value, key)[:-1]}{example}."

    def _show(self, value: tuple[str, ...]) -> str:
        return f"[{', '.join(value)}]"


@dataclass(frozen=True, kw_only=True)
class OptionMap(Param[Mapping[str, Any]]):
    """A mapping from names to any values. The code that receives the mapping checks the values."""

    _phrase = "a mapping of names to values"

    def _convert(self, value: object) -> Mapping[str, Any] | None:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            return None
        return dict(value)


@dataclass(frozen=True, kw_only=True)
class CacheSize(Param[int | str]):
    """An amount of memory in MiB, "gpu" for at most half of the free GPU memory, or "off"."""

    _phrase = "off, gpu, or a number of MiB"

    def _convert(self, value: object) -> int | str | None:
        if value is False:
            return "off"  # YAML reads an unquoted off as false
        if isinstance(value, int) and not isinstance(value, bool):
            return value if value > 0 else None
        return value if value in ("off", "gpu") and isinstance(value, str) else None


# The largest number of channels of an image.
MAX_CHANNELS = 64


@dataclass(frozen=True, kw_only=True)
class Channels(Param[Any]):
    """A list of numbers. Its default length is 3, for red, green and blue."""

    within: Interval
    above: float = -inf
    count: int | None = 3  # the length of the list. None: one number for each channel of the data
    auto: bool = False  # whether "auto" is allowed, for numbers that are computed from the training images

    def _convert(self, value: object) -> tuple[float, ...] | str | None:
        if self.auto and value == "auto":
            return "auto"
        if isinstance(value, str) or not isinstance(value, Sequence):
            return None
        allowed_lengths = range(1, MAX_CHANNELS + 1) if self.count is None else (self.count,)
        if len(value) not in allowed_lengths:
            return None
        numbers = [number for entry in value if (number := number_in(entry, self.within)) is not None]
        if len(numbers) < len(value) or min(numbers) <= self.above:
            return None
        return tuple(numbers)

    def _allowed(self) -> str:
        count = {None: "a number", 2: "two numbers", 3: "three numbers"}[self.count]
        each = " for each channel" if self.count is None else ""
        return f"{count}{bounds(self.within, self.above)}{each}{', or auto' if self.auto else ''}"


class Size(NamedTuple):
    """Height and width of images in pixels. `str` gives "360 x 480", or "128" for a square."""

    height: int
    width: int

    def __str__(self) -> str:
        return " x ".join(map(str, self[: 1 if self.is_square else 2]))

    @property
    def is_square(self) -> bool:
        return self.height == self.width

    @property
    def plain(self) -> int | list[int]:
        """The size as in YAML."""
        return self.height if self.is_square else list(self)

    @property
    def proportions(self) -> tuple[float, float]:
        """Height and width, divided by the shorter side."""
        return self.height / min(self), self.width / min(self)

    def with_shorter(self, side: int) -> "Size":
        """Return a size with the same proportions and the given shorter side, rounded to pixels."""
        return Size(*(round(side * proportion) for proportion in self.proportions))


@dataclass(frozen=True, kw_only=True)
class ImageSize(Param[Size]):
    """One integer for a square, or height and width, within closed bounds."""

    within: Interval = (1, inf)

    def _convert(self, value: object) -> Size | None:
        sides = value if isinstance(value, Sequence) and not isinstance(value, str) else [value, value]
        side = Count(within=self.within, doc="")
        numbers = [number for number in map(side._convert, sides) if number is not None]
        return Size(*numbers) if len(numbers) == len(sides) == 2 else None

    def _allowed(self) -> str:
        return f"a whole number{bounds(self.within)} for a square, or [height, width]"


@dataclass(frozen=True)
class Values:
    """A finite set of equally likely random values."""

    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Range(Param[Interval | Values]):
    """The distribution of a random value: uniform on [low, high], or one of a few values.

    Attributes:
        within: closed bounds of the interval's ends.
        above: exclusive lower bound.
        draws: names of the values that are drawn independently from the range. Default: one value, named like the
            parameter without its ending `_range`.
        whole: whether to draw only integers. Both ends are included.
        few: whether `{values: [...]}` is allowed. Set it to false if DALI draws the value.
        log: whether to draw the logarithm uniformly, so that x and 1 / x are equally likely.
        doubt: a limit and a note. Ranges below the limit probably have the wrong unit, which the note explains.
        severe: the strongest values in `trainer stress`, one for each direction. Default: derived from the range.
    """

    within: Interval = (-inf, inf)
    above: float = -inf
    draws: tuple[str, ...] = ()
    whole: bool = False
    few: bool = True
    log: bool = False
    doubt: tuple[float, str] | None = None
    severe: tuple[float, ...] = ()

    @property
    def neutral(self) -> float | None:
        """The value that changes nothing: the middle of the default range if it is 0 or 1, otherwise None."""
        low, high = self.default if isinstance(self.default, tuple) else (0, 1)
        return {0.0: 0.0, 2.0: 1.0}.get(float(low + high)) if not self.whole else None

    def draw(self, value: Interval | Values, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map uniform random numbers in [0, 1) to values of the distribution, in the same shape."""
        if isinstance(value, Values):
            return np.array(value.values)[(uniform * len(value.values)).astype(np.int64)]
        low, high = value
        if self.whole:
            # low is added last, because rounding could otherwise yield high + 1.
            return low + np.floor((high - low + 1) * uniform)
        return low * (high / low) ** uniform if self.log else low + (high - low) * uniform

    def doubts(self, value: Interval | Values) -> str:
        """Return a note if a value seems to have the wrong unit, otherwise an empty string."""
        size = max(map(abs, value.values if isinstance(value, Values) else value))
        return self.doubt[1] if self.doubt is not None and 0 < size <= self.doubt[0] else ""

    def _convert(self, value: object) -> Interval | Values | None:
        if isinstance(value, Values):
            value = {"values": value.values}
        if isinstance(value, Mapping):
            has_values = self.few and set(value) == {"values"}
            return self._parse_values(value["values"]) if has_values else None
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
            return _describe_values(value.values)
        return f"{value[0]:.4g}..{value[1]:.4g}"


def _describe_values(values: tuple[float, ...]) -> str:
    """Return values as text. -3 and 3 become +-3. Many values become the first, the last and their number."""
    distinct = sorted(set(values))
    is_symmetric = len(distinct) > 1 and distinct == sorted(-value for value in distinct)
    if is_symmetric:
        sizes = sorted({abs(value) for value in distinct})
        return f"+-{sizes[0]:.4g}" if len(sizes) == 1 else f"+-({_describe_values(tuple(sizes))})"
    if len(distinct) > 4:
        return f"{distinct[0]:.4g}..{distinct[-1]:.4g} in {len(distinct)} levels"
    return " or ".join(f"{value:.4g}" for value in distinct)
