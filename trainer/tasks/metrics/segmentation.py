"""Metrics of masks, from numbers of pixels.

A model's outputs are (N, classes, height, width) and targets (N, height, width). Those of a whole pass would fill the
memory, so metrics of all samples get `targets`, (N, classes), pixels of each class, and `outputs`, (N, 2, classes),
pixels that are predicted as each class, and those of them that are right. Pixels whose target is no class do not count.
"""

import math

from augment.support.lazy import Tensor, torch
from trainer.tasks.metric import SHARE, metric
from trainer.tasks.metrics.labels import mean_of_known


@metric("segment", title="mIoU", within=SHARE, whole=True)
def miou(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean IoU of the classes that some pixel has or gets."""
    return mean_of_known(ious(outputs.sum(dim=0), targets.sum(dim=0)).tolist())


@metric("segment", title="pixel acc", within=SHARE, whole=True)
def pixel_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of pixels that are right."""
    total = int(targets.sum())
    return int(outputs[:, 1].sum()) / total if total else math.nan


def ious(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the intersection over union of each class, float64; NaN where no pixel has or gets it.

    Args:
        outputs: (..., 2, classes) pixels that are predicted as each class, and those of them that are right.
        targets: (..., classes) pixels of each class.
    """
    predicted, right = outputs.unbind(dim=-2)
    return right.double() / (targets + predicted - right)


def confusions(predictions: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Count the pixels of each image by their class and prediction, without waiting for the device.

    Args:
        predictions: (N, height, width) class indices.
        targets: (N, height, width); pixels of other values than classes do not count.
        classes: number of classes.

    Returns:
        (N, classes, classes) int64: rows are targets, columns predictions.
    """
    count, cells = len(targets), classes * classes
    image = torch.arange(count, device=targets.device)[:, None, None]
    cell = image * cells + targets * classes + predictions
    # torch.bincount would wait for the device; the last cell is for pixels that do not count.
    cell = cell.where((targets >= 0) & (targets < classes), count * cells).flatten()
    counts = torch.zeros(count * cells + 1, dtype=torch.int64, device=targets.device)
    counts.index_add_(0, cell, torch.ones_like(cell))
    return counts[:-1].view(count, classes, classes)
