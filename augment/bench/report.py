"""What the benchmark found: figures of each row, a table, a JSON file and a bar chart."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.table import Table

from augment.figures import BLUE, GRAY, INK, TITLE, save_figure
from augment.files import write_json
from augment.wording import amount

_PALE = "0.82"
_TEXT, _SMALL = 10, 9  # points
DPI = 120
# CPU cores that other programs take.
_CROWDED = 0.2


@dataclass(frozen=True)
class Timing:
    """One row in one round.

    Attributes:
        pictures: how many came.
        seconds: by the clock.
        cpu_seconds: of all threads and worker processes.
        other_seconds: CPU time that other programs took meanwhile; None where it cannot be told.
    """

    pictures: int
    seconds: float
    cpu_seconds: float
    other_seconds: float | None = None

    @property
    def speed(self) -> float:
        """Pictures a second."""
        return self.pictures / self.seconds


@dataclass(frozen=True)
class Result:
    """A row's timings, one a round.

    Attributes:
        name: of the row.
        title: for people.
        timings: empty if the row was left out.
        left_out: why it was, "" if it was not.
        gpu_memory: bytes of GPU memory that it took, DALI's own pool and PyTorch's included; None without a GPU.
        is_bound: does less than the recipe.
        ours: is the project's own way of carrying out the recipe.
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
        """Pictures a second, of each round."""
        return [timing.speed for timing in self.timings]

    @property
    def cpu_ms(self) -> float:
        """CPU time for a picture in milliseconds, the median over rounds."""
        return median(1000 * timing.cpu_seconds / timing.pictures for timing in self.timings)

    @property
    def cores(self) -> float:
        """CPU cores in use, the median over rounds."""
        return median(timing.cpu_seconds / timing.seconds for timing in self.timings)


def ratio(result: Result, to: Result | None) -> float | None:
    """Return a row's speed over another's: the median of the rounds' ratios, None if either was not measured.

    The rows of a round stand side by side, so that what slows the machine down for a while slows both.
    """
    if to is None or not result.timings or not to.timings:
        return None
    return median(one / other for one, other in zip(result.speeds, to.speeds, strict=True))


def crowd(results: Sequence[Result]) -> str:
    """Warn if other programs took CPU time while rows were timed; "" if not."""
    timings = [timing for result in results for timing in result.timings]
    others = [(t.other_seconds or 0) / t.seconds for t in timings]
    disturbed = [cores for cores in others if cores > _CROWDED]
    if not disturbed:
        return ""
    return (
        f"{len(disturbed)} of {len(timings)} timings shared the CPU with other programs, which took up to "
        f"{max(disturbed):.1f} cores: repeat this on a machine that is left alone."
    )


@dataclass(frozen=True)
class Report:
    """A whole benchmark.

    Attributes:
        results: of all rows, in the order of the table.
        settings: what was set and what it ran on, plain values.
        start: seconds from the start of a process to its first batch, and what they went into; empty if not measured.
    """

    results: tuple[Result, ...]
    settings: Mapping[str, Any]
    start: Mapping[str, float] | None = None

    def find(self, name: str) -> Result | None:
        """Return the result of a row, None if it is not among them."""
        return next((result for result in self.results if result.name == name), None)

    @property
    def crowd(self) -> str:
        """A warning if other programs took CPU time while rows were timed, else ""."""
        return crowd(self.results)

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**self.settings, "rows": [self._plain(r) for r in self.results], "start": self.start}

    def _plain(self, result: Result) -> dict[str, Any]:
        named: dict[str, Any] = {"name": result.name, "title": result.title, "left_out": result.left_out or None}
        if not result.timings:
            return named
        speeds = result.speeds
        return named | {
            "images_per_second": median(speeds),
            "lowest": min(speeds),
            "highest": max(speeds),
            "of_decode": ratio(result, self.find("decode")),
            "of_crop": ratio(result, self.find("crop")),
            "gpu_memory_mib": None if result.gpu_memory is None else round(result.gpu_memory / 2**20),
            "cpu_cores": result.cores,
            "cpu_ms": result.cpu_ms,
            "rounds": [vars(timing) for timing in result.timings],
        }

    def table(self) -> Table:
        """Return the table for the terminal."""
        s = self.settings
        where = s["hardware"]["gpu"] or f"{s['hardware']['cores']} CPU cores"
        rounds = f"{amount(s['rounds'], 'round')} of {s['seconds']:g} s a row"
        batches = f"{s['size']} px, batch {s['batch_size']}, {rounds}"
        title = f"{s['recipe_name']} on {where}: {batches}"
        bounds = [result for result in self.results if result.is_bound and result.timings]
        left_out = "\n".join(f"left out: {r.title} ({r.left_out})" for r in self.results if r.left_out)
        table = Table(
            box=SIMPLE_HEAD,
            pad_edge=False,
            title=title,
            title_justify="left",
            caption=left_out or None,
            caption_justify="left",
        )
        # The names give way where it is narrow: a number that is cut is none.
        table.add_column("", overflow="fold", min_width=8)
        on_gpu = bool(s["hardware"]["gpu"])
        for column in (
            "img/s",
            "min..max",
            "of decode",
            "of crop",
            *(["GPU MiB"] if on_gpu else []),
            "cores",
            "CPU ms",
        ):
            table.add_column(column, justify="right", no_wrap=True)
        for result in self.results:
            if result.timings:
                cells = _cells(self._plain(result), on_gpu)
                table.add_row(*cells, style="bold" if result.ours else None, end_section=result in bounds[-1:])
        return table

    def write(self, folder: Path) -> None:
        """Write bench.json and bench.png."""
        write_json(folder / "bench.json", self.plain())
        save_figure(figure(self), folder / "bench.png", DPI)


