"""The base class of typed parameters, and the parsing of numbers."""

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Generic, TypeVar

from augment.support.errors import UserError

T = TypeVar("T")

Interval = tuple[float, float]

_MAX_SHOWN = 200  # maximum number of characters of an invalid value in messages

# Values of `Param.reach`, as ends of the sentence "a run folder must not decide ...".
IMPORTS, DOWNLOADS, WRITES, SENDS, READS, PASSES, MATCHES = (
    "what is imported",
    "what is downloaded",
    "where files are written",
    "where data are sent",
    "which other files are read",
    "which arguments other code receives",
    "which patterns are matched",  # only if the value is a pattern or a URL
)


@dataclass(frozen=True, kw_only=True)
class Param(Generic[T]):
    """A parameter of type T with its default.

    Attributes:
        default: the value if the configuration sets none. `doc` explains what None means.
        doc: the help text, a noun phrase.
        unit: the unit of the value, in tables and messages.
        optional: whether null is allowed.
        required: whether the configuration must give a value.
        reach: the side effect of the value, such as imports or written files. A stranger's run folder may not set
            such a parameter. Empty: no side effect.
        aliases: names in other tools. Errors about these keys suggest this parameter.
    """

    default: T | None = None
    doc: str
    unit: str = ""
    optional: bool = False
    required: bool = False
    reach: str = ""
    aliases: tuple[str, ...] = ()

    _phrase: ClassVar[str]  # the allowed values, if they are always the same
    _lead: ClassVar[str] = "Use"  # stands before the allowed values in messages

    def __post_init__(self) -> None:
        if self.default is not None:
            default = self._convert(self.default)
            if default is None:
                raise ValueError(f"the default {self.default!r} is not allowed. Use {self.allowed()}")
            # Store the parsed default, so that setting it explicitly gives the same value.
            object.__setattr__(self, "default", default)

    def parse(self, value: object, key: str) -> T | None:
        """Validate and convert the configured value at a key path."""
        if value is None and self.optional:
            return None
        parsed = self._convert(value)
        if parsed is None:
            raise UserError(f"{key}: {self._rejection(value, key)}")
        return parsed

    def fits(self, value: object) -> bool:
        """Return whether a value is allowed, and has the type of the parameter."""
        converted = self._convert(value)
        return converted is not None and converted == value

    def _rejection(self, value: object, key: str) -> str:
        """Return the error message about an invalid value, without its key."""
        text = repr(value)
        if len(text) > _MAX_SHOWN:  # such as an array
            text = f"{' '.join(text[:_MAX_SHOWN].split())} ..."
        return f"{text} is not allowed. {self._lead} {self.allowed()}."

    def allowed(self) -> str:
        """Return the allowed values as a phrase."""
        return self._allowed() + (" or null" if self.optional else "")

    def show(self, value: T | None) -> str:
        """Return a value as text, with its unit."""
        return "null" if value is None else f"{self._show(value)} {self.unit}".strip()

    def _show(self, value: T) -> str:
        return str(value)

    def _convert(self, value: object) -> T | None:
        raise NotImplementedError

    def _allowed(self) -> str:
        return self._phrase


def number_in(value: object, within: Interval) -> float | None:
    """Return `value` as a float if it is a finite number within closed bounds, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**1023:
        return None  # not a number, or an integer too large for a float
    return float(value) if within[0] <= value <= within[1] else None


def bounds(within: Interval, above: float = -inf) -> str:
    """Return bounds as the end of a phrase such as "a number from 0 to 1". Without bounds, return an empty string."""
    low, high = within
    if above > -inf and high == inf:
        return f" above {above:.15g}"
    if above > -inf:
        return f" above {above:.15g} up to {high:.15g}"
    if within == (-inf, inf):
        return ""
    if high == inf:
        return f" of at least {low:.15g}"
    return f" from {low:.15g} to {high:.15g}"
