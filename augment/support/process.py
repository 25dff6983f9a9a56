"""The process: when it began, and whether others were started together with it."""

import ctypes
import os
import signal
from time import monotonic

BEGAN = monotonic()  # the command line imports this module first


def launched() -> int:
    """Return the number of processes that torchrun, or a launcher like it, started together; 1: it did not."""
    size = os.environ.get("WORLD_SIZE", "")
    return max(1, int(size)) if "RANK" in os.environ and size.isdecimal() else 1


def local_rank() -> tuple[int, int]:
    """Return the number of this process among those of its machine, and their count."""
    if launched() == 1:
        return 0, 1
    return int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def end_with_parent() -> None:
    """Be asked to stop when the process that started this one ends, however it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
