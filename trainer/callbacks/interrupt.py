"""The callback that turns Ctrl-C, and other signals that ask to stop, into a clean end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augment.support.signals import StopSignals
from trainer.loop.callback import Callback, CancelFit, Phase

if TYPE_CHECKING:
    from trainer.loop.learner import Learner


def status_of(learner: Learner) -> str:
    """Return how a fit ended, from `after_fit` on: finished, interrupted or failed."""
    if isinstance(learner.error, KeyboardInterrupt):
        return "interrupted" if learner.position.epoch < learner.epochs else "finished"
    if learner.error is not None:
        return "failed"
    pressed = any(isinstance(callback, Interrupt) and callback.pressed for callback in learner.callbacks)
    return "interrupted" if pressed else "finished"


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
