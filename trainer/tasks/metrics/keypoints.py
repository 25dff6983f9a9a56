"""Metrics of points: outputs are x and y of each point, (N, 2P), and targets x, y and visibility, (N, P, 3).

Both are from the middle of the image, in halves of its longer side, see `trainer.tasks.keypoints`.
"""

import math

from augment.support.lazy import Tensor
from trainer.tasks.metric import POSITIVE, SHARE, metric
from trainer.tasks.metrics.labels import mean_of_known

# The share of the larger side of the visible points' extent within which a point is right.
NEAR = 0.2


@metric("keypoints", title="PCK@.2", within=SHARE, whole=True)
def pck(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of correct points among the visible ones (Yang and Ramanan 2013).

    A point is correct if it is off by at most a fifth of the larger side of the smallest box around the image's visible
    points. Images with a single one, or whose points coincide, have no such side, and do not count.
    """
    _, relative = point_errors(outputs, targets)
    known = relative[~relative.isnan()]
    return float((known <= NEAR).double().mean()) if len(known) else math.nan


@metric("keypoints", title="error", smaller=True, within=POSITIVE, whole=True)
def error(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean distance of visible points from where they are, as a share of the image's longer side."""
    errors, _ = point_errors(outputs, targets)
    return mean_of_known(errors.double().flatten().tolist())


def point_errors(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance of each visible point from where it is, (N, P) each, NaN where a point is not visible.

    Once as a share of the image's longer side, and once as a share of the larger side of the extent of its visible
    points, NaN where that is 0.
    """
    found, true, visible = outputs.reshape(len(outputs), -1, 2), targets[..., :2], targets[..., 2] > 0
    distances = (found - true).norm(dim=-1).masked_fill(~visible, math.nan)
    low = true.masked_fill(~visible[..., None], math.inf).amin(dim=1)
    high = true.masked_fill(~visible[..., None], -math.inf).amax(dim=1)
    side = (high - low).amax(dim=1, keepdim=True)
    return distances / 2, distances / side.masked_fill(side <= 0, math.nan)
