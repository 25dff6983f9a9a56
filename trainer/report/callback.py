"""The callback that writes the report of a run: in the background during its fit, and completely after it."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from augment.params import Count, setting
from augment.support.background import Refresher
from augment.support.errors import UserError, first_line
from augment.support.text import printable
from trainer.callbacks.checkpoint import best_model, best_of
from trainer.callbacks.progress import Pace
from trainer.callbacks.recorder import Recorder, StepRow
from trainer.callbacks.registry import configurable
from trainer.loop.callback import Callback, Phase
from trainer.report.record import MISTAKES, REPORT_FILE, RunRecord, read_record, write_mistakes
from trainer.run.summary import RUNNING, Summary, summarize
from trainer.tasks.display import MetricsRow

if TYPE_CHECKING:
    from trainer.loop.learner import Learner

log = logging.getLogger(__name__)


@configurable
@dataclass(eq=False)
class Report(Callback):
    """Writes report.html: scores, findings, curves; after the fit also classes, the worst mistakes and the command."""

    mistakes: int = setting(Count(default=MISTAKES, within=(0, 96), doc="number of mistakes to show, worst first"))
    # After the callbacks whose files it reads; before Interrupt restores Ctrl-C, so that a second press ends it.
    main_only = True
    order = Phase.SHOW
    _refresher: Refresher | None = field(default=None, init=False)

    def before_fit(self, learner: Learner) -> None:
        """Forget the fit before."""
        self._refresher = Refresher(REPORT_FILE)

    def after_batch(self, learner: Learner) -> None:
        """Write the report of the run so far in the background, if the last one is old."""
        refresher, folder = self._refresher, learner.folder
        if refresher is not None and folder is not None and learner.training and refresher.due:
            left = next((c.left(learner) for c in learner.callbacks if isinstance(c, Pace)), None)
            recorder = learner.find(Recorder)
            run, seconds = learner.run, monotonic() - learner.run.began
            best, done = dict(best_of(learner)[1]), len(recorder.rows)
            ending = Summary(RUNNING, folder, done, best, seconds=seconds, name=run.name, tags=run.tags)
            rows, steps = list(recorder.rows), list(recorder.steps)
            refresher.start(partial(_write, learner, ending, rows, steps, left))

    def after_fit(self, learner: Learner) -> None:
        """Write the report, also for an interrupted or failed fit, unless Ctrl-C was pressed a second time."""
        if self._refresher is not None:
            self._refresher.finish()
        if learner.folder is None or not learner.folder.is_dir() or isinstance(learner.error, KeyboardInterrupt):
            return
        from trainer.report.page import write_record

        try:
            ending = summarize(learner, learner.folder, monotonic() - learner.run.began)
            recorder = learner.find(Recorder)
            record = _record(learner, ending, recorder.rows, recorder.steps)
            record.add_best(partial(best_model, learner))
            record.add_mistakes(learner.run.val_files, self.mistakes)
            if record.mistakes is not None:
                write_mistakes(record)
            write_record(record)
        except (OSError, UserError) as error:
            # A report that cannot be written must not fail the run.
            log.warning("no %s: %s", REPORT_FILE, first_line(error))
            if learner.error is None:  # the log may be on the same full disk
                why = getattr(error, "strerror", None) or first_line(error)
                sys.stderr.write(printable(f"warning: no {REPORT_FILE}: {why}.\n"))


def _write(learner: Learner, ending: Summary, rows: list[MetricsRow], steps: list[StepRow], left: float | None) -> None:
    """Write the report of a run in progress, unless its folder was deleted."""
    from trainer.report.page import write_record

    if ending.folder.is_dir():
        record = _record(learner, ending, rows, steps)
        record.left = left
        write_record(record)


def _record(learner: Learner, ending: Summary, rows: list[MetricsRow], steps: list[StepRow]) -> RunRecord:
    """Return a record with the measurements of the fit; neither the model nor the device is touched."""
    record = read_record(ending.folder, best=False)
    record.ending, record.best = ending, ending.best
    record.rows, record.steps = list(rows), [step._asdict() for step in steps]
    record.task, record.classes = learner.task, learner.classes
    return record
