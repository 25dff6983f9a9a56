"""Measure benchmark rows: wall-clock time, CPU time and the machine they ran on."""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import active_children
from pathlib import Path
from statistics import median
from time import monotonic, process_time, sleep
from typing import Any

from augment.support.console import progress_bar
from augment.support.energy import gpu_joules
from augment.support.text import amount

_CONTENDED = 0.2  # CPU cores used by other programs
_TICKS = os.sysconf("SC_CLK_TCK")  # per second, the unit of /proc


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def own_seconds() -> float:
    """Return the CPU time of this process and of its live worker processes, in seconds."""
    return process_time() + sum(_ticks(child.pid) for child in active_children()) / _TICKS


def machine_seconds() -> float | None:
    """Return the CPU time of all processes on this machine, in seconds; None if we may not use all of its cores."""
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
    except OSError:  # the process has just ended
        return 0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


@dataclass(frozen=True)
class Timing:
    """One row's measurement in one round.

    Attributes:
        images: number of images delivered.
        seconds: wall-clock time.
        cpu_seconds: CPU time of all our threads and worker processes.
        other_seconds: CPU time of other programs meanwhile; None where it is unknown.
        joules: energy that the GPU used; None where it is unknown.
    """

    images: int
    seconds: float
    cpu_seconds: float
    other_seconds: float | None = None
    joules: float | None = None

    @property
    def speed(self) -> float:
        """Images per second."""
        return self.images / self.seconds


@dataclass(frozen=True)
class Result:
    """A row of a benchmark with its timings, one per round.

    Attributes:
        name: the row's name on the command line.
        title: the row's name in tables and charts.
        timings: one per round; empty if the row was left out, or before it is measured.
        left_out: why it was left out, "" if it was not.
        gpu_memory: bytes of GPU memory that its warm-up took, including the pools of DALI and PyTorch; None without a
            GPU.
        is_bound: whether it does less work than the recipe, and so is an upper bound.
        ours: whether it is this project's own way to run the recipe.
    """

    name: str
    title: str
    timings: tuple[Timing, ...] = ()
    left_out: str = ""
    gpu_memory: int | None = None
    is_bound: bool = False
    ours: bool = False

    @property
    def speeds(self) -> list[float]:
        """Images per second in each round."""
        return [timing.speed for timing in self.timings]

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds per image, the median over rounds."""
        return median(1000 * timing.cpu_seconds / timing.images for timing in self.timings)

    @property
    def cores(self) -> float:
        """CPU cores in use, the median over rounds."""
        return median(timing.cpu_seconds / timing.seconds for timing in self.timings)

    @property
    def millijoules(self) -> float | None:
        """Energy per image that the GPU used, the median over rounds; None where it is unknown."""
        known = [1000 * timing.joules / timing.images for timing in self.timings if timing.joules is not None]
        return median(known) if known else None


Timer = Callable[[float], Timing]  # times a row for about the given number of seconds


def take_turns(
    rows: Sequence[tuple[Result, Callable[[float], Timer]]], rounds: int, seconds: float
) -> tuple[Result, ...]:
    """Warm up every row that is not left out, then time all of them in each round.

    Args:
        rows: the rows to measure, each with a function that warms it up and returns its timer.
        rounds: number of rounds.
        seconds: about how long each row runs in a round.
    """
    import torch

    able = [(row, warm_up) for row, warm_up in rows if not row.left_out]
    timers: dict[str, Timer] = {}
    memory: dict[str, int] = {}
    timings: dict[str, list[Timing]] = {row.name: [] for row, _ in rows}
    with progress_bar() as progress:
        bar = progress.add_task("", total=len(able) * (rounds + 1))
        for row, warm_up in able:
            progress.update(bar, description=f"warming up: {row.title}")
            before = _gpu_memory()
            timers[row.name] = warm_up(seconds)
            settle()
            memory[row.name] = _gpu_memory() - before
            progress.advance(bar)
        for number in range(rounds):
            for row, _ in able:
                progress.update(bar, description=f"round {number + 1} of {rounds}: {row.title}")
                settle()
                timings[row.name].append(timers[row.name](seconds))
                progress.advance(bar)
    gpu = torch.cuda.is_available()
    return tuple(
        replace(row, timings=tuple(timings[row.name]), gpu_memory=memory.get(row.name) if gpu else None)
        for row, _ in rows
    )


def _gpu_memory() -> int:
    """Return the bytes in use on the GPU, 0 without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return 0
    synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


Elapsed = tuple[float, float, float | None, float | None]


def stopwatch() -> Callable[[], Elapsed]:
    """Start to measure time when the GPU is idle.

    Returns:
        A function that waits for the GPU, then returns the seconds that have passed, our CPU time, that of other
        programs, and the energy that the GPU used (None where they are unknown).
    """
    synchronize()
    machine, own, joules, begun = machine_seconds(), own_seconds(), gpu_joules(), monotonic()

    def stop() -> Elapsed:
        synchronize()
        seconds, used, now, spent = monotonic() - begun, own_seconds() - own, machine_seconds(), gpu_joules()
        others = None if machine is None or now is None else max(now - machine - used, 0.0)
        return seconds, used, others, None if joules is None or spent is None else spent - joules

    return stop


def ratio(result: Result, to: Result | None) -> float | None:
    """Return the ratio of a row's speed to another's: the median over rounds, None if either was not measured.

    The rows of a round run right after each other, so a temporary slowdown of the machine affects both.
    """
    if to is None or not result.timings or not to.timings:
        return None
    return median(one / other for one, other in zip(result.speeds, to.speeds, strict=True))


def contention_warning(results: Sequence[Result]) -> str:
    """Return a warning if other programs used the CPU while rows were timed, else ""."""
    timings = [timing for result in results for timing in result.timings]
    others = [(t.other_seconds or 0) / t.seconds for t in timings]
    disturbed = [used for used in others if used > _CONTENDED]
    if not disturbed:
        return ""
    return (
        f"{len(disturbed)} of {amount(len(timings), 'timing')} shared the CPU with other programs, which used up to "
        f"{max(disturbed):.1f} cores: repeat the measurement on an idle machine."
    )


def synchronize() -> None:
    """Wait for the GPU to finish, if there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def settle() -> None:
    """Wait, at most five seconds, until threads and workers have filled their queues and are idle."""
    synchronize()
    end = monotonic() + 5
    while monotonic() < end:
        before = own_seconds()
        sleep(0.1)
        if own_seconds() - before < 0.025:
            return


def hardware() -> dict[str, Any]:
    """Return the CPU, its usable cores and the GPU of this machine."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "cpu": _cpu_name(),
        "cores": cores(),
        "gpu": torch.cuda.get_device_name() if cuda else None,
    }


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
