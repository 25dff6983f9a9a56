"""How a run ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from augment.support.errors import UserError, describe_error
from augment.support.files import shown, write_json
from augment.support.reading import read_as
from augment.support.text import html_table, plural
from trainer.callbacks.checkpoint import best_of
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.stopping import status_of
from trainer.loop.callback import Learner
from trainer.loop.checkpoint import LAST
from trainer.tasks.registry import describe_metrics, task_of

SUMMARY_FILE = "summary.json"

# Statuses of runs; `trainer.run.folder.status_of` tells them apart.
PLANNED, RUNNING, KILLED = "planned", "running", "killed"
FINISHED, FAILED, INTERRUPTED = "finished", "failed", "interrupted"
PRUNED = "pruned"  # finished early, as it was behind other trials of a search


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Attributes:
        status: finished, interrupted or failed.
        folder: the run's folder.
        epochs: number of finished epochs.
        best: row of the best epoch, by the checkpoint's monitor; empty if there is none. Its score on the validation
            data is optimistic, because the epoch was selected by it.
        last: row of the last epoch, which was not selected by its score; empty if there is none.
        seconds: duration of this process's part of the run; on the command line, since the process began.
        error: the error of a failed run; empty if there was none.
        stopped: why a callback ended it before the last epoch; empty if none did.
        monitor: the value that the best epoch was chosen by; empty: the task's own.
        planned: number of planned epochs; 0: unknown.
        name: what people call the run; empty: unknown.
        tags: its tags.
        first_step: the part of `seconds` before the first training batch was done; None: none was.
        metrics: how the metrics of plugins are read, see `trainer.tasks.registry.describe_metrics`.
    """

    status: str
    folder: Path
    epochs: int = 0
    best: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    stopped: str = ""
    monitor: str = ""
    planned: int = 0
    name: str = ""
    tags: tuple[str, ...] = ()
    first_step: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def write(self) -> None:
        """Write summary.json."""
        write_json(self.folder / SUMMARY_FILE, {**vars(self), "folder": str(self.folder)})

    def __repr__(self) -> str:
        return f"Summary({self})"

    def _repr_html_(self) -> str:
        """Draw the best and the last epoch, for notebooks."""
        rows = {name: row for name, row in (("best", self.best), ("last", self.last)) if row}
        keys = [key for key in self.last or self.best if key.startswith(("train_", "val_"))]
        cells = [
            (name, int(row["epoch"]) + 1, *(f"{row[key]:.4f}" if key in row else "-" for key in keys))
            for name, row in rows.items()
        ]
        head = ("", "epoch", *(key.replace("_", " ") for key in keys))
        return html_table(head, cells, title=self.name, last=str(self))

    def __str__(self) -> str:
        key = task_of([self.best, self.last]).monitor
        best = self.best.get(key)
        score = f"no {key}" if self.best or self.last else "no score"
        if best is not None:
            epoch, chosen = int(self.best["epoch"]) + 1, self.monitor in ("", key)
            score = f"best {key} {best:.4f} in epoch {epoch}" if chosen else f"{key} {best:.4f} in epoch {epoch}"
            score += "" if chosen else f", the best by {self.monitor}"
        final = f", last {self.last[key]:.4f}" if key in self.last else ""
        early = f" (stopped early: {self.stopped})" if self.stopped else ""
        first = "" if self.first_step is None else f" ({self.first_step:.1f} s to the first step)"
        took = f"{self.seconds:.0f} s{first}, in {shown(self.folder)}"
        fewer = f" of {self.planned}" if self.planned > self.epochs else ""
        epochs = f"{self.epochs}{fewer} {plural(self.planned or self.epochs, 'epoch')}"
        resumable = self.status == "interrupted" and (self.folder / LAST).is_file()
        on = f"; fit.resume={shown(self.folder)} continues it" if resumable else ""
        return f"{self.status} after {epochs}{early}: {score}{final}, {took}{on}"


def read_summary(folder: Path) -> Summary | None:
    """Return how a run ended; None if it has not, was killed, or its summary is unreadable."""
    try:
        summary = read_as(Summary, folder / SUMMARY_FILE, folder=folder)
    except (OSError, UserError):
        return None
    return None if summary.status == RUNNING else summary


def summarize(learner: Learner, folder: Path, seconds: float) -> Summary:
    """Return how a fit ended, `seconds` after the run began; from the after_fit of callbacks on."""
    recorder, error = learner.find(Recorder), learner.error
    rows = recorder.rows
    monitor, best = best_of(learner)
    return Summary(
        "failed" if error is not None else status_of(learner),
        folder,
        len(rows),
        best=best,
        last=dict(rows[-1]) if rows else {},
        seconds=seconds,
        error="" if error is None else describe_error(error),
        stopped=next((callback.reason for callback in learner.callbacks if callback.reason), ""),
        monitor=monitor,
        planned=learner.epochs,
        name=learner.run.name,
        tags=learner.run.tags,
        first_step=None if recorder.first_at is None else seconds - (monotonic() - recorder.first_at),
        metrics=describe_metrics(learner.task),
    )
