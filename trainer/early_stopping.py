"""Ending a fit that does not get better any more."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from augment.params import Choice, Count, Number, setting
from augment.wording import amount
from trainer.callback import Callback, CancelFit
from trainer.callbacks import configurable
from trainer.learner import Learner
from trainer.recorder import Recorder
from trainer.tasks import ALL_MONITORED, AUTO, Row, monitored, smaller_is_better


@configurable
@dataclass(eq=False)
class EarlyStopping(Callback):
    """Ends the fit when the monitored value has not improved for some epochs.

    It looks at the recorder's rows alone, so that a resumed run counts as one that was never stopped, and only after
    epochs that have the value: where validation is rare, all epochs in between count once it has come.

    Attributes:
        reason: why it ended the fit; empty if it did not.
    """

    monitor: str = setting(
        Choice(default=AUTO, options=ALL_MONITORED, doc="what has to get better; auto: as checkpoint.monitor")
    )
    patience: int = setting(Count(default=10, within=(1, 10**6), doc="epochs without an improvement that end the fit"))
    min_delta: float = setting(Number(default=0.0, within=(0, 1e9), doc="what is no more than this is no improvement"))
    order = 100  # whoever comes after has no after_epoch where the fit ends
    reason: str = field(default="", init=False)

    def before_fit(self, learner: Learner) -> None:
        """Forget the last fit."""
        self.reason = ""

    def after_epoch(self, learner: Learner) -> None:
        """End the fit if it is time."""
        rows = learner.find(Recorder).rows
        monitor = monitored(self.monitor, learner.task)
        if monitor not in rows[-1]:
            return
        if self._epochs_without(rows, monitor) >= self.patience and learner.epoch + 1 < learner.epochs:
            self.reason = f"no better {monitor} in {amount(self.patience, 'epoch')}"
            raise CancelFit

    def _epochs_without(self, rows: Sequence[Row], monitor: str) -> int:
        """Return how many epochs have come after the last improvement."""
        sign = -1.0 if smaller_is_better(monitor) else 1.0
        best, last = -math.inf, -1
        for index, row in enumerate(rows):
            # The first value counts, also if it is worst possible; NaN never does.
            if sign * row.get(monitor, math.nan) > best + self.min_delta:
                best, last = sign * row[monitor], index
        return len(rows) - 1 - last


def reason_of(callbacks: Iterable[Callback]) -> str:
    """Return why one of some callbacks ended the fit early; empty if none did."""
    return next((callback.reason for callback in callbacks if isinstance(callback, EarlyStopping)), "")
