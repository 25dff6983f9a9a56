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
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from augment.drawing import style
from augment.drawing.style import BLUE, GRAY, save_figure
from augment.drawing.text import DPI

SPLITS = (("train", GRAY), ("val", BLUE))
TEXT, SMALL = 10, 9  # points
_MARGIN, _TITLE = 3 / 72, 0.2  # inches around figures, and for a line of a title
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


def place(figure: Figure) -> None:
    """Place axes of curves side by side, equally wide, where their labels have room.

    Matplotlib's own layouts measure all of a figure several times, which takes longer than drawing it.
    """
    width, height = figure.get_size_inches()
    count = len(figure.axes)
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    sides: list[NDArray[np.float64]] = []  # inches to the left of axes and below, to the right and above
    for axes in figure.axes:
        # Almost as large as in the end, as its size decides which labels there are.
        title = _TITLE if axes.get_title(loc="left") else 0
        axes.set_position((0.5 / width, 0.48 / height, 1 / count - 0.6 / width, 1 - (0.52 + title) / height))
        labels = [box for axis in (axes.xaxis, axes.yaxis) if (box := axis.get_tightbbox(renderer)) is not None]
        room = np.subtract(Bbox.union([axes.bbox, *labels]).extents, axes.bbox.extents) / figure.dpi
        sides.append(_MARGIN + room * (-1, -1, 1, 1) + (0, 0, 0, title))
    most = np.max(sides, axis=0)
    wide = (width - sum(left + right for left, _, right, _ in sides)) / count
    x = 0.0
    for axes, (left, _, right, _) in zip(figure.axes, sides, strict=True):
        axes.set_position(((x + left) / width, most[1] / height, wide / width, 1 - (most[1] + most[3]) / height))
        x += left + wide + right


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
