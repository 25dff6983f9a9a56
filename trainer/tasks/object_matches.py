"""Matches of found objects with true objects at an IoU of 0.5, and the score thresholds with the best F1.

Matches are rows of label, score and whether the object is true, (M, 3). The score of a true object is the score with
which it was found, or 0 if it was missed. The other rows are wrong objects. Crowd objects, difficult objects, and found
objects that match only such objects are left out.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from augment.support.lazy_torch import F, Tensor, torch
from trainer.tasks.class_rates import RATES

_MIN_IOU = 0.5  # lowest IoU of a correct box
_RATES = ("precision", "recall", "f1")


def match_objects(target: Tensor, output: Tensor) -> Tensor:
    """Match the boxes of an image as COCO does, and return the matches, (M, 3).

    Found objects are matched in descending order of score. Each is matched to the remaining true object of its class
    with the largest IoU, if that is at least 0.5. Any number of found objects may match the same crowd or difficult
    object.
    """
    from faster_coco_eval import mask
    from torchvision.ops import box_convert

    true, found = target[~target[:, 4].isnan()], output[output[:, 5] > 0]
    found = found[found[:, 5].argsort(descending=True, stable=True)]
    counts = (true[:, 5] == 0).numpy()
    boxes = [box_convert(rows[:, :4], "xyxy", "xywh").double().numpy() for rows in (found, true)]
    overlaps = np.reshape(mask.iou(*boxes, (~counts).tolist()), (len(found), len(true)))
    fits = (overlaps >= _MIN_IOU) & (found[:, 4:5] == true[:, 4]).numpy()
    scores, wrong = torch.zeros(len(true)), ~fits.any(axis=1)
    for i in np.flatnonzero(~wrong):
        free = fits[i] & counts & (scores == 0).numpy()
        if free.any():
            scores[(overlaps[i] * free).argmax()] = found[i, 5]
        else:
            wrong[i] = not (fits[i] & ~counts).any()
    right = torch.stack([true[:, 4], scores, torch.ones(len(true))], dim=1)
    return torch.cat([right[counts], F.pad(found[wrong, 4:6], (0, 1))])


@lru_cache(maxsize=1)
def match_all(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the matches of all images of a pass, (M, 3)."""
    return torch.cat([match_objects(*pair) for pair in zip(targets, outputs, strict=True)])


def best_thresholds(matches: Tensor, classes: int, default: float) -> tuple[float, ...]:
    """Return the threshold with the best F1 score of each class. Classes without a correct object keep the default.

    A threshold lies halfway between the lowest score above it and the highest score below it.
    """
    thresholds = [default] * classes
    for label in {*matches[:, 0].long().tolist()}:
        scores, order = matches[matches[:, 0] == label, 1].double().sort(descending=True)
        true, following = matches[matches[:, 0] == label, 2][order], F.pad(scores[1:], (0, 1))
        f1 = 2 * true.cumsum(0) / (torch.arange(1, len(true) + 1) + true.sum())
        f1[scores <= following] = 0  # no threshold separates equal scores, or includes missed objects
        best = int(f1.argmax())  # the highest of several best thresholds
        if f1[best]:
            thresholds[label] = float(scores[best] + following[best]) / 2
    return tuple(thresholds)


def rates_at(matches: Tensor, names: Sequence[str], thresholds: Sequence[float]) -> dict[str, dict[str, float]]:
    """Return threshold, precision, recall and F1 of each class except the background.

    As in scikit-learn, an undefined precision is 0. The rates of a class without true objects are NaN.
    """
    labels, (scores, true) = matches[:, 0].long(), matches[:, 1:].double().unbind(1)
    found = scores >= torch.tensor(thresholds, dtype=torch.float64)[labels]
    right, predicted, actual = (torch.bincount(labels, of, len(names)) for of in (found * true, found.double(), true))
    rates = [RATES[name](right, predicted, actual, actual).nan_to_num(0) for name in _RATES]
    columns = [rate.masked_fill(actual == 0, math.nan).tolist() for rate in rates]
    rows = zip(names, thresholds, *columns, strict=True)
    return {name: dict(zip(("threshold", *_RATES), row, strict=True)) for name, *row in [*rows][1:]}
