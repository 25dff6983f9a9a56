"""The page of the data set figure, and its charts of image sizes and shapes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from augment.drawing.style import BLUE, GRAY, INK, frame
from augment.drawing.text import font
from augment.tools.info.summary import Info

WIDTH = 11.0  # inches
ORANGE = "#c8641e"
COLORS = {"train": GRAY, "val": BLUE}
TEXT, SMALL = 9, 8  # points
THOUSANDS = "{x:,.0f}"  # format of ticks
CHARTS = 3.3  # inches: height of the charts including margins

_NARROW = 1.4  # ratio of the ends of an axis that gets a single tick
_POINTS = 2000  # images, up to which each is drawn as a point


@dataclass(frozen=True)
class Page:
    """A figure with coordinates in inches from its top left.

    Attributes:
        figure: the figure, `WIDTH` inches wide.
        height: its height in inches.
    """

    figure: Figure
    height: float

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes and return them."""
        return self.figure.add_axes((left / WIDTH, self._up(top + height), width / WIDTH, height / self.height))

    def write(self, left: float, top: float, text: str, points: float, *, bold: bool = False, ha: str = "left") -> None:
        """Write text with its top at `top`."""
        self.figure.text(left / WIDTH, self._up(top), text, color=INK, fontproperties=font(points, bold=bold),
                         ha=ha, va="top", parse_math=False)  # fmt: skip

    def _up(self, top: float) -> float:
        return 1 - top / self.height


def legend(axes: Axes) -> None:
    """Add a legend of the splits above axes, at the right."""
    axes.legend(frameon=False, fontsize=TEXT, labelcolor=INK, loc="lower right", bbox_to_anchor=(1.02, 0.98), ncols=2,
                handlelength=1.2, columnspacing=1.2)  # fmt: skip


def draw_shares(axes: Axes, train: NDArray[np.float64], val: NDArray[np.float64], edges: NDArray[np.float64]) -> None:
    """Draw a histogram of each split, as shares of the split.

    Args:
        axes: the axes to draw on.
        train: (T,) values.
        val: (V,) values.
        edges: (B + 1,) edges of the bins.
    """
    for (split, color), values in zip(COLORS.items(), (train, val), strict=True):
        weights = np.full(len(values), 1 / max(len(values), 1))
        kind: Literal["stepfilled", "step"] = "stepfilled" if split == "train" else "step"
        axes.hist(values, edges.tolist(), weights=weights, color=color, label=split, histtype=kind, linewidth=1.4)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g}%")
    axes.set_ylabel("of the split's images", fontsize=TEXT, color=INK)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))


def bins(train: int, val: int) -> int:
    """Return the number of bins for histograms of so many values."""
    return int(np.clip(2 * min(train, val) ** 0.5, 12, 40))


# --- charts ---


def draw_charts(page: Page, info: Info, top: float) -> None:
    """Draw charts of sizes, short sides and aspect ratios side by side, `top` inches below the top."""
    axes = [page.axes(0.7 + 3.6 * i, top + 0.35, 2.8, CHARTS - 1.0) for i in range(3)]
    if not info.good.any():
        for one in axes:
            one.set_axis_off()
        return
    _draw_sizes(axes[0], info)
    _draw_short_sides(axes[1], info)
    _draw_aspects(axes[2], info)


def _draw_sizes(axes: Axes, info: Info) -> None:
    width, height = (side[info.good].astype(float) for side in (info.scan.facts["width"], info.scan.facts["height"]))
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
    for axis in (axes.xaxis, axes.yaxis):
        _set_round_ticks(axis, low, high)
    frame(axes, "Width and height (line: square)", "width, px", TEXT)
    axes.set_ylabel("height, px", fontsize=TEXT, color=INK)


def _draw_short_sides(axes: Axes, info: Info) -> None:
    sides = info.short_side.astype(float)
    low, high = sides[info.good].min(), sides[info.good].max()
    low, high = min(low, info.size) / 1.1, max(high, info.size) * 1.1
    _draw_split_shares(axes, info, sides, np.geomspace(low, high, bins(len(info.data.train), len(info.data.val)) + 1))
    axes.set_xscale("log")
    axes.axvline(info.size, color=ORANGE, linewidth=1.3, linestyle="--")
    _set_round_ticks(axes.xaxis, low, high)
    frame(axes, f"Short side (dashed: aug.size={info.size})", "px", TEXT)


def _draw_aspects(axes: Axes, info: Info) -> None:
    widest = float(np.clip(np.maximum(info.aspect, 1 / info.aspect)[info.good].max(), 1.5, 8) * 1.05)
    count = bins(len(info.data.train), len(info.data.val)) // 2 * 2 + 1  # odd, so that one bin is centered on squares
    edges = np.geomspace(1 / widest, widest, count + 1)
    _draw_split_shares(axes, info, np.clip(info.aspect, edges[0], edges[-1]), edges)
    axes.set_xscale("log")
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
    ticks = [t for t in names if 1 / widest <= t <= widest and (widest < 3 or t not in (2 / 3, 3 / 2))]
    axes.set_xticks(ticks, [names[tick] for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    frame(axes, "Aspect ratio", "width : height", TEXT)
    legend(axes)


def _draw_split_shares(axes: Axes, info: Info, values: NDArray[np.float64], edges: NDArray[np.float64]) -> None:
    draw_shares(axes, values[info.good & info.is_train], values[info.good & ~info.is_train], edges)


def _set_round_ticks(axis: Axis, low: float, high: float) -> None:
    """Set two to six round numbers as ticks of a log-scaled axis, or its middle if it is narrow."""
    ticks: list[float] = []
    steps: tuple[Sequence[float], ...] = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), np.arange(1, 10, 0.5).tolist())
    for step in steps:
        if len(ticks) < 3:
            ticks = [base * 10**power for power in range(6) for base in step if low <= base * 10**power <= high]
    if len(ticks) < 2 or high < _NARROW * low:
        ticks = [round((low * high) ** 0.5)]
    axis.set_major_locator(FixedLocator(ticks[:: -(-len(ticks) // 6)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(THOUSANDS)
