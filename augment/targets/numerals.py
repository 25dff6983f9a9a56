"""Words that are numbers."""

import math


def read_number(word: str) -> float | None:
    """Return the finite number that a word is, None if it is none."""
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def is_whole(word: str) -> bool:
    """Whether a word is a whole number, without a point."""
    return word.removeprefix("-").isdecimal()
