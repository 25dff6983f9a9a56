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
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from augment.drawing import style
from augment.drawing.style import BLUE, GRAY, save_figure
from augment.drawing.text import DPI

SPLITS = (("train", GRAY), ("val", BLUE))
TEXT, SMALL = 10, 9  # points
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
        save_figure(figure, path, DPI, parents=False)  # a run's folder that was deleted is not made again


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
