"""Energy that the GPU has used, from NVIDIA's management library (NVML), which `nvidia-smi` reads as well."""

import ctypes
from collections.abc import Callable
from functools import cache


def gpu_joules() -> float | None:
    """Return the energy that the current GPU has used since its driver was loaded; None if it does not count it."""
    import torch

    return _counter()() if torch.cuda.is_available() else None


@cache
def _counter() -> Callable[[], float | None]:
    """Return a function that reads the counter of the current GPU."""
    import torch

    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        identifier = f"GPU-{torch.cuda.get_device_properties().uuid}".encode()
    except OSError:  # no library
        return lambda: None
    handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(identifier, ctypes.byref(handle)):
        return lambda: None

    def read() -> float | None:
        failed = library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
        return None if failed else millijoules.value / 1000

    return read
