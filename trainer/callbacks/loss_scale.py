"""The callback that reports how the loss of a fit in float16 is scaled."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING

from augment.support.text import amount
from trainer.callbacks.recorder import NonFiniteLossError
from trainer.loop.callback import Callback, Phase

if TYPE_CHECKING:
    from trainer.loop.learner import Learner
    from trainer.loop.scaling import Scaler

log = logging.getLogger(__name__)

# With a scale below this, float16's smallest normal number, even gradients near 1 would vanish: what is not finite is
# not due to the scale.
_LOWEST = 2.0**-14


class LossScale(Callback):
    """Logs the scale and the skipped steps after each epoch; stops the fit if no scale makes the gradients finite.

    Reading them waits for the device, so it is done every `interval` seconds. `trainer.loop.scaling` scales the loss
    and skips steps; the first few of a fit usually are, until the scale is found.

    Args:
        interval: seconds between two checks.
    """

    main_only = True
    order = Phase.MEASURE

    def __init__(self, interval: float = 0.5) -> None:
        self.interval = interval
        self._due = 0.0

    def after_batch(self, learner: Learner) -> None:
        """Check whether a scale can still be found, if it is due."""
        if learner.training and learner.runner.scaler is not None and monotonic() >= self._due:
            self._read(learner.runner.scaler, learner)

    def after_train(self, learner: Learner) -> None:
        """Log the state of the scaling."""
        if learner.runner.scaler is None:
            return
        scale, skipped = self._read(learner.runner.scaler, learner)
        steps = amount(int(skipped), "step")
        log.info("fit.precision=fp16: loss scale %g after epoch %d, %s skipped so far", scale, learner.epoch + 1, steps)

    def _read(self, scaler: Scaler, learner: Learner) -> tuple[float, float]:
        import torch

        scale, skipped = torch.stack([scaler.factor, scaler.skipped.float()]).tolist()
        self._due = monotonic() + self.interval
        if scale < _LOWEST:
            raise NonFiniteLossError(
                "fit.precision=fp16: the gradients are not finite at any scale of the loss, by step "
                f"{learner.step + 1} of {learner.total_steps} (epoch {learner.epoch + 1}). A smaller fit.lr or "
                "fit.precision=bf16, which has the range of fp32, may help."
            )
        return scale, skipped
