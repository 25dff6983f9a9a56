"""Estimate how many labels are wrong, and which ones, from the mean predictions of a model during training."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from augment.support.formatting import percent

Array = NDArray[np.float64]

_FEWEST, _EPOCHS = 100, 3  # fewest samples and epochs for an estimate
_LEAST_SCORE = 0.6  # lowest validation score for an estimate. A worse model is often wrong where it disagrees
_OWN_ERRORS = 0.5  # share of its validation errors that a model may also make on training samples with right labels
# The interval adds a share of the estimate and an absolute error to the sampling error. On Imagenette with 1 to 50%
# wrong labels, estimates after 5 and 20 epochs differ from the truth by at most 12% of it or 0.9 percentage points,
# whichever is larger.
_RELATIVE, _ABSOLUTE = 0.15, 0.01


@dataclass(frozen=True)
class Estimate:
    """The estimated share of wrong labels among some labels.

    Attributes:
        what: the name of the labels in sentences, such as "missing labels".
        count: the number of labels.
        share: the share of wrong labels, or NaN if it is unknown.
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
        wrong, most = (f"{share * self.count:,.0f} of {self.count:,} {self.what}" for share in (self.share, self.high))
        share, bounds = percent(self.share, 1), f"95% interval {percent(self.low, 1)} to {percent(self.high, 1)}"
        if not self.low:  # all of them may be the model's own errors
            return f"At most {most} are wrong: {bounds}, estimate {share}."
        return f"About {wrong} are wrong: {share}, {bounds}."


@dataclass(frozen=True)
class Learned:
    """How much a model has learned.

    Attributes:
        epochs: the number of epochs.
        metric: the name of its validation score.
        score: the best score of an epoch in 0..1, or NaN without validation data.
    """

    epochs: int
    metric: str = "val_accuracy"
    score: float = math.nan

    @property
    def own_errors(self) -> float:
        """The share of samples with right labels on which the model may disagree. 0 if it is unknown."""
        return 0.0 if math.isnan(self.score) else _OWN_ERRORS * (1 - self.score)


def why_unknown(count: int, learned: Learned) -> str:
    """Return why an estimate is not possible, or an empty string."""
    if count < _FEWEST:
        return f"Too few samples: {count:,}. An estimate needs at least {_FEWEST}."
    if learned.epochs < _EPOCHS:
        return f"Too few epochs: {learned.epochs}. An estimate needs at least {_EPOCHS}."
    if learned.score < _LEAST_SCORE:
        return (
            f"The model is too weak, so many disagreements are its own errors: {learned.metric} is "
            f"{percent(learned.score, 1)}. An estimate needs at least {percent(_LEAST_SCORE)}. Train longer, or use a "
            "better model."
        )
    return ""


def confident(means: Array, given: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class that the model is confident of for each sample, (N,), or -1 (Northcutt et al. 2021).

    The model is confident of a class if the sample's probability of the class is at least the mean of this probability
    over the samples with that label (arXiv:1911.00068). If there are several such classes, it is the most probable one.

    Args:
        means: (N, K) mean probabilities of the classes.
        given: (N,) the labels.
    """
    own, counts = means[np.arange(len(given)), given], np.bincount(given, minlength=means.shape[1])
    thresholds = np.bincount(given, own, means.shape[1]) / np.maximum(counts, 1)
    thresholds[counts == 0] = 2.0  # nothing is known about classes without samples
    sure = np.where(means >= thresholds, means, -1.0)
    return np.where(sure.max(axis=1) >= 0, sure.argmax(axis=1), -1)


def estimate(
    scores: Array, given: NDArray[np.int64], sure: NDArray[np.int64], what: str = "labels", own_errors: float = 0.0
) -> tuple[Estimate, Array]:
    """Estimate the share of wrong labels, and the probability that each label is wrong.

    The share is measured on the samples for which the model is confident of a class. The probabilities come from a
    logistic regression on the scores of these samples, shifted so that their mean is the share.

    Args:
        scores: (N,) mean margins, see `LabelAudit`. Lower scores are more suspicious.
        given: (N,) the labels.
        sure: (N,) the result of `confident`.
        what: see `Estimate`.
        own_errors: see `Learned`. The interval extends downward by this share.

    Returns:
        The estimate, and the probabilities, (N,). They are NaN if the share is unknown.
    """
    counted = sure >= 0
    wrong = (sure != given)[counted]
    if not counted.any():
        why = "The model does not separate right labels from wrong ones. Train longer, or use a better model."
        return Estimate(what, len(scores), unknown=why), np.full(len(scores), math.nan)
    share = float(wrong.mean())
    error = 1.96 * math.sqrt(share * (1 - share) / len(wrong)) + _RELATIVE * share + _ABSOLUTE
    low, high = max(0.0, share - error - own_errors), min(1.0, share + error)
    found = Estimate(what, len(scores), share, low, high)
    return found, _probabilities(scores, scores[counted], wrong, share)


def _probabilities(scores: Array, known: Array, wrong: NDArray[np.bool_], share: float) -> Array:
    """Return the probability that each label is wrong, (N,), higher for lower scores. The mean is `share`."""
    if not 0 < share < 1:
        return np.full(len(scores), share)
    scale = float(known.std()) or 1.0
    inputs = np.stack([np.ones_like(known), -known / scale], axis=1)
    line, penalty = np.zeros(2), 1e-4 * np.eye(2)  # penalized, because scores may separate the labels perfectly
    for _ in range(30):  # Newton's method
        likely = _sigmoid(inputs @ line)
        gradient = inputs.T @ (likely - wrong) / len(wrong) + 2 * penalty @ line
        curvature = inputs.T * (likely * (1 - likely)) @ inputs / len(wrong) + 2 * penalty
        line -= np.linalg.solve(curvature, gradient)
    steps = -max(0.0, line[1]) * scores / scale
    low, high = np.array([-1.0, 1.0]) * (50 + np.abs(steps).max())
    for _ in range(100):  # bisection
        level = (low + high) / 2
        low, high = (level, high) if _sigmoid(level + steps).mean() < share else (low, level)
    return _sigmoid(level + steps)


def _sigmoid(values: Array) -> Array:
    return np.asarray(np.tanh(values / 2) / 2 + 0.5)  # unlike exp, tanh does not overflow
