"""Measure the interleaved rows of a benchmark, print a table, and write a JSON file."""

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
from augment.support.process import cores, cpu_seconds, keep_freed_memory

# Runs a number of batches without waiting for the GPU, and returns the number of images.
Run = Callable[[int], int]


class LeftOutError(Exception):
    """A row cannot run on this machine. The message states the reason."""


@dataclass(frozen=True)
class Row:
    """A row of a benchmark."""

    name: str  # on the command line and in files
    title: str  # in tables and charts
    start: Callable[[], Run]  # prepares the row. This call and the returned function may raise `LeftOutError`
    is_bound: bool = False  # whether the row does less work than others, which makes it an upper bound
    ours: bool = False  # whether the row measures this project
    ahead: int = 5  # number of prefetched batches, which are not timed
    stride: int = 1  # batches that finish at the same time, because each worker process prepares one


@dataclass(frozen=True)
class Timing:
    """A measurement of one row in one round. The CPU time includes all threads and worker processes."""

    images: int
    batches: int
    seconds: float
    cpu_seconds: float


@dataclass
class Result:
    """The measurements of a row."""

    row: Row
    timings: list[Timing] = field(default_factory=list)  # one per round
    left_out: str = ""  # why the row was not measured

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
        """Return this row's speed divided by another row's speed, the median over the rounds.

        The rows of a round run right after each other, so a temporary slowdown of the machine affects both.
        """
        return median(own / other for own, other in zip(self.speeds, to.speeds, strict=True))


def consumer(stream: Iterator[Sized]) -> Run:
    """Return a function that consumes batches of an endless stream."""
    return lambda batches: sum(map(len, islice(stream, batches)))


def time_interleaved(rows: Sequence[Row], rounds: int, seconds: float) -> list[Result]:
    """Warm up every row, then time each row for about `seconds` in every round.

    The number of batches is computed in advance from the row's speed so far. The host cannot watch the clock instead,
    because it runs ahead of the GPU.
    """
    results = [Result(row) for row in rows]
    running: list[tuple[Result, Run, Timing]] = []
    with progress_bar() as progress:
        for result in progress.track(results, description="warming up"):
            try:
                run = result.row.start()
                last = time_batches(run, result.row, result.row.stride)  # also records CUDA graphs, chooses kernels
                while last.seconds < seconds / 4:  # a few batches would give a poor estimate of the speed
                    last = time_batches(run, result.row, 4 * last.batches)
                running.append((result, run, last))
            except LeftOutError as error:
                result.left_out = str(error)
        for result, run, first in progress.track(running * rounds, description="measuring"):
            last, stride = (result.timings or [first])[-1], result.row.stride
            strides = round(seconds * last.batches / last.seconds / stride)
            _settle()
            result.timings.append(time_batches(run, result.row, stride * max(1, strides)))
    return results


def time_batches(run: Run, row: Row, batches: int) -> Timing:
    """Time some batches of a running row, after consuming the batches that are prefetched."""
    run(row.ahead)
    _synchronize()
    cpu, begun = cpu_seconds(), monotonic()
    images = run(batches)
    _synchronize()
    return Timing(images, batches, max(monotonic() - begun, 1e-9), cpu_seconds() - cpu)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _settle() -> None:
    """Wait for up to five seconds until threads and workers have filled their queues and are idle."""
    end = monotonic() + 5
    while monotonic() < end:
        before = cpu_seconds()
        sleep(0.1)
        if cpu_seconds() - before < 0.025:
            return


def endless(loader: Any) -> Iterator[Any]:
    """Yield a loader's batches, epoch after epoch without end. If the loader has a cache, fill the cache first."""
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
    """Measure interleaved rows, print a table, and write it as JSON together with `settings`.

    Args:
        subject: the start of the table's title.
        rows: the rows to measure.
        flags: the flags of `add_measuring_flags`.
        device: the device that runs the rows.
        baselines: names of the rows with which all rows are compared.
        settings: further plain values for the JSON file.
    """
    if device.type == "cpu":
        keep_freed_memory()  # as in training
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else amount(cores(), "CPU core")
    headline = f"{subject} on {where}, {amount(flags.rounds, 'round')} of {flags.seconds:g} s per row"
    results = time_interleaved(rows, flags.rounds, flags.seconds)
    references = [result for result in results if result.row.name in baselines and result.timings]
    console = table_console()
    console.print(_table(headline, results, references))
    packages = ("torch", "nvidia-dali-cuda120", "torchvision", "timm")
    document = {
        "headline": headline,
        **settings,
        "cores": cores(),
        "versions": {"python": platform.python_version(), **{name: installed_version(name) for name in packages}},
        "rows": [_plain(result, references) for result in results],
    }
    folder = flags.out or Path(f"outputs/bench-{datetime.now():%Y-%m-%d-%H-%M-%S}")
    with writing(f"--out {folder}"):  # the table is printed in any case
        write_json(folder / "bench.json", document)
    left_out = [f"left out: {result.row.title} ({result.left_out})" for result in results if result.left_out]
    for line in (*left_out, f"{folder}/bench.json"):
        console.print(line, highlight=False, soft_wrap=True)
    return results


def _table(headline: str, results: Sequence[Result], references: Sequence[Result]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=headline, title_justify="left")
    # Narrow terminals fold titles, but never cut numbers.
    table.add_column("", overflow="fold", min_width=8)
    for head in ("img/s", "min..max", *(f"of {reference.row.name}" for reference in references), "cores"):
        table.add_column(head, justify="right", no_wrap=True)
    for result in results:
        if result.timings:
            speeds = (f"{result.speed:,.0f}", f"{min(result.speeds):,.0f}..{max(result.speeds):,.0f}")
            ratios = [f"{result.ratio(reference):.3g}" for reference in references]
            table.add_row(result.row.title, *speeds, *ratios, f"{result.cores:.1f}", style="bold" * result.row.ours)
    return table


def _plain(result: Result, references: Sequence[Result]) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": result.row.name,
        "title": result.row.title,
        "left_out": result.left_out or None,
    }
    if result.timings:
        plain |= {"images_per_second": result.speed, "lowest": min(result.speeds), "highest": max(result.speeds)}
        plain["cpu_cores"] = result.cores
        plain |= {f"of_{reference.row.name}": result.ratio(reference) for reference in references}
    return plain | {"rounds": [vars(timing) for timing in result.timings]}
