"""Curves: those of a run's epochs, and a test of learning rates."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from augment.drawing.text import BLUE, GRAY, INK, set_title
from trainer.figures.style import SPLITS, TEXT, frame, new_figure

_whole_numbers = partial(MaxNLocator, nbins=10, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)


def plot_rates(
    lrs: Sequence[float],
    losses: Sequence[float],
    smoothed: Sequence[float],
    suggestion: float | None,
    path: Path,
) -> None:
    """Draw losses over rising learning rates, each batch as a faint point, and what they suggest."""
    rates, curve = np.array(lrs), np.array(smoothed)
    with new_figure(path) as figure:
        figure.set_size_inches(7, 4.2)
        axes = figure.subplots()
        axes.plot(rates, losses, ".", color=GRAY, markersize=5, alpha=0.5, label="batch")
        axes.plot(rates, curve, color=BLUE, linewidth=1.8, label="smoothed")
        axes.set_xscale("log")
        # Diverging losses at the end would flatten the rest of the curve.
        low, high = curve.min(), min(curve.max(), 1.6 * np.median(curve[: max(1, len(curve) // 2)]))
        axes.set_ylim(low - 0.12 * (high - low), high + 0.12 * (high - low))
        frame(axes, "Loss over the learning rate", "learning rate")
        if suggestion is not None:
            axes.axvline(suggestion, color=BLUE, linewidth=1, linestyle=":", zorder=0)
            at = (suggestion, curve[int(np.argmin(np.abs(rates - suggestion)))])
            axes.plot(*at, "o", color=BLUE, markersize=8, label=f"suggested {suggestion:.2g}")
            set_title(axes, f"Loss over the learning rate, suggested: {suggestion:.2g}")
        axes.legend(frameon=False, fontsize=TEXT, labelcolor=INK)


def draw_splits(axes: Axes, rows: Sequence[Mapping[str, float]], quantity: str) -> bool:
    """Draw a quantity of both passes over the epochs; return whether any row has a value.

    A line skips epochs that were not scored, and breaks where a value is not finite.
    """
    epochs, drawn, highest = column(rows, "epoch") + 1, False, 0.0
    for split, color in SPLITS:
        values = column(rows, key := f"{split}_{quantity}")
        if np.isnan(values).all():
            continue
        scored = [row.get(key) is not None for row in rows]
        (line,) = axes.plot(epochs[scored], values[scored], color=color, linewidth=1.6, label=split)
        if sum(scored) <= 30:
            line.set(marker="o", markersize=3.5)
        drawn, highest = True, max(highest, float(np.nanmax(values)))
    frame(axes, "", "epoch")
    if len(epochs):
        axes.set_xlim(epochs.min() - 0.5, epochs.max() + max(0.5, 0.015 * np.ptp(epochs)))
    if len(epochs) == 1 and highest > 0:
        axes.set_ylim(0, 1.15 * highest)  # an axis around one point would have odd numbers
    axes.xaxis.set_major_locator(_whole_numbers())
    return drawn


def column(rows: Sequence[Mapping[str, float]], key: str) -> NDArray[np.float64]:
    """Return a key of all rows, (rows,); NaN where it is missing or not finite."""
    # A JSON null reads as None, which NumPy turns into NaN.
    values = np.array([row.get(key) for row in rows], dtype=float)
    return np.where(np.isfinite(values), values, np.nan)
