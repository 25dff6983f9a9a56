"""Limit the expansion of braces, ranges, globs and sweeps."""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice, product
from math import prod
from typing import TypeVar

from augment.support.errors import UserError

T = TypeVar("T")

MAX_EXPANDED = 50_000


def expanded_values(values: Iterable[T], what: str) -> list[T]:
    """Return the values of an iterable, which may be infinite.

    Raises:
        UserError: there are too many values. The message begins with `what`, such as the key.
    """
    found = list(islice(values, MAX_EXPANDED + 1))
    if len(found) > MAX_EXPANDED:
        raise too_many(what)
    return found


def combinations(choices: Collection[Collection[T]], what: str) -> Iterator[tuple[T, ...]]:
    """Return all combinations of one value from each collection. See `expanded_values` for errors."""
    if prod(map(len, choices)) > MAX_EXPANDED:
        raise too_many(what)
    return product(*choices)


def too_many(what: str) -> UserError:
    return UserError(f"{what}: expands to more than {MAX_EXPANDED:,} values. Use fewer.")
