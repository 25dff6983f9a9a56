"""What a task is judged by: the score that chooses the best epoch, and what curves and tables show."""

from collections.abc import Iterable, Mapping
from math import isfinite, nan
from types import MappingProxyType
from typing import NamedTuple

from augment.dataset import Task

# What was measured of an epoch, by its name in metrics.jsonl.
Row = dict[str, float]


class Judging(NamedTuple):
    """What a task is judged by.

    Attributes:
        monitor: key of the row that decides which epoch is the best where nothing else is said.
        quantity: what curves show beside the loss, as the keys of rows have it behind train_ and val_.
        title: of that, for people.
        share: whether it is a share, in [0, 1].
        kind: what one of the model's outputs stands for.
    """

    monitor: str
    quantity: str
    title: str
    share: bool
    kind: str

    def counted(self, number: int) -> str:
        """Write how many classes, labels or numbers there are."""
        return f"{number} {self.kind if number == 1 else self.kind + ('es' if self.kind == 'class' else 's')}"


JUDGING: Mapping[Task, Judging] = MappingProxyType(
    {
        "classify": Judging("val_accuracy", "accuracy", "Accuracy", True, "class"),
        "multilabel": Judging("val_map", "map", "Mean average precision", True, "label"),
        "regress": Judging("val_loss", "mae", "Mean absolute error", False, "number"),
    }
)

# What stands for the task's own in `monitor`.
AUTO = "auto"

# The values of a row that a callback may go by, by task.
MONITORED: Mapping[Task, tuple[str, ...]] = MappingProxyType(
    {
        "classify": ("val_accuracy", "val_loss", "train_accuracy", "train_loss"),
        "multilabel": ("val_map", "val_loss", "train_loss"),
        "regress": ("val_loss", "val_mae", "val_rmse", "val_r2", "train_mae", "train_loss"),
    }
)
ALL_MONITORED = (AUTO, *dict.fromkeys(name for names in MONITORED.values() for name in names))


def monitored(monitor: str, task: Task) -> str:
    """Return the key of the row that a callback goes by."""
    return JUDGING[task].monitor if monitor == AUTO else monitor


def smaller_is_better(key: str) -> bool:
    """Say whether a value of the row is better when it is smaller."""
    return key.endswith(("loss", "mae", "rmse"))


def best_row(rows: Iterable[Row], key: str) -> Row:
    """Return the first row in which a value is best; empty if it is a number in none."""
    sign = -1 if smaller_is_better(key) else 1
    scored = [row for row in rows if isfinite(row.get(key, nan))]
    return max(scored, key=lambda row: sign * row[key], default={})


def task_of(rows: Iterable[Mapping[str, float]]) -> Task:
    """Tell the task from rows of metrics, which name what it is judged by; classification where none does."""
    keys = {key for row in rows for key in row}
    if "val_map" in keys:
        return "multilabel"
    return "regress" if "train_mae" in keys or "val_mae" in keys else "classify"
