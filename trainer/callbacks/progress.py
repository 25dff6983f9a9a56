"""Progress bars, a line for each epoch, and the remaining time of a fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column as TableColumn

from augment.support.console import PlainConsole, progress_bar
from augment.support.formatting import duration
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, Phase, configurable
from trainer.loop.lazy_learner import Learner
from trainer.tasks.metric import PACE, Column, MetricsRow, columns_of

_MAX_EARLIER = 1000  # maximum number of earlier epochs that a resumed run prints


def seconds_left(learner: Learner) -> float | None:
    """Return the remaining seconds of the fit, or None before its second training batch.

    The estimate uses the mean time per batch, including validations. It leaves out the first batch, which waits for its
    pipeline.
    """
    first = learner.find(Recorder).first
    done = learner.progress.batches_done
    if first is None or done == first[1]:
        return None
    begun, done_then = first
    return (monotonic() - begun) / (done - done_then) * (learner.progress.total_batches - done)


@configurable
@dataclass(eq=False)
class ProgressBar(Callback):
    """Shows a bar with running loss, metrics and img/s, and prints a line per epoch. Notebooks show only the lines."""

    main_only = True
    order = Phase.SHOW
    console: Console = field(default_factory=PlainConsole, init=False)
    _bar: Progress | None = field(default=None, init=False)
    _pass: Any = field(default=None, init=False)  # the bar's task for the current pass

    def before_fit(self, learner: Learner) -> None:
        columns = self._fitting_columns(learner)
        head = "".join(f"{column.title:>{_width(column)}}" for column in columns)
        self.console.print(f"{'epoch':>8}{head}", style="bold", highlight=False, soft_wrap=True)
        for row in learner.find(Recorder).rows[-_MAX_EARLIER:]:
            self._print(row, learner)
        self._bar = Progress(
            TextColumn("{task.description}"),
            *(() if self._is_narrow else (BarColumn(bar_width=24),)),
            MofNCompleteColumn(table_column=TableColumn(no_wrap=True)),
            TextColumn("{task.fields[values]}"),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            transient=True,
        )
        self._pass = self._bar.add_task("", values="", left="")
        self._bar.start()

    def before_train(self, learner: Learner) -> None:
        epoch, done = learner.progress.position
        self._start(learner, "train", learner.progress.batches_in(epoch), done)

    def before_validate(self, learner: Learner) -> None:
        self._start(learner, "val", learner.settings.limited(len(learner.val_loader)), 0)

    def after_batch(self, learner: Learner) -> None:
        """Advance the bar. In training, show the values that the recorder has already read."""
        if self._bar is None:  # outside a fit
            return
        values, left = _running(learner) if learner.training else "", _left(learner)
        values = values.split("  ")[0] if self._is_narrow else values
        self._bar.update(self._pass, advance=1, values=values, left=left)

    def after_epoch(self, learner: Learner) -> None:
        self._print(learner.find(Recorder).rows[-1], learner)

    def after_fit(self, learner: Learner) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @property
    def _is_narrow(self) -> bool:
        return self.console.is_terminal and self.console.width < 80

    def _start(self, learner: Learner, name: str, total: int, completed: int) -> None:
        if self._bar is not None:
            text = f"epoch {learner.progress.epoch + 1}/{learner.progress.epochs} {name}"
            self._bar.reset(
                self._pass, total=total, completed=completed, description=text, values="", left=_left(learner)
            )

    def _print(self, row: MetricsRow, learner: Learner) -> None:
        columns = [(column, row.get(column.key)) for column in self._fitting_columns(learner)]
        cells = ["-" if value is None else column.line.format(value) for column, value in columns]
        epoch = f"{int(row['epoch']) + 1}/{learner.progress.epochs}"
        # A number that is wider than its column also has a space before it.
        padded = (f" {cell:>{_width(column) - 1}}" for cell, (column, _) in zip(cells, columns, strict=True))
        self.console.print(f"{epoch:>8}{''.join(padded)}", highlight=False, soft_wrap=True)

    def _fitting_columns(self, learner: Learner) -> list[Column]:
        """Return the columns that fit into the terminal. Columns of `PACE` are left out first."""
        columns = _columns(learner)
        optional = [*reversed(PACE), *reversed([c for c in columns if c.key.startswith("train_")])]
        for column in optional if self.console.is_terminal else ():
            if 8 + sum(map(_width, columns)) > self.console.width and column in columns:
                columns.remove(column)
        return columns


def _running(learner: Learner) -> str:
    """Format the running values of the training pass: "loss 0.1234  acc 0.9876  1,234 img/s"."""
    latest, texts = learner.find(Recorder).latest, []
    for key, title, line, *_ in _columns(learner):
        name = key.removeprefix("train_")
        if name != key and name in latest:
            texts.append(f"{title.removeprefix('train ')} {line.format(latest[name])}")
    return "  ".join([*texts, *([f"{latest['images_per_second']:,.0f} img/s"] if latest else [])])


def _columns(learner: Learner) -> list[Column]:
    val_loss = not learner.task.own_loss
    shown = (*columns_of(learner.find(Recorder).metrics, val_loss=val_loss), *PACE)
    validated = learner.val_loader is not None
    return [column for column in shown if column.line and (validated or not column.key.startswith("val_"))]


def _width(column: Column) -> int:
    return max(len(column.title), 7) + 1  # so a line has 80 characters in classification


def _left(learner: Learner) -> str:
    """Format the remaining time of the fit: "5 min 3 s left". Empty: it is unknown."""
    return "" if (seconds := seconds_left(learner)) is None else f"{duration(seconds)} left"


class PassBar(Callback):
    """Advances a bar on stderr with every batch, if stderr is a terminal.

    Evaluation, prediction and the search for a learning rate use the bar, in a `with` statement that removes it.
    """

    order = Phase.SHOW

    def __init__(self, description: str = "batches", total: int | None = None) -> None:
        self._progress = progress_bar()
        self._pass = self._progress.add_task(description, total=total)

    def after_batch(self, learner: Learner) -> None:
        self.advance()

    def advance(self) -> None:
        self._progress.advance(self._pass)

    def __enter__(self) -> PassBar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()
