"""Metrics: functions that are declared with the decorator `metric`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple, TypeVar

from augment.support.errors import UserError, first_line
from augment.support.lazy_torch import Tensor
from augment.support.user_code import reject_duplicate

# The measurements of one epoch by their keys in metrics.jsonl.
MetricsRow = dict[str, float]


class Column(NamedTuple):
    """A key in metrics.jsonl, and how the progress line and the report's table of epochs show its values."""

    key: str
    title: str  # heading of the column
    line: str = "{:.4f}"  # format in the progress line. Empty: not shown there
    page: str = ""  # format in the report. Empty: the format in the progress line
    smaller: bool = False  # whether a smaller value is better
    within: tuple[float, float] = (-inf, inf)  # lowest and highest possible value
    above: int = 0  # measured only if the data has more classes, labels or numbers than this


# Ranges of values.
SHARE, POSITIVE = (0.0, 1.0), (0.0, inf)

TRAIN_LOSS = Column("train_loss", "train loss", smaller=True, within=POSITIVE)
VAL_LOSS = Column("val_loss", "val loss", smaller=True, within=POSITIVE)

# The last columns of every task.
PACE = (
    Column("lr", "lr", "{:.2g}"),
    Column("images_per_second", "img/s", "{:,.0f}", within=POSITIVE),
    Column("waiting", "waiting", "", "{:.0%}", smaller=True, within=SHARE),
    Column("gpu_memory_mib", "GPU MiB", "", "{:,.0f}", smaller=True, within=POSITIVE),
    Column("seconds", "seconds", "{:.1f}", smaller=True, within=POSITIVE),
)

M = TypeVar("M", bound=Callable[..., Any])

# All metrics by task name and metric name.
METRICS: dict[tuple[str, str], TaskMetric] = {}


@dataclass(frozen=True)
class TaskMetric:
    """A metric of a task. See `metric` for its fields."""

    name: str  # the end of its keys in metrics.jsonl, after train_ and val_
    function: Callable[[Tensor, Tensor], Any]
    columns: tuple[Column, ...]  # for training and validation, or for validation only
    whole: bool
    on_request: bool
    finish: Callable[[float], float]
    needs: str = ""
    of_class: Callable[[Tensor, Tensor], Tensor] | None = None  # returns a value per class, (K,)

    @property
    def stem(self) -> str:
        """The prefix of the names of per-class metrics, such as `recall` for `recall_macro`."""
        return self.name.removesuffix("_macro")

    @property
    def names(self) -> set[str]:
        """The names that select the metric: its own name and its keys."""
        return {self.name, *(column.key for column in self.columns)}

    @property
    def own(self) -> bool:
        """Whether a plugin declared the metric."""
        return not self.function.__module__.startswith("trainer.")

    def of_unit(self, position: int, name: str) -> TaskMetric:
        """Return the metric for one class, label or number, such as `recall_cat`. It is measured only on request."""

        def function(outputs: Tensor, targets: Tensor) -> Any:
            if self.of_class is not None:
                return self.of_class(outputs, targets)[position]
            return self.function(outputs[:, position, None], targets[:, position, None])

        columns = tuple(
            c._replace(
                key=f"{c.key.removesuffix('_macro')}_{name}",
                title=f"{c.title.removesuffix(' macro')}, {name}",
                line=c.line or "{:.4g}",
            )
            for c in self.columns
        )
        return replace(self, name=f"{self.stem}_{name}", function=function, columns=columns, on_request=True)

    def add_to(self, total: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Add the values of a batch to `total`, (), without waiting for the device.

        Raises:
            UserError: the function does not return one value per sample.
        """
        values, count = self.function(outputs, targets), len(targets)
        if (shape := tuple(getattr(values, "shape", ())))[:1] != (count,):
            raise UserError(
                f"metric {self.name} returns {type(values).__name__} of shape {shape} for {count} samples. Return one "
                f"value per sample, ({count},). With whole=True, return one value for all samples."
            )
        if values.is_floating_point():
            total.add_(values.mean(), alpha=count)
        else:  # integers have an exact sum
            total.add_(values.sum())

    def of_all(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the value for all samples of a pass.

        Raises:
            UserError: the function returns no number.
        """
        value = self.function(outputs, targets)
        try:
            return float(value(outputs, targets) if callable(value) else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"metric {self.name}: {first_line(error)}. Return a number or a torchmetrics metric."
            ) from error


def metric(
    task: str = "classify",
    *,
    name: str = "",
    title: str = "",
    smaller: bool = False,
    within: tuple[float, float] = (-inf, inf),
    whole: bool = False,
    train: bool = True,
    above: int = 0,
    on_request: bool = False,
    finish: Callable[[float], float] = float,
    line: str = "{:.4f}",
    needs: str = "",
) -> Callable[[M], M]:
    """Declare a function `(outputs, targets)` as a metric of a task. metrics.jsonl contains its mean.

    The function returns one value per sample, (N,), on the device. It may return several values per sample, (N, K),
    which have equal weight. With `whole`, the function gets all samples of a validation pass on the CPU. It then
    returns one value, or a torchmetrics metric that computes the value.

    Args:
        task: the task. Tasks derived from it also have the metric.
        name: the end of its keys, after `train_` and `val_`. Default: the name of the function.
        title: heading of the columns, after "train" and "val".
        smaller: whether a smaller value is better.
        within: lowest and highest possible value.
        whole: whether the function needs all samples at once. Then only validation measures it.
        train: whether training also measures it.
        above: measure it only if the data has more classes, labels or numbers than this.
        on_request: in a fit, measure it only if `fit.metrics` or a callback's `monitor` names it.
        finish: converts the mean over the samples into the metric's value.
        line: format in the progress line. Empty: not shown there.
        needs: measure it only with models for which this attribute is true, such as `masks`. Empty: with all models.
    """

    def decorate(function: M) -> M:
        called = name or function.__name__
        heading = title or called.replace("_", " ")
        page = "{:.2%}" if within == SHARE else line or "{:.4g}"
        splits = ("train", "val") if train and not whole else ("val",)
        columns = tuple(
            Column(f"{split}_{called}", f"{split} {heading}", line, page, smaller, within, above) for split in splits
        )
        known = METRICS.get((task, called))
        reject_duplicate("metric", called, known and known.function, function)
        METRICS[task, called] = TaskMetric(called, function, columns, whole, on_request, finish, needs)
        return function

    return decorate


def columns_of(metrics: Iterable[TaskMetric], *, val_loss: bool = True) -> tuple[Column, ...]:
    """Return the columns of losses and metrics. Training comes first. Some tasks have no validation loss."""
    columns = [column for metric in metrics for column in metric.columns]
    train = [column for column in columns if column.key.startswith("train_")]
    loss = (VAL_LOSS,) if val_loss else ()
    return (TRAIN_LOSS, *train, *loss, *(column for column in columns if column not in train))


def mean_of_known(values: Iterable[float]) -> float:
    """Return the mean of the values that are not NaN. If all are NaN, return NaN."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


@dataclass(frozen=True, eq=False)
class Samples:
    """The results of a pass for each sample, in order, on the CPU. Tasks derive classes with more tensors."""

    index: Tensor  # (N,) int64, index into the split's files, or -1 if unknown
    target: Tensor  # (N, ...)


@dataclass(frozen=True, eq=False)
class OutputSamples(Samples):
    output: Tensor  # (N, K) float32, such as logits of labels, or numbers
