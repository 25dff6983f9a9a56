"""The callback that prepares the next validation while an epoch trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.loop.callback import Callback, Phase

if TYPE_CHECKING:
    from trainer.loop.learner import Learner


class Prepare(Callback):
    """Builds the pipeline of the next validation in the background while an epoch trains."""

    order = Phase.MEASURE

    def after_batch(self, learner: Learner) -> None:
        """Start building after an epoch's first batch: nothing should compete with the pipeline that makes it."""
        if learner.training and learner.position.batch == 1:
            learner.val_loader.prepare()
