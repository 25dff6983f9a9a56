"""The callback that clips gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from augment.params import Number, setting
from trainer.callbacks.registry import configurable
from trainer.loop.callback import Callback

if TYPE_CHECKING:
    from trainer.loop.learner import Learner


@configurable
@dataclass(eq=False)
class GradClip(Callback):
    """Scales the gradients down if their total norm exceeds a limit (Pascanu et al. 2013)."""

    max_norm: float = setting(Number(default=1.0, within=(0, 1e9), above=0, doc="largest norm of all gradients"))

    def before_step(self, learner: Learner) -> None:
        """Clip the gradients, without a check for NaN, which would wait for the device."""
        from torch import nn

        nn.utils.clip_grad_norm_(learner.model.parameters(), self.max_norm, error_if_nonfinite=False)
