"""Metrics of numbers: outputs and targets are in the data's own units, (N, K) each."""

import math

from augment.support.lazy import Tensor
from trainer.tasks.metric import POSITIVE, metric
from trainer.tasks.metrics.labels import mean_of_known


@metric("regress", smaller=True, within=POSITIVE, line="{:.4g}")
def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the absolute errors."""
    return (outputs - targets).abs()


@metric("regress", title="rmse of all errors", smaller=True, within=POSITIVE, line="", finish=math.sqrt)
def rmse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared errors, of whose mean the metric is the root."""
    return (outputs - targets).square()


@metric("regress", title="rmse, mean of numbers", smaller=True, within=POSITIVE, whole=True, above=1, line="")
def mean_rmse(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean of the numbers' root mean squared errors."""
    return mean_of_known(rmse for _, rmse, _ in number_scores(outputs, targets))


@metric("regress", title="R²", within=(-math.inf, 1), whole=True, line="")
def r2(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean R2 of the numbers that differ between images."""
    return mean_of_known(r2 for *_, r2 in number_scores(outputs, targets))


def number_scores(outputs: Tensor, targets: Tensor) -> list[tuple[float, ...]]:
    """Return mean absolute error, root mean squared error and R2 of each number.

    R2, the coefficient of determination, is 1 - the squared error over that of always predicting the mean: 1 is
    perfect, 0 no better than the mean; NaN where the number is the same in all images.
    """
    errors = (outputs - targets).double()
    square, variance = errors.square().mean(0), targets.double().var(0, correction=0)
    r2 = (1 - square / variance).masked_fill(variance == 0, math.nan)
    return list(zip(errors.abs().mean(0).tolist(), square.sqrt().tolist(), r2.tolist(), strict=True))
