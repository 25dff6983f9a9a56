"""Rates of classes and labels: precision, recall, specificity and F1, each as macro and micro average and per class.

All of them, Cohen's kappa and Matthews' coefficient follow from a few counts per class. Segmentation keeps only these
counts, because the masks of a pass do not fit into memory. So torchmetrics, which needs the predictions, is not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from augment.support.lazy_torch import Tensor, torch
from trainer.tasks.metric import METRICS, SHARE, mean_of_known, metric


class Counts(NamedTuple):
    """Counts of samples or pixels for each class, (K,) float64."""

    right: Tensor  # have the class, and are predicted to have it
    predicted: Tensor  # are predicted to have the class
    having: Tensor  # have the class
    total: float  # number of all samples or pixels


# Returns the numerator and the denominator of a rate for each class, (K,) each.
Rate = Callable[[Counts], tuple[Tensor, Tensor]]
CountClasses = Callable[[Tensor, Tensor], Counts]


def _specificity(counts: Counts) -> tuple[Tensor, Tensor]:
    others = counts.total - counts.having
    return others - (counts.predicted - counts.right), others


RATES: dict[str, Rate] = {
    "f1": lambda counts: (2 * counts.right, counts.predicted + counts.having),
    "precision": lambda counts: (counts.right, counts.predicted),
    "recall": lambda counts: (counts.right, counts.having),
    "specificity": _specificity,
}


def of_classes(rate: Rate, counts: Counts) -> Tensor:
    """Return a rate for each class, (K,).

    It is NaN for a class that neither targets nor predictions have. Like in scikit-learn, another undefined rate is 0.
    """
    numerator, denominator = rate(counts)
    values = torch.where(denominator > 0, numerator / denominator, 0.0)
    return values.masked_fill(counts.predicted + counts.having == 0, math.nan)


def scores_of_classes(counts: Counts, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return all rates of each class by name."""
    columns = {name: of_classes(rate, counts).tolist() for name, rate in RATES.items()}
    return {name: {rate: values[i] for rate, values in columns.items()} for i, name in enumerate(names)}


def micro_average(rate: Rate, counts: Counts) -> float:
    """Return the rate of all classes together, or NaN without samples."""
    numerator, denominator = (float(values.sum()) for values in rate(counts))
    return numerator / denominator if denominator else math.nan


def kappa_of(counts: Counts) -> float:
    """Return Cohen's kappa: the agreement beyond chance, relative to perfect agreement (Cohen 1960)."""
    if not counts.total:
        return math.nan
    chance = float((counts.predicted * counts.having).sum()) / counts.total**2
    return (float(counts.right.sum()) / counts.total - chance) / (1 - chance) if chance < 1 else math.nan


def matthews_of(counts: Counts) -> float:
    """Return Matthews' correlation coefficient for any number of classes (Gorodkin 2004).

    Like in scikit-learn, it is 0 if all targets or all predictions have the same class.
    """
    if not counts.total:
        return math.nan
    covariance = float(counts.right.sum()) * counts.total - float((counts.predicted * counts.having).sum())
    predicted, having = (counts.total**2 - float(n.square().sum()) for n in (counts.predicted, counts.having))
    return covariance / math.sqrt(predicted * having) if predicted and having else 0.0


def declare_rates(task: str, count: CountClasses) -> None:
    """Declare the rates of a task as metrics on request: `f1`, `f1_micro`, `precision_macro` and so on.

    The macro average also has a variant for each class, such as `precision_cat`.

    Args:
        task: the task.
        count: converts the outputs and targets of a pass to counts.
    """
    for name, rate in RATES.items():

        def each(outputs: Tensor, targets: Tensor, rate: Rate = rate) -> Tensor:
            return of_classes(rate, count(outputs, targets))

        def macro(outputs: Tensor, targets: Tensor, rate: Rate = rate) -> float:
            return mean_of_known(of_classes(rate, count(outputs, targets)).tolist())

        def micro(outputs: Tensor, targets: Tensor, rate: Rate = rate) -> float:
            return micro_average(rate, count(outputs, targets))

        mean = name if name == "f1" else f"{name}_macro"  # f1 is older than the other rates
        metric(task, name=mean, within=SHARE, whole=True, on_request=True)(macro)
        METRICS[task, mean] = replace(METRICS[task, mean], of_class=each)
        metric(task, name=f"{name}_micro", within=SHARE, whole=True, on_request=True)(micro)


def declare_agreement(task: str, count: CountClasses) -> None:
    """Declare Cohen's kappa and Matthews' coefficient of a task, whose samples have one class each."""

    def cohen_kappa(outputs: Tensor, targets: Tensor) -> float:
        return kappa_of(count(outputs, targets))

    def matthews_corrcoef(outputs: Tensor, targets: Tensor) -> float:
        return matthews_of(count(outputs, targets))

    for function in (cohen_kappa, matthews_corrcoef):
        metric(task, within=(-1, 1), whole=True, on_request=True)(function)
