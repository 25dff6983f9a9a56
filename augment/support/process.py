"""The process: when it began, and how it ends."""

import atexit
import os
import sys
import threading
from contextlib import suppress
from time import monotonic
from typing import NoReturn

BEGAN = monotonic()  # the command line imports this module first


def leave(code: int) -> NoReturn:
    """End the process with an exit code, once its threads, its exit handlers and what it prints have ended.

    Where PyTorch is loaded, nothing more is done: Python would visit a million objects first, for a second, to free
    what the system frees at once.
    """
    if "torch" in sys.modules:
        threading._shutdown()  # type: ignore[attr-defined]  # as Python does it, in this order
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):  # if what was printed is lost, Python says so
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)
