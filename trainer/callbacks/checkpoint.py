"""The callback that saves `last.pt` and `best.pt`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic

from augment.params import Count, Number, setting
from augment.params.pixel_format import RGB
from augment.support.background import Background
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, Phase, configurable
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load, save, to_host
from trainer.loop.lazy_learner import Learner
from trainer.loop.progress import Position
from trainer.tasks.metric import MetricsRow
from trainer.tasks.registry import best_row, monitor_param, monitored
from trainer.tasks.task import AUTO


def best_of(learner: Learner) -> tuple[str, MetricsRow]:
    """Return the metric that selects the best epoch, and the row of this epoch, empty before the first epoch."""
    recorder = learner.find(Recorder)
    monitor = monitored(next((c.monitor for c in learner.callbacks if isinstance(c, Checkpoint)), AUTO), learner.task)
    return monitor, best_row(recorder.rows[recorder.since :], monitor)


def kept_model(learner: Learner) -> BestModel | None:
    """Return the best model that this fit has found, possibly without weights, or None if it has found none."""
    return next((c.kept for c in learner.callbacks if isinstance(c, Checkpoint)), None)


def best_model(learner: Learner) -> BestModel | None:
    """Return the content of best.pt, possibly without weights, or None if there is no such file.

    The file is read only if a resumed run has not found a better epoch yet.

    Raises:
        UserError: the file cannot be read.
    """
    kept = kept_model(learner)
    file = None if learner.folder is None else learner.folder / BEST
    return kept if kept is not None or file is None or not file.is_file() else load(file, BestModel)


@configurable
@dataclass(eq=False)
class Checkpoint(Callback):
    """Saves `last.pt` regularly and at the end, and `best.pt` when the monitored metric improves.

    `last.pt` contains the states that a resumed run restores. `best.pt` contains the validated model, its metrics, and
    its outputs for each image. Both are written in the background.
    """

    monitor: str = setting(
        monitor_param(
            "metric that selects the best model. auto: the metric of the task, such as val_accuracy in classification, "
            "val_map in multi-label classification and val_loss in regression"
        )
    )
    every: int = setting(
        Count(
            default=1,
            within=(1, 10**6),
            doc="epochs between two writes of last.pt. last.pt is also written with each best.pt",
        )
    )
    every_minutes: float | None = setting(
        Number(
            default=10.0,
            within=(0, 10**6),
            above=0,
            optional=True,
            doc="minutes after which last.pt is also written within an epoch. null: never",
        )
    )
    every_batches: int | None = setting(
        Count(
            within=(1, 10**9),
            optional=True,
            doc="batches after which last.pt is also written within an epoch. Default: never",
        )
    )
    keep: int = setting(
        Count(default=1, within=(0, 100), doc="number of older checkpoints to keep, as last.1.pt, last.2.pt and so on")
    )
    order = Phase.SAVE
    kept: BestModel | None = field(default=None, init=False)  # content of this fit's best.pt, without weights
    _saved: Position | None = field(default=None, init=False)
    _saved_at: float = field(default=0.0, init=False)  # time of the last save, in seconds
    _writing: Background[None] | None = field(default=None, init=False)

    def before_fit(self, learner: Learner) -> None:
        self._saved_at, self._saved, self.kept, self._writing = monotonic(), None, None, None

    def after_batch(self, learner: Learner) -> None:
        """Save last.pt within a training pass if it is due, once all callbacks have handled the batch."""
        if not _saves(learner) or not learner.training:
            return
        if self._writing is not None and self._writing.done:
            self._finish_writing()
        minutes, batches = self.every_minutes, self.every_batches
        due = minutes is not None and learner.ranks.agree(
            "save", learner.ranks.is_main and monotonic() - self._saved_at >= 60 * minutes
        )
        if due or (batches is not None and learner.progress.position.batch % batches == 0):
            learner.after_this_batch(self._save)

    def after_epoch(self, learner: Learner) -> None:
        """Save the best model if the metric has improved, and last.pt if it is due."""
        if not _saves(learner):
            return
        recorder, epoch = learner.find(Recorder), learner.progress.epoch
        row = recorder.rows[-1]
        monitor, found = best_of(learner)
        best = None
        if monitor in row and found.get("epoch", epoch) == epoch:  # also true if all scores are NaN
            samples, task = recorder.samples, learner.task
            best = BestModel(
                model=learner.evaluated_state(),
                row=dict(row),
                samples=None if samples is None else dict(vars(samples)),
                classes=learner.classes,
                task=task.name,
                pixels={} if learner.run.pixels == RGB else learner.run.pixels.plain,
                thresholds=() if samples is None else task.choose_thresholds(samples, learner.classes),
            )
            self.kept = replace(best, model={})
        # last.pt is saved with each best.pt. Otherwise, a killed run could resume before the epoch of best.pt, and end
        # this epoch with other weights.
        self._save(learner, best, last=best is not None or (epoch + 1) % self.every == 0)

    def after_fit(self, learner: Learner) -> None:
        """Save the position in an interrupted epoch. A failed fit keeps its last checkpoint before the failure."""
        if learner.error is not None:
            if self._writing is not None:
                self._writing.drop()
            return
        if _saves(learner) and learner.progress.position != self._saved:
            self._save(learner)
        self._finish_writing()

    def _save(self, learner: Learner, best: BestModel | None = None, *, last: bool = True) -> None:
        """Copy the states, and write them while training continues."""
        self._finish_writing()
        states = {BEST: best, LAST: learner.state() if last else None}
        if learner.folder is not None:
            copies = {
                learner.folder / name: replace(state, **to_host(vars(state)))
                for name, state in states.items()
                if state is not None
            }
            self._writing = Background(partial(_write, copies, self.keep))
        if last:
            self._saved, self._saved_at = learner.progress.position, monotonic()

    def _finish_writing(self) -> None:
        """Wait for the last write in the background, and raise its error."""
        if self._writing is not None:
            self._writing.result()  # Ctrl-C ends the wait, but not the write
            self._writing = None


def _write(states: Mapping[Path, FitState | BestModel], keep: int) -> None:
    for path, state in states.items():
        save(state, path, keep=keep if path.name == LAST else 0)


def _saves(learner: Learner) -> bool:
    """Return whether checkpoints are saved. Only rank 0 has a folder, but all ranks contribute their states."""
    return learner.folder is not None or learner.ranks.size > 1
