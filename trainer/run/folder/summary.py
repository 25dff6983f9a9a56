"""How a run ended: its summary and its status."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from augment.support.errors import describe_error
from augment.support.files import shown, write_json
from augment.support.formatting import html_table, plural
from trainer.callbacks.checkpoint import best_of
from trainer.callbacks.optimizer_steps import ending_of
from trainer.callbacks.recorder import Recorder
from trainer.loop.checkpoint import LAST
from trainer.loop.lazy_learner import Learner
from trainer.tasks.registry import describe_metrics, task_of

SUMMARY_FILE, OVERRIDES_FILE = "summary.json", Path(".hydra") / "overrides.yaml"

# The statuses of runs, see `status_of`.
PLANNED, RUNNING, KILLED = "planned", "running", "killed"
FINISHED, FAILED, INTERRUPTED = "finished", "failed", "interrupted"
PRUNED = "pruned"  # ended early by a search


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Attributes:
        status: running, finished, interrupted or failed. Empty: unknown.
        folder: the run's folder.
        epochs: number of finished epochs.
        best: row of the best epoch, by the checkpoint's monitor, or empty. Its validation score is optimistic, because
            it is the reason why the epoch was chosen.
        last: row of the last epoch, or empty. Its score is not optimistic, because it did not choose the epoch.
        seconds: duration of the run in this process. On the command line, this includes starting Python.
        error: why the run failed, or empty.
        stopped: why a callback ended the run before its last epoch, or empty.
        monitor: the key that decides the best epoch, or empty for the main score of the task.
        planned: number of planned epochs, or 0 if unknown.
        name: name of the run, or empty if unknown.
        tags: its tags.
        first_step: seconds until the end of the first training batch, included in `seconds`, or None.
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
        write_json(self.folder / SUMMARY_FILE, {**vars(self), "folder": str(self.folder)})

    def __repr__(self) -> str:
        return f"Summary({self})"

    def _repr_html_(self) -> str:
        """Return an HTML table of the best and the last epoch, for notebooks."""
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
        if best is None:
            score = f"no {key}" if self.best or self.last else "no score"
        else:
            score = f"{key} {best:.4f} in epoch {int(self.best['epoch']) + 1}"
            score = f"best {score}" if self.monitor in ("", key) else f"{score}, the best by {self.monitor}"
        final = f", last {self.last[key]:.4f}" if key in self.last else ""
        early = f" (stopped early: {self.stopped})" if self.stopped else ""
        first = "" if self.first_step is None else f" ({self.first_step:.1f} s to the first step)"
        took = f"{self.seconds:.0f} s{first}, in {shown(self.folder)}"
        fewer = f" of {self.planned}" if self.planned > self.epochs else ""
        epochs = f"{self.epochs}{fewer} {plural(self.planned or self.epochs, 'epoch')}"
        resumable = self.status == INTERRUPTED and (self.folder / LAST).is_file()
        on = f". Continue it with fit.resume={shown(self.folder)}" if resumable else ""
        return f"{self.status} after {epochs}{early}: {score}{final}, {took}{on}"


def summarize(learner: Learner, folder: Path, seconds: float) -> Summary:
    """Summarize a fit that ended `seconds` after the run began. Callbacks can use this from `after_fit` on."""
    recorder, error = learner.find(Recorder), learner.error
    rows = recorder.rows
    monitor, best = best_of(learner)
    return Summary(
        FAILED if error is not None else ending_of(learner),
        folder,
        len(rows),
        best=best,
        last=dict(rows[-1]) if rows else {},
        seconds=seconds,
        error="" if error is None else describe_error(error),
        stopped=next((callback.reason for callback in learner.callbacks if callback.reason), ""),
        monitor=monitor,
        planned=learner.progress.epochs,
        name=learner.run.name,
        tags=learner.run.tags,
        first_step=None if recorder.first is None else seconds - (monotonic() - recorder.first[0]),
        metrics=describe_metrics(learner.task),
    )
