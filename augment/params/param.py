"""What every typed parameter is: a default, a phrase about it, and a check of what the configuration holds."""

from dataclasses import dataclass
from math import inf, isfinite
from typing import Generic, TypeVar

from augment.errors import UserError

T = TypeVar("T")

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


def number_in(value: object, within: Interval) -> float | None:
    """Return a finite number within closed bounds as a float; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond all floats
        return None
    return number if isfinite(number) and within[0] <= number <= within[1] else None


def bounds(within: Interval, above: float = -inf) -> str:
    """Write bounds, to be read after what lies within them; empty where there are none."""
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
