"""A bar for what is no training: evaluation, prediction, the search for a learning rate."""

from types import TracebackType
from typing import ClassVar

from augment.progress import progress_bar
from trainer.callback import Callback
from trainer.learner import Learner


class Bar(Callback):
    """Moves with every batch, on stderr if that is a terminal; a context, so that an error takes it away too.

    Args:
        description: what is going on.
        total: batches in all, if that is known.
    """

    order: ClassVar[int] = 80

    def __init__(self, description: str = "batches", total: int | None = None) -> None:
        self._progress = progress_bar()
        self._task = self._progress.add_task(description, total=total)

    def after_batch(self, learner: Learner) -> None:
        """Move on."""
        self._progress.advance(self._task)

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
