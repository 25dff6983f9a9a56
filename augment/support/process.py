"""Query and configure this process: its start, ranks, CPU cores, CPU time, memory, output and end."""

import ctypes
import os
import signal
from contextlib import suppress
from multiprocessing import active_children
from pathlib import Path
from time import monotonic, process_time

BEGAN = monotonic()  # about the start of the process, because the command line imports this module early


def launched_ranks() -> int:
    """Return the number of ranks that torchrun or a similar launcher started. Without a launcher, return 1."""
    size = os.environ.get("WORLD_SIZE", "")
    return max(1, int(size)) if "RANK" in os.environ and size.isdecimal() else 1


def local_rank() -> tuple[int, int]:
    """Return the rank of this process on its machine, and the number of ranks there."""
    return int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def end_with_parent() -> None:
    """Make Linux send SIGTERM to this process when its parent ends for any reason."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def discard_output(descriptor: int) -> None:
    """Discard all further output to a file descriptor."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its live worker processes."""
    return process_time() + sum(_ticks(child.pid) for child in active_children()) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int | None) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # the process has just ended
        return 0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, so that CPU batches reuse it without page faults.

    With this setting, five epochs on the generated dataset take 16 s instead of 22 s on two CPU cores.
    """
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(-4, 0)  # M_MMAP_MAX
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def host_memory() -> int:
    """Return the memory limit of this process in bytes: the memory of the host or of its container."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # the file is missing, or contains "max" for no limit
            found.append(int(Path(file).read_text()))
    return min(found)


def return_freed_memory() -> None:
    """Return freed memory to the system. Otherwise glibc keeps it, scattered among memory that is in use."""
    ctypes.CDLL(None).malloc_trim(0)
