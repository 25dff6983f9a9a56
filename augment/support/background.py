"""Run function calls in background threads: one call, several calls at once or in order, and repeated calls."""

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic, thread_time
from typing import Generic, TypeVar

from augment.support.errors import UserError, first_line

T = TypeVar("T")
R = TypeVar("R")

# Limits of repeated work: minimum seconds between two starts, and maximum share of one CPU core.
_MIN_SECONDS, _MAX_SHARE = 10.0, 0.01

log = logging.getLogger(__name__)


@contextmanager
def frequent_thread_switches() -> Iterator[None]:
    """Let threads switch every 0.2 ms instead of 5 ms, so that training waits less for its turn after a GPU call."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def in_threads(
    work: Callable[[T], R], items: Iterable[T], threads: int, ahead: int | None = None, stopped: Event | None = None
) -> Iterator[Iterator[R]]:
    """Call a function for each item in threads. At the end, the context waits for the calls that have started.

    Args:
        work: the function.
        items: its arguments.
        threads: the number of threads.
        ahead: the number of calls to submit before their results are taken. Default: all, so items must be finite.
        stopped: an event that is set at the end, also after an error or Ctrl-C. The function may check it.

    Yields:
        An iterator over the results, in the order of the items. If a call fails, the iterator raises its error when it
        reaches the result of this call.
    """
    pool = ThreadPoolExecutor(threads)
    calls = (pool.submit(work, item) for item in items)

    def results(waiting: deque[Future[R]]) -> Iterator[R]:
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(islice(calls, 1))
            yield result

    try:
        yield results(deque(islice(calls, ahead)))
    finally:
        if stopped is not None:
            stopped.set()
        pool.shutdown(cancel_futures=True)


class Background(Generic[T]):
    """A function call in a background thread. At the end, call `result` or `drop`. Both wait until the call ends."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._future, self._is_reported = Future[T](), False
        # A thread of a pool would never end if Ctrl-C arrived while it starts, and the process would not end either.
        Thread(target=self._run, args=(work,), name="background").start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._future.set_result(work())
        except BaseException as error:
            self._future.set_exception(error)

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self) -> T:
        """Wait for the result and return it, or raise the error of the function."""
        wait([self._future])
        self._is_reported = True
        return self._future.result()

    def drop(self) -> None:
        """Wait for the call, and ignore its result. Log its error unless `result` has raised it."""
        error = self._future.exception()
        if error is not None and not self._is_reported:
            log.warning(
                "background work failed, but its result is not needed: %s",
                error,
                exc_info=None if isinstance(error, UserError) else error,  # a user's mistake needs no traceback
            )


class Refresher:
    """Repeats work in the background: at most one call every 10 s, with at most 1% of one CPU core."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: Background[None] | None = None
        self._next = monotonic() + _MIN_SECONDS

    @property
    def due(self) -> bool:
        """Whether `start` may be called."""
        return monotonic() >= self._next and (self._running is None or self._running.done)

    def start(self, work: Callable[[], None]) -> None:
        begun = monotonic()

        def measured() -> None:
            cpu_before = thread_time()
            work()
            self._next = begun + max(_MIN_SECONDS, (thread_time() - cpu_before) / _MAX_SHARE)

        self.finish()
        self._next = begun + _MIN_SECONDS
        self._running = Background(measured)

    def finish(self) -> None:
        """Wait for the running call, and log its error."""
        running, self._running = self._running, None
        try:
            if running is not None:
                running.result()
        except Exception as error:
            log.warning("%s was not refreshed: %s", self._name, first_line(error))


class CallQueue:
    """Calls functions one after the other in a daemon thread.

    Args:
        on_error: is called in the thread with the first error. Then the queue calls only the function from `close`.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._waiting: SimpleQueue[tuple[Callable[[], None], bool]] = SimpleQueue()  # the flag marks the last call
        self._thread = Thread(target=self._run, args=(on_error,), name="worker", daemon=True)
        self._thread.start()

    def add(self, work: Callable[[], None]) -> None:
        """Call a function after all functions that were added before."""
        self._waiting.put((work, False))

    def close(self, last: Callable[[], None], seconds: float) -> bool:
        """Call a last function, also after an error. Return whether all calls ended within the given seconds."""
        self._waiting.put((last, True))
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self, on_error: Callable[[BaseException], None]) -> None:
        failed = is_last = False
        while not is_last:
            work, is_last = self._waiting.get()
            try:
                if is_last or not failed:
                    work()
            except BaseException as error:  # otherwise the error would be lost
                if not failed:
                    failed = True
                    on_error(error)
