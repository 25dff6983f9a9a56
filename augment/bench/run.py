"""`python -m augment.bench +aug=NAME`: how fast a recipe is, beside what bounds it and what else there is.

All rows run in one process and in turns: each round runs every row for a few seconds, so that what slows the machine
down for a while slows all of them. A row that is not being timed stands still: what its threads or workers had ready is
taken before the clock starts, and after it stops they are waited for.
"""

import gc
import platform
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch
from nvidia.dali import backend
from rich.progress import Progress

from augment.bench.contenders import Row, Setup, Stream, find_rows, op_rows, recipe_rows, whole_batches
from augment.bench.cpu_time import cores, machine_seconds, own_seconds
from augment.bench.options import Options, parse_options
from augment.bench.report import Report, Result, Timing, start_lines
from augment.bench.startup import measure_start
from augment.command import readable_errors, table_console, writing
from augment.dataset import Picture
from augment.files import installed_version
from augment.memory import keep_freed_memory
from augment.progress import progress_bar
from augment.stored import open_picture, read_encoded

_OURS = ("fused", "cached")
_PACKAGES = ("torch", "nvidia-dali-cuda120", "numpy", "pillow", "torchvision")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with readable_errors():
        options = parse_options(given)
        rows = [*find_rows(options.rows), *recipe_rows(options.also), *op_rows(options.ops)]
        report = run(options, rows, given)
        out = options.out or Path("outputs") / f"bench-{datetime.now():%Y-%m-%d-%H-%M-%S}"
        with writing(f"--out {out}"):
            report.write(out)
    console = table_console()
    console.print(report.table())
    if report.crowd:
        console.print(report.crowd, style="red", highlight=False, soft_wrap=True)
    if report.start:
        console.print(start_lines(report.start), highlight=False, soft_wrap=True)
    console.print(f"{out}/bench.json, bench.png", highlight=False, soft_wrap=True)
    return 0


def run(options: Options, rows: Sequence[Row], arguments: Sequence[str]) -> Report:
    """Measure the rows.

    Args:
        options: what to measure, and for how long.
        rows: in the order of the table.
        arguments: of the command line, for the processes whose start is measured.
    """
    # First, as it wants the machine for itself.
    start = measure_start([a for a in arguments if a != "--start"]) if options.start else None
    files = options.pictures()
    batch_size = min(options.batch_size, len(files))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        keep_freed_memory()  # as in training
    whole = whole_batches(files, batch_size)
    setup = Setup(options.aug, whole, len(files), batch_size, options.threads, options.workers, device, options.half)
    with progress_bar() as progress:
        results = measure(rows, setup, options.rounds, options.seconds, progress)
    return Report(tuple(results), _settings(options, setup, files), start)


# --- measuring ---


def measure(rows: Sequence[Row], setup: Setup, rounds: int, seconds: float, progress: Progress) -> list[Result]:
    """Run the rows in turns.

    Args:
        rows: what to run; a row that cannot run here has its reason in its result.
        setup: what every row gets.
        rounds: how often.
        seconds: for how long at least, in each round.
        progress: a bar to be moved.
    """
    obstacles = {row.name: row.obstacle(setup) for row in rows}
    able = [row for row in rows if not obstacles[row.name]]
    bar = progress.add_task("", total=len(able) * (rounds + 1))
    streams: dict[str, Stream] = {}
    memory: dict[str, int | None] = {}
    timings: dict[str, list[Timing]] = {row.name: [] for row in able}
    read_all(setup.files[: setup.photos])
    with ExitStack() as stack:
        for row in able:
            progress.update(bar, description=f"warming up: {row.title}")
            before = _gpu_memory()
            streams[row.name] = stream = row.start(setup)
            stack.callback(_close, stream)
            _take(stream, stream.warmup)
            settle()
            after = _gpu_memory()
            memory[row.name] = None if before is None or after is None else after - before
            progress.advance(bar)
        for number in range(rounds):
            for row in able:
                progress.update(bar, description=f"round {number + 1} of {rounds}: {row.title}")
                timings[row.name].append(time_stream(streams[row.name], seconds))
                progress.advance(bar)
    return [
        Result(
            row.name,
            row.title,
            tuple(timings.get(row.name, ())),
            obstacles[row.name],
            memory.get(row.name),
            row.is_bound,
            row.name in _OURS,
        )
        for row in rows
    ]


def time_stream(stream: Stream, seconds: float) -> Timing:
    """Time a stream that stood still: at least so many seconds, in whole strides of batches."""
    _take(stream, stream.ahead)
    synchronize()
    machine, own, begun, pictures = machine_seconds(), own_seconds(), monotonic(), 0
    while not pictures or monotonic() - begun < seconds:
        pictures += _take(stream, stream.stride)
    synchronize()
    seconds, own, now = monotonic() - begun, own_seconds() - own, machine_seconds()
    settle()
    others = None if machine is None or now is None else max(now - machine - own, 0.0)
    return Timing(pictures, seconds, own, others)


def _take(stream: Stream, batches: int) -> int:
    return sum(next(stream.batches) for _ in range(batches))


def _close(stream: Stream) -> None:
    stream.batches.close()
    gc.collect()
    backend.ReleaseUnusedMemory()  # type: ignore[attr-defined]


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def settle(longest: float = 5.0) -> None:
    """Wait until threads and workers have filled their queues and stand still."""
    synchronize()
    end = monotonic() + longest
    while monotonic() < end:
        before = own_seconds()
        sleep(0.1)
        if own_seconds() - before < 0.025:
            return


def _gpu_memory() -> int | None:
    """Return the bytes in use on the GPU, None where there is none."""
    if not torch.cuda.is_available():
        return None
    synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def read_all(files: Sequence[Picture]) -> None:
    """Read every file once: no row shall be the one that waits for the disk."""
    for file in files:
        bytes(read_encoded(file))


# --- what it ran on ---


def _settings(options: Options, setup: Setup, files: Sequence[Picture]) -> dict[str, Any]:
    return {
        "recipe_name": options.recipe_name,
        "recipe": str(setup.plan),
        "size": options.aug.size,
        "batch_size": setup.batch_size,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "threads": options.threads,
        "workers": options.workers,
        "half": options.half,
        "photos": describe(files),
        "hardware": hardware(),
        "versions": versions(),
    }


def versions() -> dict[str, Any]:
    """Return the versions of what is measured."""
    return {"python": platform.python_version(), **{name: installed_version(name) for name in _PACKAGES}}


def describe(files: Sequence[Picture]) -> dict[str, Any]:
    """Return how many pictures these are, and how large in the mean."""
    sizes = []
    for file in files[:: -(-len(files) // 500)]:
        with open_picture(file) as image:
            sizes.append(image.size)
    width, height = np.mean(sizes, axis=0)
    mean_bytes = float(np.mean([_bytes_of(file) for file in files]))
    return {"count": len(files), "mean_bytes": mean_bytes, "mean_width": float(width), "mean_height": float(height)}


def _bytes_of(file: Picture) -> int:
    return file.stat().st_size if isinstance(file, Path) else len(file.read())


def hardware() -> dict[str, Any]:
    """Say what machine this is."""
    cuda = torch.cuda.is_available()
    return {
        "cpu": _cpu_name(),
        "cores": cores(),
        "gpu": torch.cuda.get_device_name() if cuda else None,
    }


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
