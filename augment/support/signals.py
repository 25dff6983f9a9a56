"""Handle signals that ask to stop: Ctrl-C, and signals of schedulers, containers and closed terminals."""

import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process, resource_tracker
from time import monotonic
from types import FrameType
from typing import Any

from augment.support.process import discard_output, launched_ranks

# Schedulers usually send SIGUSR1 as a preemption notice.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

# Ranks get each signal twice, directly and from their launcher. A repetition within this time does not count.
_RELAYED_SECONDS = 5.0


class StopSignals:
    """A context in which stop signals raise KeyboardInterrupt, as Ctrl-C does by default.

    After `hold`, the first signal only sets `asked`, and the next signal raises. Ignored signals, such as SIGHUP under
    nohup, stay ignored. Python handles signals only in the main thread, so the context does nothing in other threads.

    Attributes:
        asked: whether a signal arrived. `hold` resets it.
        held: whether `hold` was called.
    """

    def __init__(self) -> None:
        self.asked = self.held = False
        self._last = -_RELAYED_SECONDS
        self._outer: StopSignals | None = None
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in STOP_SIGNALS:
            previous = signal.getsignal(number)
            if previous in (signal.SIG_IGN, None):  # None: Python did not set the handler, so it cannot restore it
                continue
            outer = getattr(previous, "__self__", None)
            self._outer = outer if isinstance(outer, StopSignals) else None
            self._previous[number] = previous
            signal.signal(number, self._on_signal)

    def restore(self) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}

    def hold(self) -> None:
        """Make the next signal only set `asked`."""
        self.asked, self.held = False, True

    @contextmanager
    def ending(self, code: int, message: str = "") -> Iterator[None]:
        """End the process when a signal arrives inside the context. See `exit_on_stop`."""
        if self._previous:
            exit_on_stop(code, message)
        try:
            yield
        finally:
            for number in self._previous:
                signal.signal(number, self._on_signal)

    @property
    def arrived(self) -> bool:
        """Whether a signal arrived, in this context or an outer one.

        This includes signals whose exception Python discarded, such as in a destructor.
        """
        return self.asked or (self._outer is not None and self._outer.asked)

    def check(self, message: str = "") -> None:
        """Raise KeyboardInterrupt if a signal arrived. See `arrived`."""
        if self.arrived:
            raise KeyboardInterrupt(message)

    def __enter__(self) -> "StopSignals":
        self.install()
        return self

    def __exit__(self, *error: object) -> None:
        self.restore()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self.asked
        context: StopSignals | None = self
        while context is not None:
            context.asked, context = True, context._outer
        repetition_seconds = _RELAYED_SECONDS if launched_ranks() > 1 else 0.0
        if number == signal.SIGHUP:
            leave_closed_terminal()
            # When a terminal closes, the shell sends SIGHUP, and Linux sends it again when the shell exits.
            repetition_seconds = max(repetition_seconds, 1.0)
        if repetition_seconds:
            now = monotonic()
            again, self._last = again and now - self._last > repetition_seconds, now
        if again or not self.held:
            raise KeyboardInterrupt


def leave_closed_terminal() -> None:
    """Discard output after the terminal has closed, so that printing does not fail."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                discard_output(descriptor)


def exit_on_stop(code: int, message: str = "") -> None:
    """Make stop signals print a message and end the process at once.

    Call this before modules are imported and before Python shuts down. Python may discard a KeyboardInterrupt at these
    times, or print its traceback.
    """

    def end(number: int, frame: FrameType | None) -> None:
        with suppress(OSError, RuntimeError, ValueError):
            sys.stdout.flush()
            os.write(1, message.encode())
        os._exit(code)

    for number in STOP_SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, end)


def ignore_stop_signals() -> None:
    """Ignore stop signals from now on. Otherwise, one could kill the process at exit, after Python resets handlers."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def shield_children() -> Iterator[None]:
    """Block stop signals in processes that are started in this context, until they call `ignore_in_worker`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        resource_tracker.ensure_running()  # starting it later would unblock some signals
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_in_worker() -> None:
    """Ignore stop signals in a worker process, because a signal reaches the whole process group.

    The worker ends after a SIGTERM from its parent, which executors send to end the rest of a broken pool. It also ends
    when its parent ends. Otherwise, the workers of a killed parent would wait forever.
    """
    for number in STOP_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    # Threads inherit the mask, so only the thread below receives the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    while parent is not None and parent.is_alive():
        received = signal.sigtimedwait({signal.SIGTERM}, 0.5)
        if received is not None and received.si_pid == parent.pid:
            break
    os._exit(1)
