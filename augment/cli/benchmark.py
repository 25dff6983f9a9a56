"""Run a benchmark: measure its rows in turns, print a table, and write a JSON file."""

import platform
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from augment.cli.parser import table_console, writing
from augment.support.console import progress_bar
from augment.support.files import installed_version, write_json
from augment.support.formatting import amount
from augment.support.process import cores, keep_freed_memory, own_seconds

Run = Callable[[int], int]  # runs so many batches, without waiting for the GPU; returns the number of images


class LeftOutError(Exception):
    """A row cannot run here; the message says why."""


@dataclass(frozen=True)
class Row:
    """A row of a benchmark."""

    name: str  # on the command line and in files
    title: str  # in tables and charts
    start: Callable[[], Run]  # prepares it and returns what runs it; either may raise `LeftOutError`
    is_bound: bool = False  # whether it does less work than others, and so is an upper bound
    ours: bool = False  # whether it is this project's own way
    ahead: int = 5  # batches that may be ready before they are requested, and so are not timed
    stride: int = 1  # batches that are finished at the same time, as each worker process works on one


@dataclass(frozen=True)
class Timing:
    """A measurement of one row in one round; the CPU time is that of all threads and worker processes."""

    images: int
    batches: int
    seconds: float
    cpu_seconds: float


@dataclass
class Result:
    """What was measured of a row."""

    row: Row
    timings: list[Timing] = field(default_factory=list)  # one per round
    left_out: str = ""  # why there are none

    @property
    def speeds(self) -> list[float]:
        """Images per second in each round."""
        return [timing.images / timing.seconds for timing in self.timings]

    @property
    def speed(self) -> float:
        """Images per second, the median over the rounds."""
        return median(self.speeds)

    @property
    def cores(self) -> float:
        """CPU cores in use, the median over the rounds."""
        return median(timing.cpu_seconds / timing.seconds for timing in self.timings)

    def ratio(self, to: "Result") -> float:
        """Return the ratio of its speed to another row's, the median over the rounds.

        The rows of a round run right after each other, so a temporary slowdown of the machine affects both.
        """
        return median(own / other for own, other in zip(self.speeds, to.speeds, strict=True))


def consumer(stream: Iterator[Sized]) -> Run:
    """Return what takes batches from an endless stream."""
    return lambda batches: sum(map(len, islice(stream, batches)))


def take_turns(rows: Sequence[Row], rounds: int, seconds: float) -> list[Result]:
    """Warm up every row, then time each for about so many seconds in every round.

    How many batches that are is computed in advance from the row's speed so far, as a host that runs ahead of the GPU
    does not know how much time has passed.
    """
    results = [Result(row) for row in rows]
    running: list[tuple[Result, Run, Timing]] = []
    with progress_bar() as progress:
        bar = progress.add_task("", total=len(rows) * (rounds + 1))
        for result in results:
            progress.update(bar, description=f"warming up: {result.row.title}")
            try:
                run = result.row.start()
                last = time_batches(run, result.row, result.row.stride)  # records graphs, chooses kernels
                while last.seconds < seconds / 4:  # not more at once, as a few batches give a poor estimate
                    last = time_batches(run, result.row, 4 * last.batches)
                running.append((result, run, last))
            except LeftOutError as error:
                result.left_out = str(error)
            progress.advance(bar, 1 + rounds * bool(result.left_out))
        for number in range(rounds):
            for result, run, first in running:
                progress.update(bar, description=f"round {number + 1} of {rounds}: {result.row.title}")
                last, stride = (result.timings or [first])[-1], result.row.stride
                strides = round(seconds * last.batches / last.seconds / stride)
                _settle()
                result.timings.append(time_batches(run, result.row, stride * max(1, strides)))
                progress.advance(bar)
    return results


def time_batches(run: Run, row: Row, batches: int) -> Timing:
    """Time so many batches of a running row, without those that are ready."""
    run(row.ahead)
    _synchronize()
    cpu, begun = own_seconds(), monotonic()
    images = run(batches)
    _synchronize()
    return Timing(images, batches, max(monotonic() - begun, 1e-9), own_seconds() - cpu)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _settle() -> None:
    """Wait, at most five seconds, until threads and workers have filled their queues and are idle."""
    end = monotonic() + 5
    while monotonic() < end:
        before = own_seconds()
        sleep(0.1)
        if own_seconds() - before < 0.025:
            return


def endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of endless passes of a loader, once its cache, if it has one, is full."""
    try:
        if loader.placement.cache:
            for _ in loader:
                pass
        while True:
            yield from loader
    finally:
        loader.close()


def compare(
    subject: str,
    rows: Sequence[Row],
    flags: Namespace,
    *,
    device: torch.device,
    baselines: Sequence[str],
    settings: Mapping[str, Any],
) -> list[Result]:
    """Measure rows in turns, print a table, and write it as JSON, with further plain values.

    All are compared with the rows that `baselines` names; `flags` are those of `add_measuring_flags`.
    """
    if device.type == "cpu":
        keep_freed_memory()  # as in training
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else amount(cores(), "CPU core")
    headline = f"{subject} on {where}, {amount(flags.rounds, 'round')} of {flags.seconds:g} s a row"
    results = take_turns(rows, flags.rounds, flags.seconds)
    references = [result for result in results if result.row.name in baselines and result.timings]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=headline, title_justify="left")
    # On narrow terminals titles are folded, never numbers cut.
    table.add_column("", overflow="fold", min_width=8)
    for head in ("img/s", "min..max", *(f"of {one.row.name}" for one in references), "cores"):
        table.add_column(head, justify="right", no_wrap=True)
    plain: list[dict[str, Any]] = []
    for result in results:
        row, low, high = result.row, min(result.speeds, default=0), max(result.speeds, default=0)
        plain.append({"name": row.name, "title": row.title, "left_out": result.left_out or None})
        if result.timings:
            ratios = {one.row.name: result.ratio(one) for one in references}
            plain[-1] |= {"images_per_second": result.speed, "lowest": low, "highest": high, "cpu_cores": result.cores}
            plain[-1] |= {f"of_{name}": ratio for name, ratio in ratios.items()}
            shown = [f"{ratio:.3g}" for ratio in ratios.values()]
            speeds = (f"{result.speed:,.0f}", f"{low:,.0f}..{high:,.0f}")
            table.add_row(row.title, *speeds, *shown, f"{result.cores:.1f}", style="bold" * row.ours)
        plain[-1]["rounds"] = [vars(timing) for timing in result.timings]
    console = table_console()
    console.print(table)
    packages = ("torch", "nvidia-dali-cuda120", "torchvision", "timm")
    versions = {"python": platform.python_version(), **{name: installed_version(name) for name in packages}}
    whole = {"headline": headline, **settings, "cores": cores(), "versions": versions, "rows": plain}
    folder = flags.out or Path(f"outputs/bench-{datetime.now():%Y-%m-%d-%H-%M-%S}")
    with writing(f"--out {folder}"):  # the table is printed in any case
        write_json(folder / "bench.json", whole)
    left_out = [f"left out: {result.row.title} ({result.left_out})" for result in results if result.left_out]
    for line in (*left_out, f"{folder}/bench.json"):
        console.print(line, highlight=False, soft_wrap=True)
    return results
