"""How numbers and names are written in sentences."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SHOWN = 3


@dataclass(frozen=True)
class Finding:
    """Something that looks wrong.

    Attributes:
        kind: a word for it, for programs.
        text: a sentence, or two where something helps.
    """

    kind: str
    text: str


def written(value: float) -> str:
    """Return a number in few digits, large ones whole."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    """Return a share in two digits."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def pictures(which: NDArray[np.bool_]) -> str:
    """Return how many pictures are among some, (N,), and which share of all."""
    return f"{int(which.sum()):,} of {len(which):,} pictures ({percent(float(which.mean()))})"


def some(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
