"""The callback that applies schedules to the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainer.loop.callback import Callback, Phase
from trainer.optim.schedule import Schedule, position

if TYPE_CHECKING:
    from trainer.loop.learner import Learner


class ParamScheduler(Callback):
    """Sets hyperparameters of the optimizer before every step, from the position in the whole fit.

    Args:
        schedules: the schedules by keys of the optimizer's parameter groups, such as "lr". See
            `trainer.optim.optimizers.set_value`.
    """

    order = Phase.MEASURE

    def __init__(self, schedules: Mapping[str, Schedule]) -> None:
        self.schedules = dict(schedules)

    def before_batch(self, learner: Learner) -> None:
        """Set the values, in training."""
        from trainer.optim.optimizers import set_value

        if learner.training:
            values = self.values(learner)
            for group in learner.optimizer.param_groups:
                for name, value in values.items():
                    set_value(group, name, value)

    def values(self, learner: Learner) -> dict[str, float]:
        """Return the values of the current training batch, by the schedules' keys; no device is asked."""
        # Use the position of the first batch of a step, so that it depends on the step alone.
        ahead = learner.position.batch - 1 - learner.group.first
        now = position(learner.step - ahead, learner.total_steps)
        return {name: schedule(now) for name, schedule in self.schedules.items()}
