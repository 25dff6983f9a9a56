"""Estimate how many labels are wrong, and which, from the margins of the given labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from augment.support.formatting import percent

Array = NDArray[np.float64]

_FEWEST, _EPOCHS = 100, 3  # fewest samples and epochs for an estimate
_POINTS = 4000  # most scores that the fit uses, at equal distances in their order
# The smallest distance of the two distributions that is conclusive, in standard deviations. And the share of the
# estimate that is added to the sampling error, because the true shapes are unknown.
_APART, _SHAPE = 2.0, 0.1


@dataclass(frozen=True)
class Estimate:
    """The estimated share of wrong labels among some labels.

    Attributes:
        what: the labels, such as "labels".
        count: the number of labels.
        share: the share of wrong ones. NaN: unknown.
        low, high: the 95% interval of the share.
        unknown: why the share is unknown, as a sentence.
    """

    what: str
    count: int
    share: float = math.nan
    low: float = 0.0
    high: float = 1.0
    unknown: str = ""

    @property
    def sentence(self) -> str:
        """The estimate in words."""
        if self.unknown:
            return f"The share of wrong {self.what} is unknown. {self.unknown}"
        wrong, bounds = f"{self.share * self.count:,.0f}", f"{percent(self.low, 1)} to {percent(self.high, 1)}"
        return (
            f"About {wrong} of {self.count:,} {self.what} are wrong: {percent(self.share, 1)}, 95% interval {bounds}."
        )


def estimate(scores: Array, epochs: int, what: str = "labels") -> tuple[Estimate, Array]:
    """Estimate the share of wrong labels, and the probability that each label is wrong.

    The scores of right labels have a two-piece normal distribution, because hard samples make a long left tail. The
    scores of wrong labels have a normal distribution with a negative mean, because the model prefers another class. All
    classes are pooled. So the estimate also finds a class whose labels are all wrong.

    Args:
        scores: (N,) mean margins.
        epochs: number of epochs in the means.
        what: see `Estimate`.

    Returns:
        The estimate, and the probabilities, (N,). They are NaN if the share is unknown.
    """
    unknown = np.full(len(scores), math.nan)
    if len(scores) < _FEWEST:
        return Estimate(what, len(scores), unknown=f"Too few samples: {len(scores):,} of at least {_FEWEST}."), unknown
    if epochs < _EPOCHS:
        return Estimate(what, len(scores), unknown=f"Too few epochs: {epochs} of at least {_EPOCHS}."), unknown
    every = np.sort(scores)
    some = every[np.linspace(0, len(every) - 1, min(len(every), _POINTS)).round().astype(int)]
    scale = float(some.std()) or 1.0
    values = _fit(some / scale)
    share, mode, left, _, spread, mean = values
    if mode <= 0 or mode - mean < _APART * math.hypot(left, spread):
        why = "The model separates right and wrong labels too little. Train longer, or with a better model."
        return Estimate(what, len(scores), unknown=why), unknown
    of_wrong, of_right = _densities(scores / scale, values)
    whole = np.maximum(share * of_wrong + (1 - share) * of_right, 1e-300)
    probability = share * of_wrong / whole
    order = np.argsort(-scores, kind="stable")
    probability[order] = np.maximum.accumulate(probability[order])  # a lower score is never less suspicious
    information = float(np.square((of_wrong - of_right) / whole).sum())
    error = 1.96 / math.sqrt(max(information, 1.0)) + _SHAPE * share
    return Estimate(what, len(scores), share, max(0.0, share - error), min(1.0, share + error)), probability


# The share of wrong labels, the mode of right ones with its deviations to the left and to the right, and the deviation
# and mean of wrong ones.
_Values = tuple[float, float, float, float, float, float]


def _fit(scores: Array) -> _Values:
    """Return the most likely values."""
    from scipy.optimize import minimize  # a slow import

    def loss(free: Array) -> float:
        values = _values(free)
        of_wrong, of_right = _densities(scores, values)
        return -float(np.log(values[0] * of_wrong + (1 - values[0]) * of_right + 1e-300).mean())

    found = []
    for share in (0.02, 0.2, 0.5):
        mode, low = np.quantile(scores, [(1 + share) / 2, share / 2])
        start = [math.log(share / (1 - share)), mode, -0.7, -0.7, 0.0, math.log(max(-low, 0.1))]
        found.append(
            minimize(loss, start, method="Nelder-Mead", options={"maxfev": 1500, "xatol": 1e-3, "fatol": 1e-6})
        )
    return _values(min(found, key=lambda one: float(one.fun)).x)


def _values(free: Array) -> _Values:
    limited = np.clip(free, -12, 12)
    (left, right, mean), (share, spread) = np.exp(limited[[2, 3, 5]]), 1 / (1 + np.exp(-limited[[0, 4]]))
    # Wrong labels vary at most 1.6 times as much as right ones. Otherwise, a few outliers would be a wide distribution.
    return float(share), float(limited[1]), float(left), float(right), float(1.6 * left * spread + 0.01), -float(mean)


def _densities(scores: Array, values: _Values) -> tuple[Array, Array]:
    """Return the densities of wrong and of right labels, (N,) each."""
    _, mode, left, right, spread, mean = values
    of_wrong = np.exp(-0.5 * np.square((scores - mean) / spread)) / spread
    of_right = np.exp(-0.5 * np.square((scores - mode) / np.where(scores < mode, left, right))) * 2 / (left + right)
    return of_wrong, of_right
