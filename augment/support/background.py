"""Run work in background threads: a call whose result is needed later, and calls in order."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
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


class Worker:
    """Calls functions one after the other in a thread that the end of the program does not wait for.

    Args:
        on_error: gets the first error, in the thread; no further function is called then.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._failed = False
        self._thread = Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def add(self, work: Callable[[], None]) -> None:
        """Call a function after all that were added before."""
        if not self._failed:
            self._waiting.put(work)

    def close(self, last: Callable[[], None], seconds: float) -> bool:
        """Add nothing more; return whether all has been done within some seconds.

        Args:
            last: called at the end, even after an error; one of its own is not reported then.
            seconds: how long to wait.
        """
        self._last = last
        self._waiting.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            if not self._failed:
                self._try(work)
        self._try(self._last)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # nobody else would learn of it
            failed, self._failed = self._failed, True
            if not failed:
                self._on_error(error)
