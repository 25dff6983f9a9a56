"""CPU cores and CPU time of this process."""

import os
from multiprocessing import active_children
from pathlib import Path
from time import process_time


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def own_seconds() -> float:
    """Return the CPU time of this process and of its live worker processes, in seconds."""
    return process_time() + sum(_ticks(child.pid) for child in active_children()) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int | None) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # the process has just ended
        return 0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return int(user) + int(system)
