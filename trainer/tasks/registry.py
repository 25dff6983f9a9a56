"""The registry of tasks, and facts about metrics by their keys in metrics.jsonl."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from math import inf, isfinite, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from augment.params import Choice, settings
from augment.support.errors import UserError, plugin_hint, suggest
from trainer.tasks.loss import NamedLoss
from trainer.tasks.metric import METRICS, Column, MetricsRow, columns_of
from trainer.tasks.task import AUTO, Task

T = TypeVar("T", bound=type[Task[Any]])

_TASKS: dict[str, Task[Any]] = {}
DEFAULT = "classify"  # the task of runs that do not name one

# Settings that change the meaning of the validation loss, except in classification.
LOSS_SETTINGS = ("fit.loss", "fit.loss_options", "fit.standardize")


@cache
def known_tasks() -> Mapping[str, Task[Any]]:
    """Import the tasks, losses and metrics in this package, and return the tasks by name."""
    package = Path(__file__).parent
    for file in sorted(package.rglob("[!_]*.py")):
        import_module(".".join([str(__package__), *file.relative_to(package).with_suffix("").parts]))
    return MappingProxyType(_TASKS)


class _Monitored(Collection[str]):
    """The keys that callbacks may monitor, including keys of plugins.

    Keys of one class or number, such as val_mae_age, are included. These keys depend on the data, so only their form
    is checked.
    """

    def __contains__(self, key: object) -> bool:
        return key in list(self) or any(_unit_columns(str(key)))

    def __iter__(self) -> Iterator[str]:
        tasks = (task for _, task in sorted(known_tasks().items()))
        keys = (column.key for task in tasks for column in columns_of(task.metrics))
        return iter(dict.fromkeys((AUTO, *keys)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


ALL_MONITORED = _Monitored()
# Our names for metrics of other libraries.
METRIC_ALIASES = {
    "acc": "accuracy",
    "f1_macro": "f1",
    "dice": "f1",
    "kappa": "cohen_kappa",
    "mcc": "matthews_corrcoef",
    **{rate: f"{rate}_macro" for rate in ("precision", "recall", "specificity")},
}
_KEY_ALIASES = {f"{val}{name}": f"val_{known}" for name, known in METRIC_ALIASES.items() for val in ("", "val_")}
_KEY_ALIASES["train_acc"] = "train_accuracy"


def monitor_param(doc: str) -> Choice:
    """Return a callback's parameter for the metric to monitor."""
    return Choice(
        aliases=("metric",),
        default=AUTO,
        options=ALL_MONITORED,
        others=_KEY_ALIASES,
        hint=plugin_hint("metric"),
        doc=doc,
    )


def register(cls: T) -> T:
    """Register a task under its `name`."""
    _TASKS[cls.name] = cls()
    return cls


def task_named(name: str) -> Task[Any]:
    """Return a registered task.

    Raises:
        UserError: an unknown task.
    """
    known = known_tasks()
    if name not in known:
        raise UserError(f"unknown task '{name}'.{suggest(name, known)}")
    return known[name]


def task_of(rows: Iterable[Mapping[str, float]]) -> Task[Any]:
    """Return the task with the most metrics in the rows, or classification if the rows have no known metric."""
    keys = {key for row in rows for key in row} - {"train_loss", "val_loss"}
    known = known_tasks()

    def found(task: Task[Any]) -> int:
        return sum(column.key in keys for column in columns_of(task.metrics))

    return max((known[DEFAULT], *known.values()), key=found)


def monitored(monitor: str, task: Task[Any]) -> str:
    """Return the metrics key that a callback monitors."""
    return task.monitor if monitor == AUTO else monitor


def loss_settings_of(key: str, task: Task[Any]) -> tuple[str, ...]:
    """Return the settings that change the meaning of a score. Only losses have such settings."""
    plain = key != "train_loss" and task.loss_type is not NamedLoss
    return LOSS_SETTINGS if key.endswith("_loss") and not plain else ()


