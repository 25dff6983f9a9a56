"""The look of all figures of a run.

All text is drawn with fonts that have its characters; a character that no such font has is spelled as its code point.
"""

from threading import Lock

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from augment import figures
from augment.figures import BLUE, GRAY

SPLITS = (("train", GRAY), ("val", BLUE))
TEXT, SMALL = 10, 9  # points
# Matplotlib's font caches are shared by all threads.
LOCK = Lock()


def frame(axes: Axes, title: str, xlabel: str) -> None:
    """Give axes the look of all figures."""
    figures.frame(axes, title, xlabel, TEXT)


def say_no_data(axes: Axes) -> None:
    """Say that there is nothing to draw."""
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", fontsize=TEXT, color=GRAY)


def set_epochs(axes: Axes, epochs: NDArray[np.float64]) -> None:
    """Make the x axis one of whole epochs."""
    if len(epochs):
        axes.set_xlim(epochs.min() - 0.5, epochs.max() + max(0.5, 0.015 * np.ptp(epochs)))
    axes.xaxis.set_major_locator(whole_numbers())


def whole_numbers() -> MaxNLocator:
    """Return what places ticks at whole numbers."""
    return MaxNLocator(nbins=10, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
