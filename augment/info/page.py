"""The page that a data set is drawn on, and the look of its charts."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from augment import figures
from augment.figures import BLUE, GRAY, INK
from augment.lettering import font

WIDTH = 11.0  # inches
ORANGE = "#c8641e"
COLORS = {"train": GRAY, "val": BLUE}
TEXT, SMALL = 9, 8  # points


@dataclass(frozen=True)
class Page:
    """A figure that is measured in inches from its top left.

    Attributes:
        figure: `WIDTH` wide.
        height: of the figure.
    """

    figure: Figure
    height: float

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Return new axes."""
        return self.figure.add_axes((left / WIDTH, self._up(top + height), width / WIDTH, height / self.height))

    def write(self, left: float, top: float, text: str, points: float, *, bold: bool = False, ha: str = "left") -> None:
        """Write text, whose top is given."""
        self.figure.text(left / WIDTH, self._up(top), text, color=INK, fontproperties=font(points, bold=bold),
                         ha=ha, va="top", parse_math=False)  # fmt: skip

    def _up(self, top: float) -> float:
        return 1 - top / self.height


def frame(axes: Axes, title: str, xlabel: str) -> None:
    """Give axes the look of all."""
    figures.frame(axes, title, xlabel, TEXT)


def legend(axes: Axes) -> None:
    """Put the names of both splits above axes, at the right."""
    axes.legend(frameon=False, fontsize=TEXT, labelcolor=INK, loc="lower right", bbox_to_anchor=(1.02, 0.98), ncols=2,
                handlelength=1.2, columnspacing=1.2)  # fmt: skip


def thousands() -> FuncFormatter:
    """Return what writes 1000 as 1,000."""
    return FuncFormatter(lambda value, _: f"{value:,.0f}")


def draw_shares(axes: Axes, train: NDArray[np.float64], val: NDArray[np.float64], edges: NDArray[np.float64]) -> None:
    """Draw a histogram of each split, as shares of it.

    Args:
        axes: where.
        train: (T,) values.
        val: (V,) values.
        edges: (B + 1,) of the bins.
    """
    for (split, color), values in zip(COLORS.items(), (train, val), strict=True):
        weights = np.full(len(values), 1 / max(len(values), 1))
        kind: Literal["stepfilled", "step"] = "stepfilled" if split == "train" else "step"
        axes.hist(values, edges.tolist(), weights=weights, color=color, label=split, histtype=kind, linewidth=1.4)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))


def bins(train: int, val: int) -> int:
    """Return the number of bins of a histogram of so many values."""
    return int(np.clip(2 * min(train, val) ** 0.5, 12, 40))
