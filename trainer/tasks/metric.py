"""Metrics: functions with one decorator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple, TypeVar

from augment.support.errors import UserError
from augment.support.lazy_torch import Tensor
from augment.support.user_code import refuse_second

# The measurements of one epoch, by their names in metrics.jsonl.
MetricsRow = dict[str, float]


class Column(NamedTuple):
    """A value of a metrics row, as a column of the progress line and of the report's table of epochs."""

    key: str  # key of the row
    title: str  # heading of the column
    line: str = "{:.4f}"  # how the progress line formats it; empty: the progress line leaves it out
    page: str = ""  # how the report formats it; empty: as the progress line
    smaller: bool = False  # whether a smaller value is better
    within: tuple[float, float] = (-inf, inf)  # the lowest and the highest possible value
    above: int = 0  # it is measured where there are more classes, labels or numbers than this


# Ranges of values.
SHARE, POSITIVE = (0.0, 1.0), (0.0, inf)

TRAIN_LOSS = Column("train_loss", "train loss", smaller=True, within=POSITIVE)
VAL_LOSS = Column("val_loss", "val loss", smaller=True, within=POSITIVE)

# Columns of every task, behind its own.
PACE = (
    Column("lr", "lr", "{:.2g}"),
    Column("images_per_second", "img/s", "{:,.0f}", within=POSITIVE),
    Column("waiting", "waiting", "", "{:.0%}", smaller=True, within=SHARE),
    Column("gpu_memory_mib", "GPU MiB", "", "{:,.0f}", smaller=True, within=POSITIVE),
    Column("seconds", "seconds", "{:.1f}", smaller=True, within=POSITIVE),
)

M = TypeVar("M", bound=Callable[..., Any])

# By the name of the task and its own.
METRICS: dict[tuple[str, str], TaskMetric] = {}


@dataclass(frozen=True)
class TaskMetric:
    """A metric of a task, as `metric` declares it.

    Attributes:
        name: its name in a row of metrics, behind train_ and val_.
        columns: its columns in tables; one, of validation, if training does not measure it.
    """

    name: str
    function: Callable[[Tensor, Tensor], Any]
    columns: tuple[Column, ...]
    whole: bool
    on_request: bool
    finish: Callable[[float], float]

    @property
    def names(self) -> set[str]:
        """Its name, and its keys in rows."""
        return {self.name, *(column.key for column in self.columns)}

    @property
    def own(self) -> bool:
        """Whether a plugin declares it."""
        return not self.function.__module__.startswith("trainer.")

    def of_unit(self, position: int, name: str) -> TaskMetric:
        """Return the same metric of one column alone, measured on request under a key that ends in its name."""

        def function(outputs: Tensor, targets: Tensor) -> Any:
            return self.function(outputs[:, position, None], targets[:, position, None])

        columns = tuple(
            c._replace(key=f"{c.key}_{name}", title=f"{c.title}, {name}", line=c.line or "{:.4g}") for c in self.columns
        )
        return replace(self, name=f"{self.name}_{name}", function=function, columns=columns, on_request=True)

    def add_to(self, total: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Add the values of a batch to their sum, (), without waiting for the device.

        Raises:
            UserError: there is not one for each sample.
        """
        values, count = self.function(outputs, targets), len(targets)
        if (shape := tuple(getattr(values, "shape", ())))[:1] != (count,):
            raise UserError(
                f"metric {self.name}: returns {type(values).__name__} of shape {shape} for {count} samples. Allowed: a "
                f"value for each of them, ({count},); with whole=True, one for all samples of a pass."
            )
        if values.is_floating_point():
            total.add_(values.mean(), alpha=count)
        else:  # counted, so that the sum is exact
            total.add_(values.sum())

    def of_all(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the value of a pass.

        Raises:
            UserError: the function returns something else.
        """
        value = self.function(outputs, targets)
        try:
            return float(value(outputs, targets) if callable(value) else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"metric {self.name}: {error}. Allowed: a number, or a metric of torchmetrics.") from error


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
) -> Callable[[M], M]:
    """Declare a function `(outputs, targets)` as a metric of a task, under its own name; the rows have its mean.

    It returns a value for each sample, (N,), on the device, or several, (N, K), which count alike. With `whole` it gets
    all samples of a validation pass, on the CPU, and returns one value, or an object of torchmetrics that computes it.

    Args:
        task: the task, or one that it is derived from.
        name: another name.
        title: heading of its columns, behind "train" and "val".
        smaller: whether a smaller value is better.
        within: the lowest and the highest possible value.
        whole: whether it needs all samples at once; training does not measure it then.
        train: whether training measures it, too.
        above: measure it where there are more classes, labels or numbers than this.
        on_request: measure it only where `fit.metrics` or a callback's `monitor` names it, and in evaluations.
        finish: what turns the mean over the samples into the value.
        line: how the progress line formats it; empty: the progress line leaves it out.
    """

    def decorate(function: M) -> M:
        called = name or function.__name__
        heading, page = title or called.replace("_", " "), "{:.2%}" if within == SHARE else line or "{:.4g}"
        columns = tuple(
            Column(f"{split}_{called}", f"{split} {heading}", line, page, smaller, within, above)
            for split in ("train", "val")[0 if train and not whole else 1 :]
        )
        known = METRICS.get((task, called))
        refuse_second("metric", called, known and known.function, function)
        METRICS[task, called] = TaskMetric(called, function, columns, whole, on_request, finish)
        return function

    return decorate


def columns_of(metrics: Iterable[TaskMetric], *, val_loss: bool = True) -> tuple[Column, ...]:
    """Return the columns of the loss, also in validation if it has one, and of metrics, those of training first."""
    columns = [column for metric in metrics for column in metric.columns]
    train = [column for column in columns if column.key.startswith("train_")]
    loss = (VAL_LOSS,) if val_loss else ()
    return (TRAIN_LOSS, *train, *loss, *(column for column in columns if column not in train))


def mean_of_known(values: Iterable[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there is none."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


@dataclass(frozen=True, eq=False)
class Samples:
    """What a pass predicted for each sample, in the order seen, on the CPU; a task adds tensors of its own."""

    index: Tensor  # (N,) int64, index into the split's files; -1 where it is unknown
    target: Tensor  # (N, ...), the target


@dataclass(frozen=True, eq=False)
class OutputSamples(Samples):
    """Outputs of a pass for each sample."""

    output: Tensor  # (N, K) float32, such as the logit of each label, or each number
