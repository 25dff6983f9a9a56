"""CPU time: of this process with its workers, and of the whole machine."""

import os
from multiprocessing import active_children
from pathlib import Path
from time import process_time

_TICKS = os.sysconf("SC_CLK_TCK")  # a second, in which Linux counts


def cores() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0))


def own_seconds() -> float:
    """Return the CPU time of this process and of its worker processes, as far as they live."""
    return process_time() + sum(_ticks(child.pid) for child in active_children()) / _TICKS


def machine_seconds() -> float | None:
    """Return the CPU time of everything on this machine, None if it has more cores than we may use."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    if sum(line.startswith("cpu") for line in lines) - 1 != cores():
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, lines[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS


def _ticks(pid: int | None) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has just ended
        return 0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return int(user) + int(system)
