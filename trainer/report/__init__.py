"""The report of a run: one HTML file that opens anywhere, written after the fit; `python -m trainer.report RUN` too."""

import logging
from dataclasses import dataclass, field
from time import monotonic
from typing import ClassVar

from augment.errors import UserError, first_line, told
from augment.params import Count, setting
from trainer.callback import Callback
from trainer.callbacks import Interrupt, configurable
from trainer.early_stopping import reason_of
from trainer.learner import Learner

REPORT_FILE = "report.html"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        status: finished, interrupted or failed, or "not ended" of a run that did not come to say.
        seconds: of the process that ended; None where nobody knows.
        error: what it failed of.
        stopped: why it ended before its last epoch.
    """

    status: str
    seconds: float | None
    error: str = ""
    stopped: str = ""


@configurable
@dataclass(eq=False)
class Report(Callback):
    """Writes report.html after the fit: result, findings, curves, classes, worst mistakes, and how to run it again."""

    mistakes: int = setting(Count(default=24, within=(0, 96), doc="most confidently wrong pictures that are shown"))
    # After all others, whose files it reads; before Ctrl-C is given back, so that a second one ends it at once.
    order: ClassVar[int] = 85
    _begun: float = field(default_factory=monotonic, init=False)

    def after_fit(self, learner: Learner) -> None:
        """Write it, also of a fit that was interrupted or failed; nothing but a second Ctrl-C leaves it out."""
        if learner.folder is None or isinstance(learner.error, KeyboardInterrupt):
            return
        from trainer.report.page import write_report  # which reads configurations, and those name callbacks

        try:
            write_report(learner.folder, self._ending(learner))
        except (OSError, UserError) as error:
            # What was trained is worth more than a page about it.
            log.warning("no %s: %s", REPORT_FILE, first_line(error))

    def _ending(self, learner: Learner) -> Ending:
        seconds, error = monotonic() - self._begun, learner.error
        if error is not None:
            return Ending("failed", seconds, told(error))
        pressed = any(isinstance(c, Interrupt) and c.pressed for c in learner.callbacks)
        return Ending("interrupted" if pressed else "finished", seconds, stopped=reason_of(learner.callbacks))
