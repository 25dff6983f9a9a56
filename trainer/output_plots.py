"""Figures of labels and numbers: the average precision of each label, and predictions over what they should be."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from augment.figures import BLUE, GRAY, INK, save_figure
from augment.lettering import DPI, drawable, font, shorten
from trainer.outputs import LabelScore
from trainer.plot_style import LOCK, frame

MAX_BARS = 60
MAX_SCATTERS = 9
_MAX_POINTS = 5000


def plot_labels(scores: Sequence[LabelScore], path: Path) -> None:
    """Draw the average precision of each label as a bar, the worst first; of many, the worst 60.

    Args:
        scores: of all labels.
        path: the PNG to write.
    """
    known = sorted((score for score in scores if score.pictures), key=lambda score: score.average_precision)[:MAX_BARS]
    with LOCK:
        figure = Figure(figsize=(7, 1.2 + 0.26 * max(1, len(known))), dpi=DPI, layout="constrained")
        axes = figure.subplots()
        axes.barh(range(len(known)), [score.average_precision for score in known], color=BLUE, height=0.7)
        names = [f"{shorten(drawable(score.name), 2.2 * DPI, 9)} ({score.pictures})" for score in known]
        axes.set_yticks(range(len(known)), names, fontproperties=font(9), parse_math=False)
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        mean = float(np.mean([score.average_precision for score in known])) if known else float("nan")
        more = "" if len(known) == len(scores) else f", {len(known)} of {len(scores)} labels"
        frame(axes, f"Average precision, mean {mean:.4f}{more}", "average precision")
        axes.grid(visible=False, axis="y")
        save_figure(figure, path, DPI)


def plot_scatter(targets: NDArray[np.float32], outputs: NDArray[np.float32], names: Sequence[str], path: Path) -> None:
    """Draw predictions over targets, a panel a number; of many, the first nine, and of many pictures every so many.

    Args:
        targets: (N, K), N at least 1.
        outputs: (N, K).
        names: K names.
        path: the PNG to write.
    """
    shown = min(len(names), MAX_SCATTERS)
    columns = min(shown, 3)
    rows = -(-shown // columns)
    step = -(-len(targets) // _MAX_POINTS)
    with LOCK:
        figure = Figure(figsize=(4.2 * columns, 4 * rows), dpi=DPI, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for place, axes in enumerate(panels):
            if place >= shown:
                axes.set_visible(False)
                continue
            x, y = targets[::step, place], outputs[::step, place]
            ends = [float(x.min()), float(x.max())]
            axes.plot(ends, ends, color=GRAY, linewidth=1, linestyle=":")
            axes.plot(x, y, ".", color=BLUE, markersize=4, alpha=0.5)
            error = float(np.abs(outputs[:, place] - targets[:, place]).mean())
            frame(axes, f"{shorten(drawable(names[place]), 2 * DPI, 11)}, mean error {error:.3g}", "true")
            axes.set_ylabel("predicted", color=INK)
        save_figure(figure, path, DPI)
