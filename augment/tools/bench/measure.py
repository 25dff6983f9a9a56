"""Interleave the contenders of a benchmark, time them, and report the results."""

import gc
import platform
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from nvidia.dali import backend

from augment.cli.benchmark import BenchReport, Column
from augment.data.dataset import ImageRef
from augment.data.images import open_image, read_encoded
from augment.support.files import installed_version
from augment.support.text import amount
from augment.support.timing import Result, Timer, Timing, hardware, ratio, settle, stopwatch, take_turns
from augment.tools.bench.setup import Contender, Setup, Stream

_PACKAGES = ("torch", "nvidia-dali-cuda120", "numpy", "pillow", "torchvision", "kornia", "timm")
_OURS = ("fused", "cached", "transform")


def measure(contenders: Sequence[Contender], setup: Setup, flags: Namespace) -> tuple[Result, ...]:
    """Run contenders, interleaved; the result of one that cannot run here contains the reason."""
    read_all(setup.files[: setup.photos])
    with ExitStack() as stack:
        rows = [
            (
                Result(c.name, c.title, left_out=c.obstacle(setup), is_bound=c.is_bound, ours=c.name in _OURS),
                partial(_warm_up, c, setup, stack),
            )
            for c in contenders
        ]
        return take_turns(rows, flags.rounds, flags.seconds)


def _warm_up(contender: Contender, setup: Setup, stack: ExitStack, _: float) -> Timer:
    stream = contender.start(setup)
    stack.callback(_close, stream)
    _take(stream, stream.warmup)
    return partial(time_stream, stream)


def time_stream(stream: Stream, seconds: float) -> Timing:
    """Time an idle stream for at least `seconds`, in whole strides of batches."""
    _take(stream, stream.prefetched)
    stop, begun, images = stopwatch(), monotonic(), 0
    while not images or monotonic() - begun < seconds:
        images += _take(stream, stream.stride)
    return Timing(images, *stop())


def _take(stream: Stream, batches: int) -> int:
    return sum(next(stream.batches) for _ in range(batches))


def _close(stream: Stream) -> None:
    settle()
    stream.batches.close()
    gc.collect()
    backend.ReleaseUnusedMemory()  # type: ignore[attr-defined]


def read_all(files: Sequence[ImageRef]) -> None:
    """Read every file once, so that no row waits for the disk."""
    for file in files:
        bytes(read_encoded(file))


def make_report(
    subject: str,
    results: tuple[Result, ...],
    settings: Mapping[str, Any],
    *,
    baselines: Sequence[str] = ("decode", "crop"),
    beyond: tuple[str, ...] = ("read",),
    **further: Any,
) -> BenchReport:
    """Return the report of a benchmark.

    Args:
        subject: what was measured, for the title.
        results: results of all rows, in the order of the table.
        settings: the settings that `settings_of` returns.
        baselines: names of the rows that others are compared with; the chart shows the ratio to the first one.
        beyond: names of the rows that may be too fast for the scale of the chart.
        further: further arguments of the report.
    """
    photos, machine = settings["photos"], settings["hardware"]
    images = f"{amount(photos['count'], 'image')} of {photos['mean_bytes'] / 1000:.0f} kB"
    rounds = f"{amount(settings['rounds'], 'round')} of {settings['seconds']:g} s"
    where = machine["gpu"] or f"{machine['cores']} CPU cores"
    title = f"{subject} at {settings['size']} px on {where}: {images}, batch {settings['batch_size']}, {rounds}"
    measured = {result.name: result for result in results}
    columns = (
        *(Column(f"of_{name}", partial(ratio, to=measured.get(name)), f"of {name}") for name in baselines),
        Column("gpu_memory_mib", lambda r: r.gpu_memory and round(r.gpu_memory / 2**20), "GPU MiB", ",.0f"),
        Column("cpu_cores", lambda r: r.cores, "cores", ".1f"),
        Column("cpu_ms", lambda r: r.cpu_ms, "CPU ms"),
        Column("gpu_millijoules", lambda r: r.millijoules, "GPU mJ", ".1f"),
    )
    return BenchReport(title, results, settings, columns, (f"of_{baselines[0]}",), beyond, **further)


def settings_of(setup: Setup, flags: Namespace) -> dict[str, Any]:
    """Return settings, images, hardware and versions as plain values."""
    files = setup.files[: setup.photos]
    sizes = []
    for file in files[:: -(-len(files) // 500)]:
        with open_image(file) as image:
            sizes.append(image.size)
    width, height = np.mean(sizes, axis=0).tolist()
    lengths = [file.stat().st_size if isinstance(file, Path) else len(file.read()) for file in files]
    return {
        "recipe": str(setup.plan),
        "size": setup.aug.size,
        "batch_size": setup.batch_size,
        "rounds": flags.rounds,
        "seconds": flags.seconds,
        "threads": setup.threads,
        "workers": setup.workers,
        "photos": {
            "count": len(files),
            "mean_bytes": float(np.mean(lengths)),
            "mean_width": width,
            "mean_height": height,
        },
        "hardware": hardware(),
        "versions": {"python": platform.python_version(), **{name: installed_version(name) for name in _PACKAGES}},
    }
