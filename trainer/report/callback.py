"""The callback that writes a run's report, in the background during the fit and completely after it."""

import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic

from augment.params import Count, setting
from augment.support.background import Refresher
from augment.support.errors import UserError, describe_error
from augment.support.formatting import printable
from augment.support.untrusted_files import damage_errors
from trainer.callbacks.checkpoint import best_model, kept_model
from trainer.callbacks.progress import seconds_left
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, Phase, configurable
from trainer.loop.lazy_learner import Learner
from trainer.report.run_content import DEFAULT_MISTAKES, REPORT_FILE, RunRecord, write_best
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.summary import RUNNING, summarize


@configurable
@dataclass(eq=False)
class Report(Callback):
    """Writes report.html with scores, findings and curves. After the fit, adds classes and the worst mistakes."""

    mistakes: int = setting(
        Count(default=DEFAULT_MISTAKES, within=(0, 96), doc="number of mistakes to show, worst first")
    )
    main_only = True
    # Run after the callbacks whose files the report reads, and before Interrupt, so that a second Ctrl-C ends the
    # report.
    order = Phase.SHOW
    _refresher: Refresher | None = field(default=None, init=False)

    def before_fit(self, learner: Learner) -> None:
        """Reset the state of an earlier fit."""
        self._refresher = Refresher(REPORT_FILE)

    def after_batch(self, learner: Learner) -> None:
        """Write the report in the background if the last one is old."""
        refresher, folder = self._refresher, learner.folder
        if refresher is not None and folder is not None and learner.training and refresher.due:
            record = _record(learner, folder, seconds_left(learner))
            record.run.summary = replace(record.run.summary, status=RUNNING)
            refresher.start(partial(_write, record))

    def after_fit(self, learner: Learner) -> None:
        """Write the report, also after an interrupted or failed fit. A second Ctrl-C skips it."""
        if self._refresher is not None:
            self._refresher.finish()
        if learner.folder is None or not learner.folder.is_dir() or isinstance(learner.error, KeyboardInterrupt):
            return
        from jinja2 import TemplateError

        from trainer.report.page import write_record

        expected: tuple[type[Exception], ...] = (OSError, UserError)
        if kept_model(learner) is None:  # the best.pt of a resumed run may come from a stranger
            expected = damage_errors(*expected, TemplateError)
        try:
            record = _record(learner, learner.folder)
            from trainer.predictions.activation_maps import maps_of  # it imports PyTorch

            best = partial(best_model, learner)
            record.add_best(best, learner.run.val_files, self.mistakes, partial(maps_of, learner))
            write_best(record)
            write_record(record)
        except expected as error:
            # A report that cannot be written must not fail the run. After a failed fit, a warning would hide the error.
            if learner.error is None:
                why = getattr(error, "strerror", None) or describe_error(error)
                sys.stderr.write(printable(f"warning: {REPORT_FILE} was not written: {why}.\n"))


def _write(record: RunRecord) -> None:
    """Write the report of a running fit, unless its folder was deleted."""
    from trainer.report.page import write_record

    if record.run.folder.is_dir():
        write_record(record)


def _record(learner: Learner, folder: Path, left: float | None = None) -> RunRecord:
    """Return a record with the measurements of the fit. It uses neither the model nor the device."""
    recorder, run = learner.find(Recorder), RunFolder(folder)
    run.summary = summarize(learner, folder, monotonic() - learner.run.began)
    run.rows, run.steps = list(recorder.rows), [step.values() for step in recorder.steps]
    display = learner.task.display(learner.classes, [metric.name for metric in recorder.metrics])
    return RunRecord(run, display, run.summary.best, left=left)
