"""Run a benchmark: measure its rows, print a table, and write a JSON file."""

import platform
from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from augment.cli.parser import table_console, writing
from augment.support.files import installed_version, write_json
from augment.support.measurement import Result, Row, take_turns
from augment.support.process import cores, keep_freed_memory
from augment.support.text import amount

_PACKAGES = ("torch", "nvidia-dali-cuda120", "torchvision", "timm")


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

    Raises:
        UserError: the file cannot be written.
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
    versions = {"python": platform.python_version(), **{name: installed_version(name) for name in _PACKAGES}}
    whole = {"headline": headline, **settings, "cores": cores(), "versions": versions, "rows": plain}
    folder = flags.out or Path(f"outputs/bench-{datetime.now():%Y-%m-%d-%H-%M-%S}")
    with writing(f"--out {folder}"):  # the table is printed in any case
        write_json(folder / "bench.json", whole)
    left_out = [f"left out: {result.row.title} ({result.left_out})" for result in results if result.left_out]
    for line in (*left_out, f"{folder}/bench.json"):
        console.print(line, highlight=False, soft_wrap=True)
    return results
