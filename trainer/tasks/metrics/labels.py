"""Metrics of labels: outputs are logits, (N, K), and targets 0 or 1, (N, K)."""

import math
from collections.abc import Callable, Iterable

from augment.support.lazy import Tensor
from trainer.tasks.metric import SHARE, metric


@metric("multilabel", name="map", title="mAP", within=SHARE, whole=True)
def mean_average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean of the labels' average precisions."""
    # In double precision, where no two logits or probabilities near 1 become equal.
    return mean_of_known(average_precisions(outputs.double().sigmoid(), targets > 0.5))


@metric("multilabel", within=SHARE, whole=True, on_request=True)
def f1(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean F1 score of the labels that images have or get, predicted from a probability of 0.5 on."""
    return mean_of_known(f1_scores(outputs >= 0, targets > 0.5))


@metric("multilabel", within=SHARE, whole=True, on_request=True)
def auroc(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean of the labels' areas below the ROC curve."""
    return mean_of_known(aurocs(outputs.double().sigmoid(), targets > 0.5))


def mean_of_known(values: Iterable[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there is none."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def average_precisions(scores: Tensor, having: Tensor) -> list[float]:
    """Return the average precision of each label, NaN where no image has it.

    Args:
        scores: (N, K) probabilities.
        having: (N, K) bool.
    """
    # Takes seconds to import, as it imports torchvision.
    from torchmetrics.functional.classification import binary_average_precision

    return _each(binary_average_precision, scores, having, having.any(dim=0))


def aurocs(scores: Tensor, having: Tensor) -> list[float]:
    """Return the area below the ROC curve of each label, NaN where no image has it, or all have."""
    from torchmetrics.functional.classification import binary_auroc  # as above

    return _each(binary_auroc, scores, having, having.any(dim=0) & ~having.all(dim=0))


def _each(measure: Callable[[Tensor, Tensor], Tensor], scores: Tensor, having: Tensor, known: Tensor) -> list[float]:
    columns = zip(scores.unbind(1), having.int().unbind(1), known.tolist(), strict=True)
    return [float(measure(score, has)) if counts else math.nan for score, has, counts in columns]


def f1_scores(predicted: Tensor, having: Tensor) -> list[float]:
    """Return the F1 score of each label, (N, K) bool each; NaN where no image has or gets it."""
    scores: list[float] = (2 * (predicted & having).sum(0).double() / (predicted.sum(0) + having.sum(0))).tolist()
    return scores


def best_threshold(scores: Tensor, having: Tensor) -> tuple[float, float]:
    """Return the score from which to predict a label, (N,) each, so that F1 is highest, and that F1.

    Where no image has the label, return NaN and 0.
    """
    from torchmetrics.functional.classification import binary_precision_recall_curve  # as above

    if not having.any():
        return math.nan, 0.0
    precision, recall, thresholds = binary_precision_recall_curve(scores, having.int())
    f1 = (2 * precision * recall / (precision + recall))[:-1].nan_to_num()
    best = len(f1) - 1 - int(f1.flip(0).argmax())  # the highest of several
    return float(thresholds[best]), float(f1[best])
