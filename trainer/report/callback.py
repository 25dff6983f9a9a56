"""The callback that writes the report of a run after its fit."""

import logging
import sys
from dataclasses import dataclass, field
from time import monotonic
from typing import ClassVar

from augment.params import Count, setting
from augment.support.errors import UserError, first_line
from augment.support.text import printable
from trainer.callbacks.registry import configurable
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner
from trainer.report.record import MISTAKES, REPORT_FILE
from trainer.run.summary import summarize

log = logging.getLogger(__name__)


@configurable
@dataclass(eq=False)
class Report(Callback):
    """Writes report.html after the fit: scores, findings, curves, classes, worst mistakes, and how to run it again."""

    mistakes: int = setting(Count(default=MISTAKES, within=(0, 96), doc="number of mistakes to show, worst first"))
    # After the callbacks whose files it reads; before Interrupt restores Ctrl-C, so that a second press ends it.
    order: ClassVar[int] = 85
    _begun: float = field(default_factory=monotonic, init=False)

    def after_fit(self, learner: Learner) -> None:
        """Write the report, also for an interrupted or failed fit, unless Ctrl-C was pressed a second time."""
        if learner.folder is None or not learner.folder.is_dir() or isinstance(learner.error, KeyboardInterrupt):
            return
        from trainer.report.page import write_report  # importing matplotlib and Jinja2 takes a while

        try:
            ending = summarize(learner, learner.folder, monotonic() - self._begun)
            write_report(learner.folder, ending, trust=True)  # of this process, which has imported what there is
        except (OSError, UserError) as error:
            # A report that cannot be written must not fail the run.
            log.warning("no %s: %s", REPORT_FILE, first_line(error))
            if learner.error is None:  # the log may be on the same full disk
                why = getattr(error, "strerror", None) or first_line(error)
                sys.stderr.write(printable(f"warning: no {REPORT_FILE}: {why}.\n"))
