"""Rates of classes and labels: precision, recall, specificity and F1, as macro and micro averages and per class.

These rates, Cohen's kappa and Matthews' coefficient are computed from a few counts per class. torchmetrics functions
need all predictions, but the masks of a segmentation pass do not fit into memory.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from augment.support.lazy_torch import Tensor
from trainer.tasks.metric import METRICS, SHARE, mean_of_known, metric

# Numbers of samples or pixels, float64: the true positives, predictions and targets of each class, (K,) each, and the
# total number, ().
Counts = tuple[Tensor, Tensor, Tensor, Tensor]
CountClasses = Callable[[Tensor, Tensor], Counts]  # takes the outputs and targets of a pass

# Each rate takes `Counts` and returns a value for each class. An undefined rate is NaN.
RATES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "recall": lambda right, predicted, actual, total: right / actual,
    "precision": lambda right, predicted, actual, total: right / predicted,
    "specificity": lambda right, predicted, actual, total: (total - actual - predicted + right) / (total - actual),
    "f1": lambda right, predicted, actual, total: 2 * right / (predicted + actual),
}


def rates_of_classes(counts: Counts, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return all rates of each class by name."""
    columns = {name: rate(*counts).tolist() for name, rate in RATES.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return dict(zip(names, rows, strict=True))


def kappa_of(right: Tensor, predicted: Tensor, actual: Tensor, total: Tensor) -> float:
    """Return Cohen's kappa: the agreement beyond chance, relative to perfect agreement (Cohen 1960)."""
    chance = (predicted * actual).sum() / total**2
    return float((right.sum() / total - chance) / (1 - chance))


def matthews_of(right: Tensor, predicted: Tensor, actual: Tensor, total: Tensor) -> float:
    """Return Matthews' correlation coefficient for any number of classes (Gorodkin 2004).

    As in scikit-learn, it is 0 if all targets or all predictions have the same class.
    """
    variances = (total**2 - predicted.square().sum()) * (total**2 - actual.square().sum())
    return float((right.sum() * total - (predicted * actual).sum()) / variances.sqrt()) if variances else 0.0


def declare_rates(task: str, count: CountClasses) -> None:
    """Declare the rates of a task as optional metrics: `recall_macro`, `recall_micro` and so on.

    Each rate is also a metric per class, such as `recall_cat`. As in scikit-learn, an undefined rate is 0. Macro
    averages skip classes that occur in neither targets nor predictions.
    """
    for name, rate in RATES.items():

        def each(outputs: Tensor, targets: Tensor, rate: Callable[..., Tensor] = rate) -> Tensor:
            counts = count(outputs, targets)
            return rate(*counts).nan_to_num(0).masked_fill(counts[1] + counts[2] == 0, math.nan)

        def macro(outputs: Tensor, targets: Tensor, each: Callable[..., Tensor] = each) -> float:
            return mean_of_known(each(outputs, targets).tolist())

        def micro(outputs: Tensor, targets: Tensor, rate: Callable[..., Tensor] = rate) -> float:
            *classes, total = count(outputs, targets)
            value = rate(*(numbers.sum() for numbers in classes), total * len(classes[0]))
            return float(value.nan_to_num(0).masked_fill(total == 0, math.nan))

        key = name if name == "f1" else f"{name}_macro"  # `f1` keeps its name for compatibility
        metric(task, name=key, within=SHARE, whole=True, on_request=True)(macro)
        metric(task, name=f"{name}_micro", within=SHARE, whole=True, on_request=True)(micro)
        METRICS[task, key] = replace(METRICS[task, key], of_class=each)


def declare_agreement(task: str, count: CountClasses) -> None:
    """Declare Cohen's kappa and Matthews' coefficient of a task whose samples have one class each."""
    for name, of in {"cohen_kappa": kappa_of, "matthews_corrcoef": matthews_of}.items():

        def agreement(outputs: Tensor, targets: Tensor, of: Callable[..., float] = of) -> float:
            return of(*count(outputs, targets))

        metric(task, name=name, within=(-1, 1), whole=True, on_request=True)(agreement)
