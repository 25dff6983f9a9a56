"""The style of all figures of a run.

Text is drawn with fonts that have its characters; characters that no font has are drawn as their code points.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from augment.drawing import style
from augment.drawing.style import BLUE, GRAY, TITLE, save_figure
from augment.drawing.text import DPI, text_width

SPLITS = (("train", GRAY), ("val", BLUE))
TEXT, SMALL = 10, 9  # points
_LINE = 1.25  # height of a line, over the size of its text
_TICK, _MARGIN = 7, 4  # points: a tick and the space between it and its label, and the edge of a figure
# Matplotlib's font caches are shared by all threads.
LOCK = Lock()


frame = partial(style.frame, points=TEXT)


@contextmanager
def new_figure(path: Path, *, constrained: bool = True) -> Iterator[Figure]:
    """Yield an empty figure to draw on, and save it as a PNG at the end.

    Args:
        path: the PNG to write.
        constrained: let Matplotlib arrange the axes.
    """
    with LOCK:
        figure = Figure(dpi=DPI, layout="constrained" if constrained else None)
        yield figure
        save_figure(figure, path, DPI)


def fit_margins(figure: Figure) -> None:
    """Place axes next to each other, with room for their labels. Matplotlib's layout engine takes ten times as long.

    Args:
        figure: axes in a row, which `frame` has styled, and in which all lines have been drawn.
    """
    width, height = 72 * figure.get_size_inches()  # points, as all lengths below
    cell = width / len(figure.axes)
    for number, axes in enumerate(figure.axes):
        left = _MARGIN + max(_widths(axes.yaxis), default=0) + _TICK
        right = _MARGIN + max([TEXT / 2, *_widths(axes.xaxis)[-1:]]) / 2  # the last label may be at the very end
        top = _MARGIN + (_LINE * TITLE + 6 if axes.get_title(loc="left") else TEXT / 2)
        if axes.yaxis.get_major_formatter().get_offset():  # such as 1e-5, above the axis
            top += _LINE * TEXT
        bottom = _MARGIN + 2 * _LINE * TEXT + 4 + _TICK
        box = number * cell + left, bottom, cell - left - right, height - bottom - top
        axes.set_position(np.array(box) / (width, height, width, height))


def _widths(axis: Axis) -> list[float]:
    """Return the widths of the labels of an axis, in points."""
    low, high = axis.get_view_interval()
    seen = [place for place in axis.get_majorticklocs() if low <= place <= high]
    return [text_width(label, TEXT) * 72 / DPI for label in axis.get_major_formatter().format_ticks(seen)]


def say_no_data(axes: Axes) -> None:
    """Write "no data" in place of a curve."""
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", fontsize=TEXT, color=GRAY)


def set_epochs(axes: Axes, epochs: NDArray[np.float64]) -> None:
    """Set the x axis to whole epochs."""
    if len(epochs):
        axes.set_xlim(epochs.min() - 0.5, epochs.max() + max(0.5, 0.015 * np.ptp(epochs)))
    axes.xaxis.set_major_locator(whole_numbers())


def whole_numbers() -> MaxNLocator:
    """Return a locator for ticks at whole numbers."""
    return MaxNLocator(nbins=10, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
