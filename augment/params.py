"""Typed parameters: one declaration gives default, allowed values, unit, help text and error message.

Ops declare theirs in the decorator of the op, configuration sections as dataclass fields made by `setting`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from math import inf, isfinite
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from augment.errors import UserError, suggest

T = TypeVar("T")
S = TypeVar("S")

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Param(Generic[T]):
    """A parameter of type T with its default.

    Attributes:
        default: the value when the configuration is silent; None may mean "decided elsewhere", as the doc says.
        doc: what it does, a phrase.
        unit: unit of the value, for people.
        optional: whether null is allowed.
        required: whether the configuration must give it.
    """

    default: T | None = None
    doc: str
    unit: str = ""
    optional: bool = False
    required: bool = False

    def __post_init__(self) -> None:
        if self.default is not None:
            default = self._convert(self.default)
            if default is None:
                raise ValueError(f"the default {self.default!r} is not allowed. Allowed: {self.allowed()}")
            # As the configuration would have it: a default that is spelled out changes nothing.
            object.__setattr__(self, "default", default)

    def parse(self, value: object, key: str) -> T | None:
        """Return `value` as T.

        Args:
            value: what the configuration holds at `key`.
            key: full key path, for the message.

        Raises:
            UserError: `value` is of the wrong type or out of range.
        """
        if value is None and self.optional:
            return None
        parsed = self._convert(value)
        if parsed is None:
            raise UserError(f"{key}: {value!r} is not allowed. Allowed: {self.allowed()}.")
        return parsed

    def allowed(self) -> str:
        """Say which values are allowed, as a phrase."""
        return self._allowed() + (" or null" if self.optional else "")

    def show(self, value: T | None) -> str:
        """Write a value for people, with its unit."""
        return "null" if value is None else f"{self._show(value)} {self.unit}".strip()

    def _show(self, value: T) -> str:
        return str(value)

    def _convert(self, value: object) -> T | None:
        raise NotImplementedError

    def _allowed(self) -> str:
        raise NotImplementedError


def _number(value: object, within: Interval) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond all floats
        return None
    return number if isfinite(number) and within[0] <= number <= within[1] else None


def _bounds(within: Interval, above: float = -inf) -> str:
    low, high = within
    if above > -inf:
        return f" above {_plain(above)}" + (f" up to {_plain(high)}" if high < inf else "")
    if within == (-inf, inf):
        return ""
    if high == inf:
        return f" of at least {_plain(low)}"
    return f" from {_plain(low)} to {_plain(high)}"


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


@dataclass(frozen=True, kw_only=True)
class Number(Param[float]):
    """A real number within closed bounds; `above` excludes everything up to and including it."""

    within: Interval = (-inf, inf)
    above: float = -inf

    def _convert(self, value: object) -> float | None:
        number = _number(value, self.within)
        return number if number is not None and number > self.above else None

    def _allowed(self) -> str:
        return f"a number{_bounds(self.within, self.above)}"

    def _show(self, value: float) -> str:
        return f"{value:g}"


@dataclass(frozen=True, kw_only=True)
class Count(Param[int]):
    """A whole number within closed bounds."""

    within: Interval = (0, inf)

    def _convert(self, value: object) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value if self.within[0] <= value <= self.within[1] else None

    def _allowed(self) -> str:
        return f"a whole number{_bounds(self.within)}"


@dataclass(frozen=True, kw_only=True)
class Flag(Param[bool]):
    """True or false."""

    def _convert(self, value: object) -> bool | None:
        return value if isinstance(value, bool) else None

    def _allowed(self) -> str:
        return "true or false"

    def _show(self, value: bool) -> str:
        return str(value).lower()


@dataclass(frozen=True, kw_only=True)
class Text(Param[str]):
    """A string that is not empty."""

    def _convert(self, value: object) -> str | None:
        # Unquoted YAML turns a folder named 2024 into a number; that is still its name.
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return value if isinstance(value, str) and value else None

    def _allowed(self) -> str:
        return "text"


@dataclass(frozen=True, kw_only=True)
class Choice(Param[str]):
    """One of a few names."""

    options: tuple[str, ...]

    def parse(self, value: object, key: str) -> str | None:
        """Return `value` if it is one of the options; the error names the nearest one."""
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)  # unquoted YAML turns the name 320 into a number
        if isinstance(value, str) and value not in self.options:
            raise UserError(f"{key}: unknown name '{value}'.{suggest(value, self.options)}")
        return super().parse(value, key)

    def _convert(self, value: object) -> str | None:
        return value if isinstance(value, str) and value in self.options else None

    def _allowed(self) -> str:
        return ", ".join(self.options)


@dataclass(frozen=True, kw_only=True)
class Texts(Param[tuple[str, ...]]):
    """A list of strings."""

    def _convert(self, value: object) -> tuple[str, ...] | None:
        if isinstance(value, str) or not isinstance(value, Sequence):
            return None
        return tuple(value) if all(isinstance(v, str) and v for v in value) else None

    def _allowed(self) -> str:
        return "a list of names"


@dataclass(frozen=True, kw_only=True)
class Options(Param[Mapping[str, Any]]):
    """A mapping from names to whatever whoever gets it can take."""

    def _convert(self, value: object) -> Mapping[str, Any] | None:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            return None
        return dict(value)

    def _allowed(self) -> str:
        return "a mapping of names to values"


@dataclass(frozen=True, kw_only=True)
class CacheSize(Param[int | str]):
    """Memory in MiB, "gpu" for as much as is reasonable, or "off"."""

    def _convert(self, value: object) -> int | str | None:
        if value is False:
            return "off"  # which is what YAML takes an unquoted off for
        if isinstance(value, int) and not isinstance(value, bool):
            return value if value > 0 else None
        return value if value in ("off", "gpu") and isinstance(value, str) else None

    def _allowed(self) -> str:
        return "off, gpu, or a number of MiB"


@dataclass(frozen=True, kw_only=True)
class Channels(Param[tuple[float, float, float]]):
    """Three numbers, for red, green and blue."""

    within: Interval
    above: float = -inf

    def _convert(self, value: object) -> tuple[float, float, float] | None:
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 3:
            return None
        numbers = [_number(v, self.within) for v in value]
        red, green, blue = numbers
        if red is None or green is None or blue is None or min(red, green, blue) <= self.above:
            return None
        return red, green, blue

    def _allowed(self) -> str:
        return f"three numbers{_bounds(self.within, self.above)}"


@dataclass(frozen=True)
class Values:
    """A few values, each as likely as the next."""

    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Range(Param[Interval | Values]):
    """What a value is drawn from for each sample: uniformly from an interval [low, high], or one of a few values.

    Attributes:
        within: bounds of the interval.
        above: excluded lower bound.
        draws: names of the values drawn from it, each independently; by default the parameter's name
            without its ending `_range`.
        whole: whole numbers only, low and high included.
    """

    within: Interval = (-inf, inf)
    above: float = -inf
    draws: tuple[str, ...] = ()
    whole: bool = False

    def draw(self, value: Interval | Values, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn numbers of [0, 1), of any shape, into draws."""
        if isinstance(value, Values):
            return np.array(value.values)[(uniform * len(value.values)).astype(np.int64)]
        low, high = value
        if self.whole:
            return low + np.floor((high - low + 1) * uniform)  # added last: rounding reaches no high + 1
        return low + (high - low) * uniform

    def _convert(self, value: object) -> Interval | Values | None:
        if isinstance(value, Values):
            value = {"values": value.values}
        if isinstance(value, Mapping):
            return self._few(value.get("values")) if set(value) == {"values"} else None
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
            return None
        low, high = (self._one(v) for v in value)
        return None if low is None or high is None or low > high else (low, high)

    def _few(self, values: object) -> Values | None:
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            return None
        numbers = [number for number in map(self._one, values) if number is not None]
        return Values(tuple(numbers)) if len(numbers) == len(values) else None

    def _one(self, value: object) -> float | None:
        number = _number(value, self.within)
        if number is None or number <= self.above or (self.whole and number % 1):
            return None
        return number

    def _allowed(self) -> str:
        numbers = "whole numbers" if self.whole else "numbers"
        return f"[low, high] with low <= high or {{values: [...]}}, {numbers}{_bounds(self.within, self.above)}"

    def _show(self, value: Interval | Values) -> str:
        if isinstance(value, Values):
            return _shown(value.values)
        return f"{value[0]:.4g}..{value[1]:.4g}"


