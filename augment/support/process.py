"""The process: when it began, whether others were started together with it, and how it ends."""

import atexit
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import NoReturn

BEGAN = monotonic()  # the command line imports this module first

# Exit handlers of DALI, by module: they end pipelines, and unload DALI.
_DALI_ENDS = (("pipeline", "_shutdown_pipelines"), ("backend", "_unload_dali"))


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


def wake_driver(index: int) -> None:
    """Initialize the driver of an NVIDIA GPU, if there is one. PyTorch would do it, but let no other thread run.

    Args:
        index: number of the GPU among those that the process sees.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)  # the one that PyTorch and DALI share


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
        # DALI's take almost a second on a GPU, and free only what the end of the process frees anyway.
        for module, function in _DALI_ENDS:
            if handler := getattr(sys.modules.get(f"nvidia.dali.{module}"), function, None):
                atexit.unregister(handler)
        threading._shutdown()  # type: ignore[attr-defined]  # as Python does it, in this order
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):  # if what was printed is lost, Python says so
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    raise SystemExit(code)
