"""The registry of tasks: by name, and by what the rows of a run hold."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from math import inf, isfinite, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from augment.params import settings
from augment.support.errors import UserError, suggest
from trainer.tasks.display import MetricsRow
from trainer.tasks.task import AUTO, Task

T = TypeVar("T", bound=type[Task[Any]])

_TASKS: dict[str, Task[Any]] = {}
DEFAULT = "classify"  # the task of runs that do not name one


@cache
def known_tasks() -> Mapping[str, Task[Any]]:
    """Return a read-only view of the registry, name -> task, with the tasks that the modules of this room register."""
    for file in sorted(Path(__file__).parent.glob("[!_]*.py")):
        import_module(f"{__package__}.{file.stem}")
    return MappingProxyType(_TASKS)


class _Monitored(Collection[str]):
    """The keys that callbacks may monitor, those of plugins' tasks included."""

    def __contains__(self, key: object) -> bool:
        return key in list(self)

    def __iter__(self) -> Iterator[str]:
        keys = (metric.key for task in known_tasks().values() for metric in task.metrics)
        return iter(dict.fromkeys((AUTO, *keys)))

    def __len__(self) -> int:
        return len(list(iter(self)))


ALL_MONITORED = _Monitored()


def register(cls: T) -> T:
    """Register a task under its name."""
    _TASKS[cls.name] = cls()
    return cls


def task_named(name: str) -> Task[Any]:
    """Return a registered task.

    Raises:
        UserError: there is none of this name.
    """
    known = known_tasks()
    if name not in known:
        raise UserError(f"unknown task '{name}'.{suggest(name, known)}")
    return known[name]


def task_of(rows: Iterable[Mapping[str, float]]) -> Task[Any]:
    """Return the task whose own metrics are in the rows; classification if no task's are."""
    keys = {key for row in rows for key in row}
    shared = {"train_loss", "val_loss"}
    known = known_tasks()
    return max((known[DEFAULT], *known.values()), key=lambda task: len(keys & set(task.monitored) - shared))


def monitored(monitor: str, task: Task[Any]) -> str:
    """Return the key of the metrics row that a callback monitors."""
    return task.monitor if monitor == AUTO else monitor


def smaller_is_better(key: str) -> bool:
    """Return whether a smaller value of a metric is better; False for a metric that no task has."""
    return any(metric.key == key and metric.smaller for task in known_tasks().values() for metric in task.columns)


def range_of(key: str) -> tuple[float, float]:
    """Return the lowest and the highest possible value of a metric; anything for a metric that no task has."""
    columns = (metric for task in known_tasks().values() for metric in task.columns if metric.key == key)
    return next((column.within for column in columns), (-inf, inf))


def best_row(rows: Iterable[Mapping[str, float]], key: str) -> MetricsRow:
    """Return the first row with the best value; empty if it is a number in none."""
    sign = -1 if smaller_is_better(key) else 1
    scored = [row for row in rows if isfinite(row.get(key, nan))]
    return dict(max(scored, key=lambda row: sign * row[key], default={}))


def unused_settings(fit: object, task: Task[Any]) -> Iterator[str]:
    """Yield a sentence for each setting of the loss that was set but has no effect with a task.

    Args:
        fit: settings of the fit.
        task: the task of the data.
    """
    for name in dict.fromkeys(name for other in known_tasks().values() for name in other.loss_settings):
        param, value = settings(type(fit))[name], getattr(fit, name)
        if name not in task.loss_settings and value != param.default:
            yield f"fit.{name}={param.show(value)} has no effect where {task.units} are predicted"
