"""Run work in a background thread before its result is needed."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from augment.support.errors import UserError

T = TypeVar("T")

log = logging.getLogger(__name__)


class Background(Generic[T]):
    """A function call that runs in a background thread.

    Call either `result` or `drop`; both wait until the thread has ended.

    Args:
        work: the function to call; it starts at once.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="background")
        self._future = self._pool.submit(work)
        self._pool.shutdown(wait=False)  # the thread ends with the work

    @property
    def done(self) -> bool:
        """Whether it has returned or raised."""
        return self._future.done()

    def result(self) -> T:
        """Wait for the result and return it, or raise what the function raised."""
        self._pool.shutdown()
        return self._future.result()

    def drop(self) -> None:
        """Wait for work whose result is no longer needed; log a failure instead of raising it."""
        self._pool.shutdown()
        if error := self._future.exception():
            log.warning(
                "background work whose result is no longer needed failed: %s",
                error,
                exc_info=None if isinstance(error, UserError) else error,  # a user's mistake needs no traceback
            )
