"""The size of images: one number for a square, or height and width."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from augment.params.kinds import Count
from augment.params.param import Interval, Param, bounds


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
