"""Parameters of fixed values: numbers, flags, texts, names, sizes, and lists and mappings of these."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from numbers import Integral
from typing import Any, NamedTuple

from augment.params.param import Interval, Param, bounds, number_in
from augment.support.errors import suggest


@dataclass(frozen=True, kw_only=True)
class Number(Param[float]):
    """A real number within closed bounds; `above`, if given, is an exclusive lower bound."""

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
        if isinstance(value, bool) or not isinstance(value, Integral):  # NumPy's integers, too
            return None
        number = int(value)
        return number if self.within[0] <= number <= self.within[1] else None

    def _allowed(self) -> str:
        return f"a whole number{bounds(self.within)}"


@dataclass(frozen=True, kw_only=True)
class Flag(Param[bool]):
    """True or false."""

    def _convert(self, value: object) -> bool | None:
        return value if isinstance(value, bool) else None

    def _allowed(self) -> str:
        return "true or false"

    def _show(self, value: bool) -> str:
        return str(value).lower()


_MAX_TEXT = 4096  # characters, as many as the path of a file can have


@dataclass(frozen=True, kw_only=True)
class Text(Param[str]):
    """A nonempty string."""

    def _convert(self, value: object) -> str | None:
        text = _as_text(value)  # such as a folder named 2024
        return text if text and len(text) <= _MAX_TEXT and "\0" not in text else None

    def _refusal(self, value: object, key: str) -> str:
        return f"{super()._refusal(value, key)[:-1]} ({self.doc})."  # "text" alone says little

    def _allowed(self) -> str:
        return "text"


@dataclass(frozen=True, kw_only=True)
class Choice(Param[str]):
    """One of a fixed set of names.

    Attributes:
        options: the names.
        others: common aliases of some names, which the error message resolves.
    """

    options: Collection[str]
    others: Mapping[str, str] = field(default_factory=dict)

    def _convert(self, value: object) -> str | None:
        text = _as_text(value)  # such as the name 320
        return text if text in self.options else None

    def _refusal(self, value: object, key: str) -> str:
        if (name := _as_text(value)) is None:
            return super()._refusal(value, key)
        return f"unknown name '{name}'.{suggest(name, self.options, self.others)}"

    def _allowed(self) -> str:
        return ", ".join(self.options)


def _as_text(value: object) -> str | None:
    """Return a text, also one that unquoted YAML reads as a whole number; None for other values."""
    if isinstance(value, str):
        return value  # also one that knows an object, see `augment.data.own.factory`
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, kw_only=True)
class Texts(Param[tuple[str, ...]]):
    """A list of strings."""

    def _convert(self, value: object) -> tuple[str, ...] | None:
        if isinstance(value, str) or not isinstance(value, Sequence):
            return None
        return tuple(value) if all(isinstance(v, str) and v for v in value) else None

    def _refusal(self, value: object, key: str) -> str:
        example = f", such as {key}=[{value}]" if isinstance(value, str) and value else ""
        return f"{super()._refusal(value, key)[:-1]}{example}."

    def _allowed(self) -> str:
        return "a list of names"

    def _show(self, value: tuple[str, ...]) -> str:
        return f"[{', '.join(value)}]"


@dataclass(frozen=True, kw_only=True)
class OptionMap(Param[Mapping[str, Any]]):
    """A mapping from names to any values; the receiver checks them."""

    def _convert(self, value: object) -> Mapping[str, Any] | None:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            return None
        return dict(value)

    def _allowed(self) -> str:
        return "a mapping of names to values"


@dataclass(frozen=True, kw_only=True)
class CacheSize(Param[int | str]):
    """An amount of memory in MiB, "gpu" for a sensible share of what is free, or "off"."""

    def _convert(self, value: object) -> int | str | None:
        if value is False:
            return "off"  # YAML reads an unquoted off as false
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
        red, green, blue = (number_in(v, self.within) for v in value)
        if red is None or green is None or blue is None or min(red, green, blue) <= self.above:
            return None
        return red, green, blue

    def _allowed(self) -> str:
        return f"three numbers{bounds(self.within, self.above)}"


class Size(NamedTuple):
    """Height and width of images in pixels; as text "360 x 480", or "128" for a square."""

    height: int
    width: int

    def __str__(self) -> str:
        return " x ".join(map(str, self[: 1 if self.is_square else 2]))

    @property
    def is_square(self) -> bool:
        """Whether both sides are equal."""
        return self.height == self.width

    @property
    def plain(self) -> int | list[int]:
        """The size as in YAML."""
        return self.height if self.is_square else list(self)

    @property
    def proportions(self) -> tuple[float, float]:
        """Height and width over the shorter side."""
        return self.height / min(self), self.width / min(self)

    def with_shorter(self, side: int) -> "Size":
        """Return a size of the same proportions with another shorter side, rounded."""
        return Size(*(round(side * proportion) for proportion in self.proportions))


@dataclass(frozen=True, kw_only=True)
class ImageSize(Param[Size]):
    """One number for a square, or height and width; integers within closed bounds."""

    within: Interval = (1, inf)

    def _convert(self, value: object) -> Size | None:
        sides = value if isinstance(value, Sequence) and not isinstance(value, str) else [value, value]
        side = Count(within=self.within, doc="")
        numbers = [number for number in map(side._convert, sides) if number is not None]
        return Size(*numbers) if len(numbers) == len(sides) == 2 else None

    def _allowed(self) -> str:
        return f"a whole number{bounds(self.within)} for a square, or [height, width]"
