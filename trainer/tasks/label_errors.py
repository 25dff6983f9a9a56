"""Estimate how many labels are wrong, and which ones, from the mean predictions of a model during training."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from augment.support.formatting import percent
from trainer.tasks.classify import wilson_interval

Array = NDArray[np.float64]

_MIN_SAMPLES, _MIN_EPOCHS = 100, 3  # fewest samples and epochs for an estimate
# Lowest validation score for an estimate. If a worse model disagrees with a label, the model is often wrong.
_MIN_SCORE = 0.6
# How far the interval extends on both sides because of the model's own errors, relative to the square of its validation
# error. In seven runs on Imagenette with validation errors of 12 to 30%, the share of correct labels that confident
# predictions disagreed with was 0.3 to 1.6 times this square. A model that memorizes a small dataset agrees with wrong
# labels.
_OWN_ERRORS = 2.0
# The interval adds a share of the estimate and an absolute error to the sampling error.
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
    def certain(self) -> bool:
        """Whether some labels are certainly wrong. Otherwise, all of them may be errors of the model."""
        return self.low >= 0.0005  # less is printed as 0.0%

    @property
    def sentence(self) -> str:
        """The estimate in words."""
        if self.unknown:
            return f"The share of wrong {self.what} is unknown. {self.unknown}"
        wrong, most = (f"{share * self.count:,.0f} of {self.count:,} {self.what}" for share in (self.share, self.high))
        share, bounds = percent(self.share, 1), f"95% interval {percent(self.low, 1)} to {percent(self.high, 1)}"
        if not self.certain:
            return f"At most {most} are wrong: {bounds}, estimate {share}. These may all be errors of the model."
        return f"About {wrong} are wrong: {share}, {bounds}."


@dataclass(frozen=True)
class TrainingResult:
    """The training of a model, which determines how reliable an estimate is.

    Attributes:
        epochs: the number of epochs.
        metric: the name of its validation score.
        score: the best score of an epoch, in [0, 1], or NaN without validation data.
    """

    epochs: int
    metric: str = "val_accuracy"
    score: float = math.nan

    @property
    def own_errors(self) -> float:
        """The share of labels about which a confident model may be wrong. 0 if the validation score is unknown."""
        return 0.0 if math.isnan(self.score) else _OWN_ERRORS * (1 - self.score) ** 2


def why_unknown(count: int, training: TrainingResult) -> str:
    """Return why an estimate is not possible, or an empty string."""
    if count < _MIN_SAMPLES:
        return f"Too few samples: {count:,}. An estimate needs at least {_MIN_SAMPLES}."
    if training.epochs < _MIN_EPOCHS:
        return f"Too few epochs: {training.epochs}. An estimate needs at least {_MIN_EPOCHS}."
    if training.score < _MIN_SCORE:
        return (
            f"The model is too weak, so many disagreements are its own errors: {training.metric} is "
            f"{percent(training.score, 1)}. An estimate needs at least {percent(_MIN_SCORE)}. Train longer, or use a "
            "better model."
        )
    return ""


def confident_classes(means: Array) -> NDArray[np.int64]:
    """Return the predicted classes of the samples about which the model is most confident, (N,), and -1 for the others.

    For each predicted class, the model is most confident about the half of the samples with the highest probability of
    this class. A model makes few errors on these samples. If it disagrees with a label there, the label is probably
    wrong.

    Args:
        means: (N, K) mean probabilities of the classes.
    """
    predicted, highest = means.argmax(axis=1), means.max(axis=1)
    order = np.lexsort((-highest, predicted))  # by class, the most confident sample first
    counts = np.bincount(predicted)
    ranks = np.arange(len(means)) - (np.cumsum(counts) - counts)[predicted[order]]
    chosen = order[ranks < counts[predicted[order]] / 2]
    sure = np.full(len(means), -1)
    sure[chosen] = predicted[chosen]
    return sure


def estimate(
    scores: Array, given: NDArray[np.int64], sure: NDArray[np.int64], what: str = "labels", own_errors: float = 0.0
) -> tuple[Estimate, Array]:
    """Estimate the share of wrong labels, and the probability that each label is wrong.

    The share is measured on the samples about which the model is most confident. The probabilities come from a logistic
    regression on the scores of these samples, shifted so that their mean is the share.

    Args:
        scores: (N,) mean margins, see `LabelAudit`. Lower scores are more suspicious.
        given: (N,) the labels.
        sure: (N,) the result of `confident_classes`.
        what: see `Estimate`.
        own_errors: see `TrainingResult`. It widens the interval by this share on both sides.

    Returns:
        The estimate, and the probabilities, (N,).
    """
    counted = sure >= 0
    wrong = (sure != given)[counted]
    share = float(wrong.mean())
    low, high = wilson_interval(int(wrong.sum()), len(wrong))  # not 0 to 0 if no sample disagrees
    error = _RELATIVE * share + _ABSOLUTE + own_errors
    found = Estimate(what, len(scores), share, max(0.0, low - error), min(1.0, high + error))
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
