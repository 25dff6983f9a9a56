"""The callback that writes the report of a run: in the background during its fit, and completely after it."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from augment.params import Count, setting
from augment.support.background import Background, Refresher
from augment.support.errors import UserError, first_line
from augment.support.text import printable
from trainer.callbacks.checkpoint import best_model, best_of
from trainer.callbacks.plots import BATCH
from trainer.callbacks.progress import Pace
from trainer.callbacks.recorder import Recorder, StepRow
from trainer.callbacks.registry import configurable
from trainer.loop.callback import Callback, Phase
from trainer.models.registry import count_parameters
from trainer.report.record import MISTAKES, REPORT_FILE, Record, read_record
from trainer.run.summary import RUNNING, Summary, summarize
from trainer.tasks.display import MetricsRow

if TYPE_CHECKING:
    from trainer.loop.learner import Learner

log = logging.getLogger(__name__)

_NEAR = 5.0  # seconds before the end of the fit: the report is then drawn only once more, at the end


@configurable
@dataclass(eq=False)
class Report(Callback):
    """Writes report.html: scores, findings, curves; after the fit also classes, the worst mistakes and the command."""

    mistakes: int = setting(Count(default=MISTAKES, within=(0, 96), doc="number of mistakes to show, worst first"))
    # After the callbacks whose files it reads; before Interrupt restores Ctrl-C, so that a second press ends it.
    main_only = True
    order = Phase.SHOW
    _refresher: Refresher | None = field(default=None, init=False)
    _parameters: int = field(default=0, init=False)
    _read: Background[Record] | None = field(default=None, init=False)  # what does not change during the fit
    _batch: Background[None] | None = field(default=None, init=False)  # reads the image of the first batch

    def before_fit(self, learner: Learner) -> None:
        """Forget the fit before."""
        self._refresher, self._read, self._batch = Refresher(REPORT_FILE), None, None
        self._parameters = count_parameters(learner.model)

    def after_batch(self, learner: Learner) -> None:
        """Write the report of the run so far in the background, if the last one is old."""
        refresher, folder = self._refresher, learner.folder
        if folder is not None and self._read is None:
            self._read = Background(partial(self._read_folder, learner, folder))
        if refresher is not None and folder is not None and learner.training and refresher.due:
            left = next((c.left(learner) for c in learner.callbacks if isinstance(c, Pace)), None)
            if left is not None and left < _NEAR:
                return
            recorder, best = learner.find(Recorder), best_of(learner)[1]
            ending = Summary(
                *(RUNNING, folder, len(recorder.rows), dict(best), {}, monotonic() - learner.run.began),
                name=learner.run.name,
                tags=learner.run.tags,
            )
            rows, steps = list(recorder.rows), list(recorder.steps)
            refresher.start(partial(self._write, ending, rows, steps, left))

    def after_train(self, learner: Learner) -> None:
        """Read the image of the first batch in the background, so that the end of the fit need not wait for it."""
        if self._batch is None and learner.folder is not None and (learner.folder / BATCH).is_file():
            self._batch = Background(partial(_read_image, learner.folder / BATCH))

    def after_fit(self, learner: Learner) -> None:
        """Write the report, also for an interrupted or failed fit, unless Ctrl-C was pressed a second time."""
        if self._refresher is not None:
            self._refresher.finish()
        if self._batch is not None:
            self._batch.drop()
        if learner.folder is None or not learner.folder.is_dir() or isinstance(learner.error, KeyboardInterrupt):
            if self._read is not None:
                self._read.drop()
            return
        from trainer.report.page import write_record

        try:
            read = self._read_folder(learner, learner.folder) if self._read is None else self._read.result()
            ending = summarize(learner, learner.folder, monotonic() - learner.run.began)
            recorder = learner.find(Recorder)
            record = _complete(read, ending, recorder.rows, recorder.steps)
            record.add_best(partial(best_model, learner))
            write_record(record)
        except (OSError, UserError) as error:
            # A report that cannot be written must not fail the run.
            log.warning("no %s: %s", REPORT_FILE, first_line(error))
            if learner.error is None:  # the log may be on the same full disk
                why = getattr(error, "strerror", None) or first_line(error)
                sys.stderr.write(printable(f"warning: no {REPORT_FILE}: {why}.\n"))

    def _write(self, ending: Summary, rows: list[MetricsRow], steps: list[StepRow], left: float | None) -> None:
        """Write the report of a run in progress."""
        from trainer.report.page import write_record

        if self._read is None or not ending.folder.is_dir():  # it was deleted
            return
        try:
            read = self._read.result()
        except BaseException:
            self._read = None  # it is read again: an error is raised only once
            raise
        write_record(replace(_complete(read, ending, rows, steps), left=left))

    def _read_folder(self, learner: Learner, folder: Path) -> Record:
        """Read what does not change during the fit; neither the model nor the device is touched."""
        from trainer.report.page import template

        template()  # which takes a while, as do the imports
        read = read_record(folder, trust=True, model=False)  # of this process, which has imported what there is
        return replace(read, task=learner.task, classes=learner.classes, parameters=self._parameters)


def _read_image(file: Path) -> None:
    """Read an image of the page, which remembers it."""
    from trainer.report.images import inline_image

    inline_image(file)


def _complete(read: Record, ending: Summary, rows: list[MetricsRow], steps: list[StepRow]) -> Record:
    """Return a record with the measurements of the fit."""
    running: list[MetricsRow] = [step._asdict() for step in steps]
    return replace(read, ending=ending, rows=list(rows), steps=running, best=ending.best, notes=dict(read.notes))