def check_metrics(task: Task[Any], classes: Sequence[str], names: Iterable[str], model: object = None) -> None:
    """Check the names in `fit.metrics`, and that all declared metrics belong to known tasks.

    Raises:
        UserError: an unknown task, or a metric that the task does not measure for these classes and this model.
    """
    for other, name in METRICS:
        if other not in known_tasks():
            raise UserError(f"metric {name}: unknown task '{other}'.{suggest(other, known_tasks())}")
    allowed, names = [metric.name for metric in task.measured(classes, None, model)], list(names)
    known = {*allowed, *(metric.name for metric in task.unit_metrics(classes, names))}
    if unknown := next((name for name in names if name not in known), None):
        # There may be thousands of per-class metrics, so only their form is listed.
        forms = [f", {metric.stem}_{task.unit.upper()}" for metric in task.metrics if metric.of_class is not None]
        tops = ", topK" if DEFAULT in task.lineage else ""
        others = {name: other for name, other in METRIC_ALIASES.items() if other in allowed}
        raise UserError(
            f"fit.metrics: the task {task.name} with {task.count(len(classes))} has no metric '{unknown}'."
            f"{suggest(unknown, allowed, others)[:-1]}{''.join(forms)}{tops}. {plugin_hint('metric')}"
        )


def check_views(tta: str, task: Task[Any]) -> None:
    """Check that a task supports a test-time augmentation.

    Raises:
        UserError: the task cannot average its views.
    """
    if tta not in task.views:
        raise UserError(
            f"fit.tta={tta}: a model that predicts {task.kind.units} cannot use it. Allowed: {', '.join(task.views)}."
        )


def smaller_is_better(key: str) -> bool:
    """Return whether a smaller value of a metric is better. Unknown metrics: false."""
    return any(column.smaller for column in _columns(key))


def range_of(key: str) -> tuple[float, float]:
    """Return the lowest and highest possible value of a metric. An unknown metric has no limits."""
    return next((column.within for column in _columns(key)), (-inf, inf))


def _columns(key: str) -> list[Column]:
    known = [column for task in known_tasks().values() for column in task.columns if column.key == key]
    if not known and key in _FROM_RUNS:
        return [_FROM_RUNS[key]]
    return known or [*_unit_columns(key)]


def _unit_columns(key: str) -> Iterator[Column]:
    """Yield the columns from which a per-class key may be derived, such as val_mae for val_mae_age."""
    if re.fullmatch(r"val_top[1-9]\d*", key):
        return iter(METRICS[DEFAULT, "top5"].columns)
    columns = (c for task in known_tasks().values() for m in task.metrics if task.has_units(m) for c in m.columns)
    return (column for column in columns if key.startswith(f"{column.key.removesuffix('_macro')}_"))


# Columns of plugin metrics, as run folders describe them. The plugins are not imported here.
_FROM_RUNS: dict[str, Column] = {}


def describe_metrics(task: Task[Any]) -> dict[str, list[Any]]:
    """Describe the metrics of plugins for `learn_metrics`: key -> [whether smaller is better, lowest, highest]."""
    columns = (column for metric in task.metrics if metric.own for column in metric.columns)
    return {column.key: [column.smaller, *column.within] for column in columns}


def learn_metrics(described: object) -> None:
    """Remember the metrics that a run describes. Ignore invalid descriptions."""
    for key, value in described.items() if isinstance(described, Mapping) else ():
        match value:
            case [bool(smaller), int() | float() | None as low, int() | float() | None as high]:
                within = (-inf if low is None else low, inf if high is None else high)  # JSON has no infinity
                _FROM_RUNS[key] = Column(key, key, smaller=smaller, within=within)


def best_row(rows: Iterable[Mapping[str, float]], key: str) -> MetricsRow:
    """Return the first row with the best value, or an empty row if no row has a finite value."""
    sign = -1 if smaller_is_better(key) else 1
    scored = [row for row in rows if isfinite(row.get(key, nan))]
    return dict(max(scored, key=lambda row: sign * row[key], default={}))


def unused_settings(fit: object, task: Task[Any]) -> Iterator[str]:
    """Yield a sentence for each loss setting that is set but has no effect for a task."""
    for name in dict.fromkeys(name for other in known_tasks().values() for name in other.loss_settings):
        param, value = settings(type(fit))[name], getattr(fit, name)
        if name not in task.loss_settings and value != param.default:
            yield f"fit.{name}={param.show(value)} has no effect, because the model predicts {task.units}"
