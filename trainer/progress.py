"""The progress bar and a line an epoch, for people."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from augment.dataset import Task
from trainer.callback import Callback
from trainer.callbacks import configurable
from trainer.learner import Learner
from trainer.recorder import Recorder
from trainer.stages import StagedLoader
from trainer.tasks import Row

# A column of the line an epoch: key of the row, title, width, and how it is written.
Column = tuple[str, str, int, str]

_LOSSES: tuple[Column, ...] = (("train_loss", "train loss", 11, "{:.4f}"), ("val_loss", "val loss", 9, "{:.4f}"))
_PACE: tuple[Column, ...] = (
    ("lr", "lr", 9, "{:.2g}"),
    ("images_per_second", "img/s", 8, "{:,.0f}"),
    ("seconds", "seconds", 8, "{:.1f}"),
)
_COLUMNS: Mapping[Task, tuple[Column, ...]] = MappingProxyType(
    {
        "classify": (
            *(_LOSSES[0], ("train_accuracy", "train acc", 10, "{:.4f}")),
            *(_LOSSES[1], ("val_accuracy", "val acc", 8, "{:.4f}")),
            *_PACE,
        ),
        "multilabel": (*_LOSSES, ("val_map", "val mAP", 8, "{:.4f}"), *_PACE),
        "regress": (
            *(_LOSSES[0], ("train_mae", "train mae", 10, "{:.4g}")),
            *(_LOSSES[1], ("val_mae", "val mae", 9, "{:.4g}")),
            *_PACE,
        ),
    }
)


@configurable
@dataclass(eq=False)
class ProgressBar(Callback):
    """Shows a bar with running loss, accuracy and img/s, and prints a line an epoch."""

    order: ClassVar[int] = 80
    console: Console = field(default_factory=Console, init=False)
    _bar: Progress | None = field(default=None, init=False)
    _task: Any = field(default=None, init=False)

    def before_fit(self, learner: Learner) -> None:
        """Print the head of the table and start the bar."""
        head = "".join(f"{title:>{width}}" for _, title, width, _ in _COLUMNS[learner.task])
        self.console.print(f"{'epoch':>8}{head}", style="bold", highlight=False)
        for row in learner.find(Recorder).rows:
            self._print(row, learner)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self._bar.start()

    def before_train(self, learner: Learner) -> None:
        """Start the bar of the pass; say which size it has if another stage begins."""
        if isinstance(learner.train_loader, StagedLoader) and (stage := learner.train_loader.begins(learner.epoch)):
            self.console.print(f"epoch {learner.epoch + 1}: {stage}", highlight=False)
        self._start(learner, "train", learner.batches_in(learner.epoch), learner.position.batch)

    def before_validate(self, learner: Learner) -> None:
        """Start the bar of the pass."""
        self._start(learner, "val", learner.batches(learner.val_loader), 0)

    def after_batch(self, learner: Learner) -> None:
        """Move the bar; its values are those of the recorder's last look, no transfer of its own."""
        if self._bar is not None:
            self._bar.update(self._task, advance=1, values=_running(learner.find(Recorder).latest))

    def after_epoch(self, learner: Learner) -> None:
        """Print the epoch's line."""
        self._print(learner.find(Recorder).rows[-1], learner)

    def after_fit(self, learner: Learner) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None

    def _start(self, learner: Learner, what: str, total: int, completed: int) -> None:
        if self._bar is None:
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        text = f"epoch {learner.epoch + 1}/{learner.epochs} {what}"
        self._task = self._bar.add_task(text, total=total, completed=completed, values="")

    def _print(self, row: Row, learner: Learner) -> None:
        columns = _COLUMNS[learner.task]
        cells = (template.format(row[key]) if key in row else "-" for key, _, _, template in columns)
        line = "".join(f"{cell:>{width}}" for cell, (_, _, width, _) in zip(cells, columns, strict=True))
        epoch = f"{int(row['epoch']) + 1}/{learner.epochs}"
        self.console.print(f"{epoch:>8}{line}", highlight=False)


def _running(latest: Row) -> str:
    if not latest:
        return ""
    scores = {
        "loss": "loss {:.3f}",
        "accuracy": "acc {:.3f}",
        "mae": "mae {:.3g}",
        "images_per_second": "{:,.0f} img/s",
    }
    return "  ".join(template.format(latest[key]) for key, template in scores.items() if key in latest)
