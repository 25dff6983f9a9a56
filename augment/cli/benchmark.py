"""The report of a benchmark: a table, a JSON file and a bar chart."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from augment.cli.parser import table_console, writing
from augment.drawing.bars import draw_bars
from augment.drawing.style import save_figure
from augment.drawing.text import DPI
from augment.support.files import write_json
from augment.support.timing import Result, contention_warning


@dataclass(frozen=True)
class Column:
    """A column of a report.

    Attributes:
        key: its name in the JSON file.
        value: returns the value of a measured row, None if it has none. A column without any value is not shown.
        head: its heading in the table; without one it is in the JSON file only.
        form: how values are formatted.
    """

    key: str
    value: Callable[[Result], float | None]
    head: str = ""
    form: str = ".2f"


@dataclass(frozen=True)
class BenchReport:
    """The results of a benchmark.

    Attributes:
        headline: what was measured, on what and how, in one line.
        results: results of all rows, in the order of the table.
        settings: settings, hardware and verdicts as plain values, for the JSON file.
        columns: the columns after the speed.
        notes: keys of columns; the first that has a value is written next to a bar.
        beyond: names of the rows that may be too fast for the scale of the chart.
        lines: what to print below the table.
        name: name of the files that are written.
    """

    headline: str
    results: tuple[Result, ...]
    settings: Mapping[str, Any]
    columns: tuple[Column, ...]
    notes: tuple[str, ...]
    beyond: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    name: str = "bench"

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {**self.settings, "rows": [self._plain(result) for result in self.results]}

    def _plain(self, result: Result) -> dict[str, Any]:
        row: dict[str, Any] = {"name": result.name, "title": result.title, "left_out": result.left_out or None}
        if result.timings:
            speeds = result.speeds
            row |= {"images_per_second": median(speeds), "lowest": min(speeds), "highest": max(speeds)}
            row |= {column.key: column.value(result) for column in self.columns}
        return row | {"rounds": [vars(timing) for timing in result.timings]}

    def table(self) -> Table:
        """Return the table for the terminal."""
        rows = {result.name: self._plain(result) for result in self.results if result.timings}
        shown = [c for c in self.columns if c.head and any(row[c.key] is not None for row in rows.values())]
        bounds = [result for result in self.results if result.is_bound and result.timings]
        left_out = "\n".join(f"left out: {r.title} ({r.left_out})" for r in self.results if r.left_out)
        table = Table(
            box=SIMPLE_HEAD,
            pad_edge=False,
            title=self.headline,
            title_justify="left",
            caption=left_out or None,
            caption_justify="left",
        )
        # On narrow terminals titles are folded, never numbers cut.
        table.add_column("", overflow="fold", min_width=8)
        for head in ("img/s", "min..max", *(column.head for column in shown)):
            table.add_column(head, justify="right", no_wrap=True)
        for result in self.results:
            if row := rows.get(result.name):
                cells = ["" if row[c.key] is None else f"{row[c.key]:{c.form}}" for c in shown]
                speed = (f"{row['images_per_second']:,.0f}", f"{row['lowest']:,.0f}..{row['highest']:,.0f}")
                style = "bold" if result.ours else None
                table.add_row(result.title, *speed, *cells, style=style, end_section=result in bounds[-1:])
        return table

    def _note(self, result: Result) -> str:
        if result.name not in self.beyond:
            for column in self.columns:
                if column.key in self.notes and (value := column.value(result)) not in (None, 1):
                    return f"{value:{column.form}} {' '.join(column.head.split())}"
        return ""

    def write(self, folder: Path) -> None:
        """Write the JSON file and the chart, bars with a whisker from the slowest to the fastest round."""
        write_json(folder / f"{self.name}.json", self.plain())
        save_figure(draw_bars(self.results, self.headline, self._note, self.beyond), folder / f"{self.name}.png", DPI)

    def finish(self, folder: Path | None) -> None:
        """Print the table, and write the files, to a new folder in outputs if none is given.

        Raises:
            UserError: the files cannot be written.
        """
        folder = folder or Path("outputs") / f"bench-{datetime.now():%Y-%m-%d-%H-%M-%S}"
        console = table_console()
        console.print(self.table())
        if warning := contention_warning(self.results):
            console.print(warning, style="red", highlight=False, soft_wrap=True)
        with writing(f"--out {folder}"):  # the table is printed in any case
            self.write(folder)
        for line in (*self.lines, f"{folder}/{self.name}.json, {self.name}.png"):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
