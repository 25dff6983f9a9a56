"""Signals that ask a program to stop: Ctrl-C, and those of schedulers, containers and closed terminals."""

import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from time import monotonic
from types import FrameType
from typing import Any

from augment.support.process import launched

# SIGUSR1 is what schedulers usually send as a preemption notice.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

# One of several processes that train together gets a signal twice: itself, and from the process that started it.
_RELAYED_SECONDS = 5.0


class StopSignals:
    """A context in which signals that ask to stop raise KeyboardInterrupt, as Ctrl-C does by default.

    After `hold`, the first one only sets `asked`; the next one raises. An ignored signal, such as SIGHUP under nohup,
    stays ignored. Only the main thread handles signals; in other threads, the context does nothing. `asked` is whether
    a signal came, since `hold` if that was called, `held` whether it was.
    """

    def __init__(self) -> None:
        self.asked = self.held = False
        self._last = -_RELAYED_SECONDS
        self._outer: StopSignals | None = None
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Handle the signals, in place of the current handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in STOP_SIGNALS:
            previous = signal.getsignal(number)
            if previous in (signal.SIG_IGN, None):  # None: a handler not set by Python, which could not be restored
                continue
            outer = getattr(previous, "__self__", None)
            self._outer = outer if isinstance(outer, StopSignals) else None
            self._previous[number] = previous
            signal.signal(number, self._on_signal)

    def restore(self) -> None:
        """Restore the handlers that were there before `install`."""
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}

    def hold(self) -> None:
        """Let the next signal only set `asked`."""
        self.asked, self.held = False, True

    @contextmanager
    def ending(self, code: int, message: str = "") -> Iterator[None]:
        """Inside, end the process at once when a signal comes; see `exit_on_stop`."""
        if self._previous:
            exit_on_stop(code, message)
        try:
            yield
        finally:
            for number in self._previous:
                signal.signal(number, self._on_signal)

    @property
    def came(self) -> bool:
        """Whether a signal came while signals were held, here or in a context around this one.

        This includes signals that raised where Python discards exceptions, such as in a destructor.
        """
        return self.asked or (self._outer is not None and self._outer.asked)

    def check(self, message: str = "") -> None:
        """Raise KeyboardInterrupt if a signal came, see `came`."""
        if self.came:
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
        same = _RELAYED_SECONDS if launched() > 1 else 0.0
        if number == signal.SIGHUP:
            leave_closed_terminal()
            # A shell whose terminal closes passes it on, and the kernel sends another one when the shell exits.
            same = max(same, 1.0)
        if same:
            now = monotonic()
            again, self._last = again and now - self._last > same, now
        if again or not self.held:
            raise KeyboardInterrupt


def leave_closed_terminal() -> None:
    """Discard output whose terminal has closed, so that printing does not fail."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def exit_on_stop(code: int, message: str = "") -> None:
    """End the process at once, after a message, when a signal comes while modules are imported or Python shuts down.

    An exception could be discarded then, or be shown with a traceback.
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
    """Ignore signals from now on: when Python exits, it resets its own handlers, and a signal would kill it."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def shield_children() -> Iterator[None]:
    """Keep signals that ask to stop from processes started inside, until those call `ignore_in_worker`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        resource_tracker.ensure_running()  # which would later unblock some of them
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_in_worker() -> None:
    """Ignore, in a worker process, the signals that a whole process group gets: the parent decides when to end.

    Only the parent's own SIGTERM ends the worker; executors use it to end the rest of a broken pool.
    """
    for number in STOP_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    # Threads inherit the mask, so that only the one below receives the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_wait_for_parent, args=(os.getppid(),), daemon=True).start()


def _wait_for_parent(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(1)
