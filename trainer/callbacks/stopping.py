"""Callbacks that end a fit early: because it no longer improves, or because of Ctrl-C and other signals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from augment.params import Count, Number, setting
from augment.support.signals import StopSignals
from augment.support.text import amount
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.registry import configurable
from trainer.loop.callback import Callback, CancelFit, Learner, Phase
from trainer.tasks.display import MetricsRow
from trainer.tasks.registry import monitor_param, monitored, smaller_is_better


@configurable
@dataclass(eq=False)
class EarlyStopping(Callback):
    """Ends the fit when the monitored metric has not improved for some epochs.

    It reads only the recorder's rows, so that a resumed run behaves like an uninterrupted one. It decides only after
    epochs that have the metric: if validation is rare, the epochs in between are counted at the next one.
    """

    monitor: str = setting(monitor_param("metric that has to improve; auto: as checkpoint.monitor"))
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


class Interrupt(Callback):
    """Turns Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 into a clean end: the batch is finished, all callbacks get `after_fit`.

    A second signal stops at once.

    Attributes:
        pressed: whether a signal ended the fit; one that comes after the last batch does not. Set it to end the fit in
            the same way.
    """

    order = Phase.LAST

    def __init__(self) -> None:
        self.pressed = self._ended = False
        self._signals = StopSignals()

    def before_fit(self, learner: Learner) -> None:
        """Install the signal handlers; only the main thread can."""
        self.pressed = self._ended = False
        self._signals = StopSignals()
        self._signals.hold()
        self._signals.install()

    def after_batch(self, learner: Learner) -> None:
        """End the fit if a signal came; of several ranks, all end it after the same training batch."""
        stops = self.pressed or self._signals.came  # also before the handlers were installed
        if learner.ranks.size > 1:
            stops = learner.training and learner.ranks.agree("stop", stops)
        if stops:
            self.pressed = self._ended = True
            raise CancelFit

    def after_fit(self, learner: Learner) -> None:
        """Restore the previous handlers."""
        if learner.ranks.size > 1:
            self.pressed = self._ended  # what was wished for too late changed nothing
        self.pressed |= isinstance(learner.error, KeyboardInterrupt)
        self._signals.restore()


def status_of(learner: Learner) -> str:
    """Return how a fit ended, from `after_fit` on: finished, interrupted or failed."""
    if isinstance(learner.error, KeyboardInterrupt):
        return "interrupted" if learner.position.epoch < learner.epochs else "finished"
    if learner.error is not None:
        return "failed"
    pressed = any(isinstance(callback, Interrupt) and callback.pressed for callback in learner.callbacks)
    return "interrupted" if pressed else "finished"
