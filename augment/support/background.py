"""Run work in background threads: a call whose result is needed later, calls at once, in order, and repeated ones."""

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, thread_time
from typing import Generic, TypeVar

from augment.support.errors import UserError, first_line

T = TypeVar("T")
R = TypeVar("R")

# Of repeated work: seconds between two calls, and the share of one core that it may take.
_EVERY, _SHARE = 10.0, 0.01

# Seconds after which training on a GPU has recorded its work, and leaves Python to other threads for most of the time.
SETTLED = 1.0

# Seconds that a thread may keep Python while another one waits for it.
_TURN = 2e-4

log = logging.getLogger(__name__)


@contextmanager
def prompt_turns() -> Iterator[None]:
    """Let threads take turns every 0.2 ms, not 5: the one that trains waits for its turn after each call to the GPU."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def in_threads(
    work: Callable[[T], R], items: Iterable[T], threads: int, ahead: int | None = None
) -> Iterator[Iterator[R]]:
    """Call a function for items in threads, in a context whose end waits for the calls that have begun.

    Ctrl-C is safe: it raises in the main thread, where within an executor's methods it could leave a lock taken
    forever. Therefore a thread of its own calls those.

    Args:
        work: the function.
        items: its arguments; endless ones need `ahead`.
        threads: how many calls run at once, at most.
        ahead: how many calls are asked for before their results are taken; None: all.

    Returns:
        What the calls return, in the order of the items; an error is raised in its turn.
    """
    done: SimpleQueue[Future[R] | None] = SimpleQueue()
    taken: SimpleQueue[None] = SimpleQueue()
    left = False

    def call(item: T) -> R:
        if left:
            raise CancelledError
        return work(item)

    def run() -> None:
        with ThreadPoolExecutor(threads) as pool:
            try:
                calls = (pool.submit(call, item) for item in items)
                waiting = deque(islice(calls, ahead))
                while waiting and not left:
                    wait([waiting[0]])
                    done.put(waiting.popleft())
                    if ahead is not None:
                        taken.get()
                        waiting.extend(islice(calls, 1))
            except BaseException as error:  # nobody else would learn of it
                failed: Future[R] = Future()
                failed.set_exception(error)
                done.put(failed)
        done.put(None)

    def results() -> Iterator[R]:
        for future in iter(done.get, None):
            taken.put(None)
            yield future.result()

    thread = Thread(target=run, name="in_threads", daemon=True)
    thread.start()
    try:
        yield results()
    finally:
        left = True
        taken.put(None)
        thread.join()


class Background(Generic[T]):
    """A function call that runs in a background thread.

    Call either `result` or `drop`; both wait until the thread has ended. Ctrl-C is safe, see `in_threads`.

    Args:
        work: the function to call.
        delay: seconds until it starts, unless somebody waits for it before.
    """

    def __init__(self, work: Callable[[], T], *, delay: float = 0.0) -> None:
        self._wanted: SimpleQueue[None] = SimpleQueue()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._error: BaseException | None = None
        self._done = False

        def call() -> None:
            with suppress(Empty):
                self._wanted.get(timeout=delay)
            try:
                self._value = work()
            except BaseException as error:  # nobody else would learn of it
                self._error = error
            self._done = True
            self._ended.put(None)

        self._thread = Thread(target=call, name="background")
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has returned or raised."""
        return self._done

    def result(self) -> T:
        """Wait for the result and return it, or raise what the function raised, once."""
        if error := self._wait():
            raise error
        return self._value

    def drop(self) -> None:
        """Wait for work whose result is no longer needed; log a failure instead of raising it."""
        if error := self._wait():
            log.warning(
                "background work whose result is no longer needed failed: %s",
                error,
                exc_info=None if isinstance(error, UserError) else error,  # a user's mistake needs no traceback
            )

    def _wait(self) -> BaseException | None:
        """Wait until the thread has ended; return what the function raised."""
        self._wanted.put(None)
        # Before Python 3.13, a thread counts as ended once Ctrl-C has ended a join; nothing waits for it any more.
        while not self._done:
            with suppress(Empty):
                self._ended.get(timeout=1.0)  # somebody else may get it
        self._thread.join()
        error, self._error = self._error, None  # its traceback refers to this object
        return error


class Refresher:
    """Repeats work in the background: never twice at once, every 10 s at most, and for 1% of the time at most.

    Args:
        name: what is refreshed, for the log; the first error is logged.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: Background[None] | None = None
        self._next = monotonic() + _EVERY
        self._cost = 0.0  # CPU seconds of the last call
        self._failed = False

    @property
    def due(self) -> bool:
        """Whether `start` may be called."""
        return monotonic() >= self._next and (self._running is None or self._running.done)

    def start(self, work: Callable[[], None]) -> None:
        """Call a function in the background."""

        def measured() -> None:
            begun = thread_time()
            work()
            self._cost = thread_time() - begun

        self.finish()
        self._next = monotonic() + max(_EVERY, self._cost / _SHARE)
        self._running = Background(measured)

    def finish(self) -> None:
        """Wait for the call that runs, if one does."""
        running, self._running = self._running, None
        try:
            if running is not None:
                running.result()
        except Exception as error:
            if not self._failed:
                log.warning("%s was not refreshed: %s", self._name, first_line(error))
            self._failed = True


class CallQueue:
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