def _shown(values: tuple[float, ...]) -> str:
    """Write a few values for people: a pair that differs by its sign as +-3, a long list by its ends."""
    unique = sorted(set(values))
    size = sorted({abs(v) for v in unique})
    if len(unique) > 1 and unique == sorted({-v for v in unique}):
        return f"+-{size[0]:.4g}" if len(size) == 1 else f"+-({_shown(tuple(size))})"
    if len(unique) > 4:
        return f"{unique[0]:.4g}..{unique[-1]:.4g} in {len(unique)} levels"
    return " or ".join(f"{v:.4g}" for v in unique)


def setting(param: Param[T]) -> T:
    """Declare a dataclass field by its parameter, which brings the default and the checks."""
    default = MISSING if param.required else param.default
    made: T = field(default=default, metadata={"param": param})  # type: ignore[assignment]
    return made


def settings(cls: type) -> dict[str, Param[Any]]:
    """Return the parameters of a dataclass whose fields were made by `setting`, in order."""
    return {f.name: f.metadata["param"] for f in fields(cls) if "param" in f.metadata}


def parse_params(params: Mapping[str, Param[Any]], given: object, key: str) -> dict[str, Any]:
    """Check a mapping from the configuration against parameters and complete it with their defaults.

    Args:
        params: the allowed keys.
        given: the mapping found at `key`; null counts as empty.
        key: full key path of the mapping; empty at the top.

    Raises:
        UserError: not a mapping, an unknown key, a missing one, or a value that its parameter refuses.
    """
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise UserError(f"{key}: {given!r} is not allowed. Allowed: a mapping of {', '.join(params) or 'nothing'}.")
    path = f"{key}." if key else ""
    for name in given:
        if name not in params:
            raise UserError(f"{path}{name}: unknown key.{suggest(str(name), params)}")
    for name, param in params.items():
        if param.required and given.get(name) is None:
            raise UserError(f"{path}{name}: missing. Allowed: {param.allowed()} ({param.doc}).")
    return {n: p.parse(given[n], f"{path}{n}") if n in given else p.default for n, p in params.items()}


def parse_settings(cls: type[S], given: object, key: str) -> S:
    """Build a dataclass of settings from a mapping, with the checks of `parse_params`."""
    return cls(**parse_params(settings(cls), given, key))


def parse_named(kinds: Mapping[str, type[S]], given: object, key: str, selector: str) -> S:
    """Build one of several dataclasses of settings: `{selector: name, ...settings}` says which.

    Args:
        kinds: the dataclasses by name.
        given: the mapping found at `key`.
        key: full key path of the mapping.
        selector: its key that holds the name, which is also what one of them is called.

    Raises:
        UserError: an unknown name or setting, a missing one, or a value that is not allowed.
    """
    if not isinstance(given, Mapping) or not isinstance(given.get(selector), str):
        raise UserError(f"{key}.{selector}: missing. Allowed: {', '.join(kinds)}.")
    name = given[selector]
    if name not in kinds:
        raise UserError(f"{key}.{selector}: unknown {selector} '{name}'.{suggest(name, kinds)}")
    return parse_settings(kinds[name], {n: v for n, v in given.items() if n != selector}, key)