def _cells(row: Mapping[str, Any], on_gpu: bool) -> list[str]:
    shares = ["" if row[key] is None else f"{row[key]:.2f}" for key in ("of_decode", "of_crop")]
    speed, spread = f"{row['images_per_second']:,.0f}", f"{row['lowest']:,.0f}..{row['highest']:,.0f}"
    memory = [f"{row['gpu_memory_mib']:,}"] if on_gpu else []
    return [row["title"], speed, spread, *shares, *memory, f"{row['cpu_cores']:.1f}", f"{row['cpu_ms']:.2f}"]


def figure(report: Report) -> Figure:
    """Draw the rows as bars, with a whisker from the slowest round to the fastest."""
    decode = report.find("decode")

    def note(result: Result) -> str:
        share = ratio(result, decode)
        return f"{share:.2f} of decode" if share and result.name not in ("read", "decode") else ""

    return draw_bars(report.results, _headline(report), note, beyond=("read",))


def draw_bars(
    results: Sequence[Result], headline: str, note: Callable[[Result], str], beyond: Collection[str] = ()
) -> Figure:
    """Draw the rows that were measured as bars, with a whisker from the slowest round to the fastest.

    Args:
        results: rows, from top to bottom.
        headline: over the bars.
        note: what to say of a row behind its speed, "" for nothing.
        beyond: names of rows that may be so fast that nothing else could be seen beside them; they are cut off.
    """
    measured = [result for result in results if result.timings]
    drawn = Figure(figsize=(9, 1.35 + 0.42 * max(len(measured), 1)), dpi=DPI, layout="constrained")
    axes = drawn.subplots()
    top = max((max(result.speeds) for result in measured if result.name not in beyond), default=1.0)
    for place, result in enumerate(measured):
        _draw(axes, place, result, note(result), limit=1.3 * top)
    axes.set_yticks(range(len(measured)), [result.title for result in measured], fontsize=_TEXT, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * top)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRAY)
    axes.grid(axis="x", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelsize=_TEXT, color=GRAY, labelcolor=INK)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda speed, _: f"{speed:,.0f}")
    axes.set_xlabel("pictures a second: median of the rounds, slowest to fastest", fontsize=_TEXT, color=INK)
    axes.set_title(headline, loc="left", fontsize=TITLE, color=INK)
    return drawn


def _draw(axes: Any, place: int, result: Result, note: str, limit: float) -> None:
    speeds = result.speeds
    middle, low, high = median(speeds), min(speeds), max(speeds)
    color = BLUE if result.ours else _PALE if result.is_bound else GRAY
    axes.barh(place, min(middle, limit), height=0.62, color=color)
    text = f"{middle:,.0f}" + (f"   {note}" if note else "")
    if high > limit:
        axes.text(limit * 0.99, place, f"{text}  →", ha="right", va="center", fontsize=_SMALL, color=INK)
        return
    axes.plot([low, high], [place, place], color=INK, linewidth=1, marker="|", markersize=5)
    axes.text(max(high, middle) + 0.012 * limit, place, text, va="center", fontsize=_SMALL, color=INK)


def _headline(report: Report) -> str:
    s = report.settings
    photos = f"{s['photos']['count']:,} pictures of {s['photos']['mean_bytes'] / 1000:.0f} kB"
    where = s["hardware"]["gpu"] or f"{s['hardware']['cores']} CPU cores"
    rounds = amount(s["rounds"], "round")
    return f"{s['recipe_name']} at {s['size']} px on {where}: {photos}, batch {s['batch_size']}, {rounds}"


def start_lines(start: Mapping[str, float]) -> str:
    """Say how long a process took to its first batch, and what for."""
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in start.items() if name != "total")
    return f"first batch of the recipe {start['total']:.2f} s after process start ({parts})"
