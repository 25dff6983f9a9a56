"""The process: when it began, and how it ends."""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import NoReturn

BEGAN = monotonic()  # the command line imports this module first


def run_and_leave(main: Callable[[], int]) -> NoReturn:
    """Call a program, and end the process with its exit code, once threads, exit handlers and output have ended.

    Where PyTorch is loaded, nothing more is done: Python would visit a million objects first, for a second, to free
    what the system frees at once.
    """
    try:
        code: object = main()
    except SystemExit as ended:
        code = ended.code
    if "torch" in sys.modules and isinstance(code, int):
        threading._shutdown()  # type: ignore[attr-defined]  # as Python does it, in this order
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):  # if what was printed is lost, Python says so
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    raise SystemExit(code)
