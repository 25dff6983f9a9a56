"""The command line that the benchmarks of this folder share."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from augment.cli.benchmark import Result, Row, compare
from augment.cli.compose import compose_recipe
from augment.cli.parser import Parser, add_measuring_flags, whole_number
from augment.data.sources import load_dataset
from augment.drawing.figure_style import BLUE, DPI, GRAY, INK, TITLE, font, frame, save_figure, wrap
from augment.support.process import cores
from augment.tools.bench.rows import Setup

_PALE = "0.82"
_TEXT, _SMALL = 10, 9  # points
_WIDTH, _MARGIN = 9, 0.05  # inches


def make_parser(name: str, description: str) -> Parser:
    """Return a parser of the flags of `python -m augment bench` that set how rows are measured."""
    parser = Parser(name, description, f"  python tests/benchmarks/{name}.py aug=imagenette --photos DIR\n")
    add_measuring_flags(parser)
    for flag, default in (("--batch-size", 256), ("--threads", min(16, cores())), ("--workers", cores())):
        parser.add_argument(flag, type=whole_number(1), default=default)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=())
    return parser


def make_setup(flags: Namespace, overrides: Sequence[str]) -> Setup:
    """Return the recipe and the images of a command line."""
    recipe = compose_recipe(overrides)
    source = recipe.source()
    return Setup(recipe.aug, flags, lambda: load_dataset(source).train.files)


def measure(setup: Setup, subject: str, rows: Sequence[Row], baselines: Sequence[str]) -> list[Result]:
    """Measure the rows that --rows names, by default all of them, and report them."""
    chosen = [row for row in rows if not setup.flags.rows or row.name in setup.flags.rows]
    settings = {"recipe": str(setup.plan), "threads": setup.flags.threads, "workers": setup.flags.workers}
    subject = f"{subject} at {setup.aug.size} px, {setup}"
    results = compare(subject, chosen, setup.flags, device=setup.device, baselines=baselines, settings=settings)
    if setup.flags.out:
        references = [result for result in results if result.row.name == baselines[0] and result.timings]
        save_figure(draw_bars(subject, results, references), setup.flags.out / "bench.png", DPI)
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
