"""How the process deals with memory that it frees, and with garbage."""

import atexit
import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt


def keep_freed_memory() -> None:
    """Let glibc keep what is freed: else every batch on the CPU pays page faults for memory it had a batch before.

    A fifth less CPU time for the input pipeline on the CPU at 128 px.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another libc
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def imports_are_no_garbage() -> Iterator[None]:
    """Keep what is imported within out of garbage collection: a tenth of the start, and some of every collection."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # else extension modules complain of leaks at the end
