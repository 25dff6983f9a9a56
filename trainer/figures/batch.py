"""The figure of a batch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from augment.drawing.sheet import draw_batch
from trainer.figures.style import new_figure


def plot_batch(images: NDArray[np.uint8], labels: Sequence[str], path: Path, *, title: str = "") -> None:
    """Draw images, (N, H, W, 3) uint8 RGB, above their labels into a PNG; see `draw_batch`."""
    with new_figure(path, constrained=False) as figure:
        draw_batch(figure, images, labels, title)
