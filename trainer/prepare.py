"""The next validation's pipeline, built while an epoch trains."""

from typing import ClassVar

from augment.loader import Loader
from trainer.callback import Callback
from trainer.learner import Learner


class Prepare(Callback):
    """Has the pipeline of the next validation built in the background while an epoch trains."""

    order: ClassVar[int] = -10

    def __init__(self) -> None:
        self._asked = False

    def before_train(self, learner: Learner) -> None:
        """Wait for the first batch: nothing is to compete with the pipeline that makes it."""
        self._asked = False

    def after_batch(self, learner: Learner) -> None:
        """Begin, once an epoch; most pipelines are built once and for all."""
        if learner.training and not self._asked:
            self._asked = True
            if isinstance(learner.val_loader, Loader):
                learner.val_loader.prepare()
