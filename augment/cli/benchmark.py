"""Run a benchmark: measure its rows, print a table, and write a JSON file and a bar chart."""

import platform
from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.table import Table

from augment.cli.parser import table_console, writing
from augment.drawing.style import BLUE, GRAY, INK, TITLE, frame, save_figure
from augment.drawing.text import DPI, font, wrap
from augment.support.files import installed_version, write_json
from augment.support.measurement import Result, Row, take_turns
from augment.support.process import cores, keep_freed_memory
from augment.support.text import amount

_PACKAGES = ("torch", "nvidia-dali-cuda120", "torchvision", "timm")

_PALE = "0.82"
_TEXT, _SMALL = 10, 9  # points
_WIDTH, _MARGIN = 9, 0.05  # inches


def compare(
    subject: str,
    rows: Sequence[Row],
    flags: Namespace,
    *,
    device: torch.device,
    baselines: Sequence[str],
    settings: Mapping[str, Any],
) -> list[Result]:
    """Measure rows in turns, print a table, and write it as JSON, with further plain values, and as a chart.

    All are compared with the rows that `baselines` names, in the chart with the first of them; `flags` are those of
    `add_measuring_flags`.

    Raises:
        UserError: the files cannot be written.
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
        save_figure(draw_bars(headline, results, references[:1]), folder / "bench.png", DPI)
    left_out = [f"left out: {result.row.title} ({result.left_out})" for result in results if result.left_out]
    for line in (*left_out, f"{folder}/bench.json, bench.png"):
        console.print(line, highlight=False, soft_wrap=True)
    return results


def draw_bars(headline: str, results: Sequence[Result], references: Sequence[Result]) -> Figure:
    """Draw the speed of each row as a bar, with ratios and a whisker from the slowest to the fastest round.

    The bar of an upper bound is cut off where it is much faster than all other rows.
    """
    rows = [result for result in results if result.timings]
    figure = Figure(figsize=(_WIDTH, 1.35 + 0.42 * max(len(rows), 1)), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    others = [result for result in rows if not result.row.is_bound] or rows
    limit = 1.3 * max((max(result.speeds) for result in others), default=1.0)
    for index, result in enumerate(rows):
        low, high = min(result.speeds), max(result.speeds)
        color = BLUE if result.row.ours else _PALE if result.row.is_bound else GRAY
        axes.barh(index, min(result.speed, limit), height=0.62, color=color)
        text = "   ".join(
            [f"{result.speed:,.0f}", *(f"{result.ratio(one):.3g} of {one.row.name}" for one in references)]
        )
        if high > limit:
            axes.text(limit * 0.99, index, f"{text}  →", ha="right", va="center", fontsize=_SMALL, color=INK)
        else:
            axes.plot([low, high], [index, index], color=INK, linewidth=1, marker="|", markersize=5)
            axes.text(high + 0.012 * limit, index, text, va="center", fontsize=_SMALL, color=INK)
    # Above the names of the rows, too, as titles are long.
    title = "\n".join(wrap(headline.split(", "), (_WIDTH - 2 * _MARGIN) * DPI, TITLE))
    figure.suptitle(title, x=_MARGIN / _WIDTH, ha="left", color=INK, fontproperties=font(TITLE), parse_math=False)
    frame(axes, "", "images per second: median, slowest and fastest round", _TEXT, grid="x")
    axes.set_yticks(range(len(rows)), [result.row.title for result in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, limit)
    axes.xaxis.set_major_formatter(lambda speed, _: f"{speed:,.0f}")
    return figure
