"""Metrics of classes: outputs are logits, (N, K), and targets classes, (N,); of mixed targets, the largest share's."""

import math

import numpy as np
from numpy.typing import NDArray

from augment.support.lazy import Tensor
from trainer.tasks.metric import SHARE, metric
from trainer.tasks.metrics.labels import aurocs, average_precisions, f1_scores, mean_of_known

_TOP = 5


@metric(title="acc", within=SHARE)
def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return which predictions are right."""
    return outputs.argmax(dim=1) == targets


@metric(title="top-5", within=SHARE, train=False, above=_TOP)
def top5(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return which targets are among the five most probable classes."""
    return (outputs.topk(_TOP).indices == targets[:, None]).any(dim=1)


@metric(within=(0, 2), smaller=True, on_request=True)
def brier(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared distances of probabilities and targets, sums over the classes (Brier 1950)."""
    return (outputs.softmax(dim=1) - _one_hot(targets, outputs).float()).square().sum(dim=1)


@metric(within=SHARE, whole=True, on_request=True)
def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean recall of the classes that have images."""
    counts = confusion(targets, outputs.argmax(dim=1), outputs.shape[1])
    totals = counts.sum(axis=1)
    recalls = (counts.diagonal()[totals > 0] / totals[totals > 0]).tolist()
    return mean_of_known(recalls)


@metric(within=SHARE, whole=True, on_request=True)
def f1(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean F1 score of the classes that have or get images."""
    return mean_of_known(f1_scores(_one_hot(outputs.argmax(dim=1), outputs), _one_hot(targets, outputs)))


@metric(within=SHARE, whole=True, on_request=True)
def auroc(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean area below the ROC curve of each class against all others."""
    return mean_of_known(aurocs(outputs.double().softmax(dim=1), _one_hot(targets, outputs)))


@metric(within=SHARE, whole=True, on_request=True)
def average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean average precision of each class against all others."""
    return mean_of_known(average_precisions(outputs.double().softmax(dim=1), _one_hot(targets, outputs)))


@metric(within=SHARE, smaller=True, whole=True, on_request=True)
def calibration_error(outputs: Tensor, targets: Tensor) -> float:
    """Return how far confidence and accuracy are apart, in [0, 1].

    It is the mean over 15 equal bins of confidence, weighted by their images (Guo et al. 2017, arXiv:1706.04599).
    """
    # Takes seconds to import, as it imports torchvision.
    from torchmetrics.functional.classification import binary_calibration_error

    # Whether the predicted class is right is a yes-or-no question, with the confidence as its probability.
    predictions = outputs.argmax(dim=1)
    confidence = outputs.softmax(dim=1).gather(1, predictions[:, None])[:, 0]
    return float(binary_calibration_error(confidence, (predictions == targets).int(), n_bins=15))


def confusion(targets: Tensor, predictions: Tensor, classes: int) -> NDArray[np.int64]:
    """Return the counts, (classes, classes): rows are targets, columns predictions."""
    # torchmetrics counts the same, but importing it takes seconds.
    cells = (targets * classes + predictions).numpy()
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Return the 95% interval of a share (Wilson 1927); all of [0, 1] where nothing was counted."""
    if not total:
        return 0.0, 1.0
    p, z = right / total, 1.96
    middle, half = p + z * z / (2 * total), z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return max((middle - half) / (1 + z * z / total), 0.0), min((middle + half) / (1 + z * z / total), 1.0)


def _one_hot(classes: Tensor, outputs: Tensor) -> Tensor:
    """Return which class each sample has, (N, K) bool."""
    return outputs.new_zeros(outputs.shape).scatter(1, classes[:, None], 1).bool()
