"""Policies that choose at random among steps nested in them, or apply them in a random order.

Choosing a step only decides whether it applies to a sample, so nested steps are fused with their neighbors like any
other step.
"""

import numpy as np
from numpy.typing import NDArray

from augment.params import Choice, Interval, Range, Values
from augment.recipe.kinds import Array
from augment.recipe.op import combinator

Chosen = NDArray[np.int64]

_ORDER = Choice(
    default="listed", options=("listed", "random"), doc="order of the steps: as listed, or random for each sample"
)


def _one_of(weights: Array) -> list[dict[int, float]]:
    return [{i: float(w) for i, w in enumerate(weights / weights.sum())}]


def _in_order(weights: Array, order: str, shares: list[float]) -> list[dict[int, float]]:
    """Lay out steps in slots: in listed order each step has its own slot, in random order it may run in any.

    Of the weights only the number counts; `shares` are those of the samples that use each slot.
    """
    count = len(weights)
    if order == "listed":
        return [{i: sum(shares) / count} for i in range(count)]
    return [dict.fromkeys(range(count), share / count) for share in shares if share]


def _all(weights: Array, order: str) -> list[dict[int, float]]:
    return _in_order(weights, order, [1.0] * len(weights))


def _some(weights: Array, count_range: Interval | Values, order: str) -> list[dict[int, float]]:
    if isinstance(count_range, Values):
        counts = np.array(count_range.values)
    else:
        counts = np.arange(count_range[0], count_range[1] + 1)
    return _in_order(weights, order, [float((counts > n).mean()) for n in range(len(weights))])


def _arranged(uniform: Array, count: Array, order: str) -> Chosen:
    """Return which step runs in each slot, (N, slots): the `count` steps with the smallest random numbers."""
    steps = np.arange(uniform.shape[1])
    if order == "listed" and (count == len(steps)).all():
        return np.broadcast_to(steps, uniform.shape)
    by_number = np.argsort(uniform, axis=1)
    if order == "random":
        return np.where(steps < count[:, None], by_number, -1)
    rank = np.argsort(by_number, axis=1)
    return np.where(rank < count[:, None], steps, -1)


@combinator(_one_of, weighted=True)
def one_of(weights: Array, uniform: Array) -> Chosen:
    """Apply one of the nested steps (`steps`), chosen in proportion to their `weight` (1 by default)."""
    edges = np.cumsum(weights[:-1] / weights.sum())
    return np.searchsorted(edges, uniform[:, 0], side="right")[:, None]


@combinator(
    _some,
    count_range=Range(default=(1, 2), within=(0, 64), whole=True, doc="number of steps, drawn for each sample"),
    order=_ORDER,
)
def some_of(weights: Array, uniform: Array, count: Array, order: str) -> Chosen:
    """Apply some of the nested steps (`steps`), each at most once and all equally likely."""
    return _arranged(uniform, count, order)


@combinator(_all, order=_ORDER)
def sequence(weights: Array, uniform: Array, order: str) -> Chosen:
    """Apply all nested steps (`steps`), or none of them with probability 1 - p."""
    return _arranged(uniform, np.full(len(uniform), uniform.shape[1]), order)
