"""Expand what stands for several values: braces, ranges, globs and the jobs of a sweep, all with one limit."""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice, product
from math import prod
from typing import TypeVar

from augment.support.errors import UserError

T = TypeVar("T")

MAX_EXPANDED = 50_000


def expanded_values(values: Iterable[T], what: str) -> list[T]:
    """Return values, which may be without end.

    Raises:
        UserError: there are too many; the message begins with `what`, the key and its value.
    """
    found = list(islice(values, MAX_EXPANDED + 1))
    if len(found) > MAX_EXPANDED:
        raise too_many(what)
    return found


def combinations(choices: Collection[Collection[T]], what: str) -> Iterator[tuple[T, ...]]:
    """Return all combinations of one value from each collection; for errors see `expanded_values`."""
    if prod(map(len, choices)) > MAX_EXPANDED:
        raise too_many(what)
    return product(*choices)


def too_many(what: str) -> UserError:
    """Return the error about an expression that stands for too many values."""
    return UserError(f"{what}: expands to more than {MAX_EXPANDED:,} values. Use fewer.")
