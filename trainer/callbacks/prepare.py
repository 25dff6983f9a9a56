"""The callback that prepares the next validation while an epoch trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.loop.callback import Callback

if TYPE_CHECKING:
    from trainer.loop.learner import Learner


class Prepare(Callback):
    """Builds the pipeline of the next validation in the background while an epoch trains."""

    order: ClassVar[int] = -10

    def __init__(self) -> None:
        self._asked = False

    def before_train(self, learner: Learner) -> None:
        """Wait for the first batch: nothing should compete with the pipeline that makes it."""
        self._asked = False

    def after_batch(self, learner: Learner) -> None:
        """Start building, once per epoch; most pipelines are built only once."""
        if learner.training and not self._asked:
            self._asked = True
            learner.val_loader.prepare()
