"""Bar charts of benchmark rows."""

from collections.abc import Callable, Collection, Sequence
from statistics import median

from matplotlib.figure import Figure

from augment.drawing.style import BLUE, GRAY, INK, TITLE, frame
from augment.drawing.text import DPI, font, wrap
from augment.support.timing import Result

_PALE = "0.82"
_TEXT, _SMALL = 10, 9  # points
_WIDTH, _MARGIN = 9, 0.05  # inches


def draw_bars(
    results: Sequence[Result], headline: str, note: Callable[[Result], str], beyond: Collection[str] = ()
) -> Figure:
    """Draw the speed of each measured row as a bar, with a whisker from the slowest to the fastest round.

    Args:
        results: rows, from top to bottom.
        headline: the chart's title.
        note: returns a remark to print after a row's speed, "" for none.
        beyond: names of rows that may be too fast for the scale; their bars are cut off.
    """
    measured = [result for result in results if result.timings]
    figure = Figure(figsize=(_WIDTH, 1.35 + 0.42 * max(len(measured), 1)), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    limit = 1.3 * max((max(result.speeds) for result in measured if result.name not in beyond), default=1.0)
    for index, result in enumerate(measured):
        middle, low, high = median(result.speeds), min(result.speeds), max(result.speeds)
        color = BLUE if result.ours else _PALE if result.is_bound else GRAY
        axes.barh(index, min(middle, limit), height=0.62, color=color)
        text = f"{middle:,.0f}   {note(result)}".rstrip()
        if high > limit:
            axes.text(limit * 0.99, index, f"{text}  →", ha="right", va="center", fontsize=_SMALL, color=INK)
        else:
            axes.plot([low, high], [index, index], color=INK, linewidth=1, marker="|", markersize=5)
            axes.text(high + 0.012 * limit, index, text, va="center", fontsize=_SMALL, color=INK)
    # Above the names of the rows, too, as titles are long.
    title = "\n".join(wrap(headline.split(", "), (_WIDTH - 2 * _MARGIN) * DPI, TITLE))
    figure.suptitle(title, x=_MARGIN / _WIDTH, ha="left", color=INK, fontproperties=font(TITLE), parse_math=False)
    frame(axes, "", "images per second: median, slowest and fastest round", _TEXT, grid="x")
    axes.set_yticks(range(len(measured)), [result.title for result in measured])
    axes.invert_yaxis()
    axes.set_xlim(0, limit)
    axes.xaxis.set_major_formatter(lambda speed, _: f"{speed:,.0f}")
    return figure
