"""Early stopping: end a fit that no longer improves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from augment.params import Choice, Count, Number, setting
from augment.support.text import amount
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.registry import configurable
from trainer.loop.callback import Callback, CancelFit, Phase
from trainer.tasks.display import MetricsRow
from trainer.tasks.registry import ALL_MONITORED, MONITORED_AS, monitored, smaller_is_better
from trainer.tasks.task import AUTO

if TYPE_CHECKING:
    from trainer.loop.learner import Learner


@configurable
@dataclass(eq=False)
class EarlyStopping(Callback):
    """Ends the fit when the monitored metric has not improved for some epochs.

    It reads only the recorder's rows, so that a resumed run behaves like an uninterrupted one. It decides only after
    epochs that have the metric: if validation is rare, the epochs in between are counted at the next one.
    """

    monitor: str = setting(
        Choice(
            aliases=("metric",),
            default=AUTO,
            options=ALL_MONITORED,
            others=MONITORED_AS,
            doc="metric that has to improve; auto: as checkpoint.monitor",
        )
    )
    patience: int = setting(Count(default=10, within=(1, 10**6), doc="epochs without improvement that end the fit"))
    min_delta: float = setting(
        Number(default=0.0, within=(0, 1e9), doc="a change counts as an improvement if it is larger than this")
    )
    order = Phase.LAST
    reason: str = field(default="", init=False)  # see `Callback`

    def before_fit(self, learner: Learner) -> None:
        """Clear the reason of an earlier fit."""
        self.reason = ""

    def after_epoch(self, learner: Learner) -> None:
        """End the fit if there was no improvement for `patience` epochs."""
        recorder = learner.find(Recorder)
        rows = recorder.rows[recorder.since :]
        monitor = monitored(self.monitor, learner.task)
        if monitor not in rows[-1]:
            return
        if self._epochs_without(rows, monitor) >= self.patience and learner.epoch + 1 < learner.epochs:
            self.reason = f"no better {monitor} in {amount(self.patience, 'epoch')}"
            raise CancelFit

    def _epochs_without(self, rows: Sequence[MetricsRow], monitor: str) -> int:
        """Return the number of epochs since the last improvement."""
        sign = -1.0 if smaller_is_better(monitor) else 1.0
        best, last = -math.inf, -1
        for index, row in enumerate(rows):
            # The first value counts, even the worst possible one; NaN never does.
            if sign * row.get(monitor, math.nan) > best + self.min_delta:
                best, last = sign * row[monitor], index
        return len(rows) - 1 - last


def reason_of(callbacks: Iterable[Callback]) -> str:
    """Return why one of the callbacks ended the fit early; empty if none did."""
    return next((callback.reason for callback in callbacks if callback.reason), "")
