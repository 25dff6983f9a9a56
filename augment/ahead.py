"""Work that is begun before its result is asked for, in a thread of its own."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from augment.errors import UserError

T = TypeVar("T")

log = logging.getLogger(__name__)


class Ahead(Generic[T]):
    """The result of a function that has been started and may not have returned yet.

    Either `result` or `drop` is to be called; both wait for the thread's end.

    Args:
        work: is called at once, in another thread.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._future = self._pool.submit(work)
        self._pool.shutdown(wait=False)  # the thread ends with the work

    def result(self) -> T:
        """Wait for the result and return it, or raise what the function raised."""
        self._pool.shutdown()
        return self._future.result()

    def drop(self) -> None:
        """Wait for the end of work whose result nobody needs any more; a failure is logged, not raised."""
        self._pool.shutdown()
        if error := self._future.exception():
            # A mistake of a user's is said in a sentence.
            log.warning(
                "what was begun ahead, and is not needed any more, failed: %s",
                error,
                exc_info=None if isinstance(error, UserError) else error,
            )
