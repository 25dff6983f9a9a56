"""Metrics of boxes: COCO's average precision, by torchmetrics and one of two packages that compute it.

Outputs are the objects found in each image, (N, D, 6): left, top, right, bottom, label and score. Targets are the true
ones, (N, K, 6): left, top, right, bottom, label, and 1 for those that do not count, crowds and difficult ones. A row
of NaN, or with a score that is not above 0, is no object.
"""

import logging
import math
from functools import lru_cache
from importlib.util import find_spec

import numpy as np

from augment.support.errors import UserError
from augment.support.lazy import Tensor
from trainer.tasks.metric import SHARE, metric

# Packages that match boxes as COCO does, and what torchmetrics calls them.
BACKENDS = ("faster_coco_eval", "pycocotools")


@metric("detect", name="map", title="mAP", within=SHARE, whole=True)
def mean_average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Return COCO's mAP: the mean over the classes, and over IoUs of .5, .55, ..., .95 from which a box is right."""
    return _mean(average_precisions(outputs, targets)[0])


@metric("detect", name="map50", title="mAP50", within=SHARE, whole=True)
def map_at_50(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean over the classes where a box is right from an IoU of .5 on."""
    return _mean(average_precisions(outputs, targets)[0][0])


@metric("detect", name="map75", title="mAP75", within=SHARE, whole=True)
def map_at_75(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean over the classes where a box is right from an IoU of .75 on."""
    return _mean(average_precisions(outputs, targets)[0][5])


def _mean(precisions: Tensor) -> float:
    return float(precisions.mean()) if precisions.numel() else math.nan


def require_backend() -> str:
    """Return the name of the package that matches boxes.

    Raises:
        UserError: there is none.
    """
    found = next((name for name in BACKENDS if find_spec(name)), None)
    if found is None:
        raise UserError(
            "val_map needs the package faster-coco-eval or pycocotools: pip install 'dali-trainer[detect]'."
        )
    return found


@lru_cache(maxsize=1)  # three metrics ask for those of the same pass
def average_precisions(outputs: Tensor, targets: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Return the average precisions of a pass, as COCO's own code computes them, for the classes that have objects.

    At most the 100 objects of the highest scores count in each image, and 101 recalls.

    Returns:
        (10, C) float, for each IoU and class; and the C classes by their labels.
    """
    from torchmetrics.detection import MeanAveragePrecision

    logging.getLogger("faster_coco_eval").setLevel(logging.WARNING)  # it would log a table each time
    # The pass of all ranks is here already: torchmetrics must not gather it once more.
    metric = MeanAveragePrecision(
        # COCO's thresholds: those of torchmetrics are rounded to float32, and miss a recall or an IoU of 0.6.
        iou_thresholds=np.linspace(0.5, 0.95, 10).tolist(),
        rec_thresholds=np.linspace(0, 1, 101).tolist(),
        extended_summary=True,
        backend=require_backend(),
        sync_on_compute=False,
    )
    metric.warn_on_many_detections = False  # more than 100 are cut, as said
    found, true = [image[image[:, 5] > 0] for image in outputs], [image[~image[:, 4].isnan()] for image in targets]
    metric.update(
        [{"boxes": rows[:, :4], "labels": rows[:, 4].long(), "scores": rows[:, 5]} for rows in found],
        [{"boxes": rows[:, :4], "labels": rows[:, 4].long(), "iscrowd": rows[:, 5].long()} for rows in true],
    )
    summary = metric.compute()
    labels = summary["classes"].reshape(-1)
    # (IoUs, recalls, classes, areas, limits): of all areas, at most 100 objects; -1 for a class without objects.
    values = summary["precision"][:, :, :, 0, -1].mean(dim=1)
    known = (values >= 0).all(dim=0)
    return values[:, known], tuple(labels[known].tolist())
