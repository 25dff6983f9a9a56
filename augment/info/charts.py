"""Charts of the sizes and shapes of a data set's pictures."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from augment.figures import BLUE, GRAY
from augment.info.page import ORANGE, Page, bins, draw_shares, frame, legend, thousands
from augment.info.summary import Info

CHARTS = 3.3  # inches: their height, with the blanks around them

_NARROW = 1.4  # high over low end of a scale
_POINTS = 2000  # pictures that are drawn as a point each


def draw_charts(page: Page, info: Info, top: float) -> None:
    """Draw charts of sizes, short sides and aspects side by side, from `top` inches on."""
    axes = [page.axes(0.7 + 3.6 * i, top + 0.35, 2.8, CHARTS - 1.0) for i in range(3)]
    if not info.good.any():
        for one in axes:
            one.set_axis_off()
        return
    _draw_sizes(axes[0], info)
    _draw_short_sides(axes[1], info)
    _draw_aspects(axes[2], info)


def _draw_sizes(axes: Axes, info: Info) -> None:
    width, height = (side[info.good].astype(float) for side in (info.found.width, info.found.height))
    low, high = min(width.min(), height.min()) / 1.15, max(width.max(), height.max()) * 1.15
    if len(width) <= _POINTS:
        axes.scatter(width, height, s=9, color=BLUE, alpha=0.35, linewidths=0)
    else:
        edges = np.geomspace(low, high, 61)
        counts, _, _ = np.histogram2d(width, height, [edges, edges])
        axes.pcolormesh(edges, edges, np.where(counts, counts, np.nan).T, cmap="Blues",
                        norm=LogNorm(0.3, max(counts.max(), 2)))  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.plot([low, high], [low, high], color=GRAY, linewidth=0.8, zorder=0)
    ticks = _round_ticks(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(thousands())
    frame(axes, "Width and height; line: square", "px")


def _draw_short_sides(axes: Axes, info: Info) -> None:
    sides = info.short_side.astype(float)
    low, high = sides[info.good].min(), sides[info.good].max()
    low, high = min(low, info.size) / 1.1, max(high, info.size) * 1.1
    _draw_shares(axes, info, sides, np.geomspace(low, high, bins(len(info.data.train), len(info.data.val)) + 1))
    axes.set_xscale("log")
    axes.axvline(info.size, color=ORANGE, linewidth=1.3, linestyle="--")
    axes.xaxis.set_major_locator(FixedLocator(_round_ticks(low, high)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(thousands())
    frame(axes, f"Short side; dashed: aug.size={info.size}", "px")


def _draw_aspects(axes: Axes, info: Info) -> None:
    widest = float(np.clip(np.maximum(info.aspect, 1 / info.aspect)[info.good].max(), 1.5, 8) * 1.05)
    count = bins(len(info.data.train), len(info.data.val)) // 2 * 2 + 1  # odd, so that one is about squares
    edges = np.geomspace(1 / widest, widest, count + 1)
    _draw_shares(axes, info, np.clip(info.aspect, edges[0], edges[-1]), edges)
    axes.set_xscale("log")
    ticks = [1 / 8, 1 / 4, 1 / 2, 2 / 3, 1, 3 / 2, 2, 4, 8]
    ticks = [t for t in ticks if 1 / widest <= t <= widest and (widest < 3 or t not in (2 / 3, 3 / 2))]
    names = {
        1 / 8: "1:8",
        1 / 4: "1:4",
        1 / 2: "1:2",
        2 / 3: "2:3",
        1: "1:1",
        3 / 2: "3:2",
        2: "2:1",
        4: "4:1",
        8: "8:1",
    }
    axes.set_xticks(ticks, [names[tick] for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    frame(axes, "Aspect", "width : height")
    legend(axes)


def _draw_shares(axes: Axes, info: Info, values: NDArray[np.float64], edges: NDArray[np.float64]) -> None:
    draw_shares(axes, values[info.good & info.is_train], values[info.good & ~info.is_train], edges)


def _round_ticks(low: float, high: float) -> list[float]:
    """Return two to six round numbers in a range that is drawn on a log scale, its middle if it is narrow."""
    if high < _NARROW * low:
        return [round((low * high) ** 0.5)]
    steps: tuple[Sequence[float], ...] = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), np.arange(1, 10, 0.5).tolist())
    ticks: list[float] = []
    for step in steps:
        ticks = [base * 10**power for power in range(6) for base in step if low <= base * 10**power <= high]
        if len(ticks) >= 3:
            break
    return ticks[:: -(-len(ticks) // 6)] if len(ticks) >= 2 else [round((low * high) ** 0.5)]
