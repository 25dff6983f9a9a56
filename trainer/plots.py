"""Figures of curves: the history of a run, its schedule, a test of learning rates."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from augment.figures import BLUE, GRAY, INK, save_figure, set_title
from augment.lettering import DPI
from trainer.plot_style import LOCK, SPLITS, TEXT, frame, say_no_data, set_epochs, whole_numbers
from trainer.tasks import JUDGING, smaller_is_better, task_of

# Of suggested rates, by which they are told apart in the legend.
_MARKERS = "oDs"


def plot_history(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw loss and accuracy, or what else the task is judged by, over the epochs, with the best epoch marked.

    Args:
        rows: one mapping an epoch, as in metrics.jsonl: `epoch` (from 0), `train_loss`, `val_loss`, `train_accuracy`,
            `val_accuracy` (0..1), of labels `val_map`, of numbers `train_mae` and `val_mae`. What is missing or not
            finite is left out of the figure.
        path: the PNG to write.
    """
    with LOCK:
        save_figure(_history_figure(rows), path, DPI)


def plot_schedule(values: Sequence[float], path: Path) -> None:
    """Draw the learning rate over the steps.

    Args:
        values: the learning rate of each step.
        path: the PNG to write.
    """
    with LOCK:
        save_figure(_schedule_figure(values), path, DPI)


def plot_rates(
    lrs: Sequence[float],
    losses: Sequence[float],
    smoothed: Sequence[float],
    marks: Mapping[str, float],
    path: Path,
) -> None:
    """Draw the loss over the learning rate of a range test, each batch as a faint point.

    Args:
        lrs: the learning rates, rising.
        losses: the loss of each batch.
        smoothed: their average, the curve.
        marks: learning rates to point out, by name; the first is the recommended one.
        path: the PNG to write.
    """
    with LOCK:
        save_figure(_rates_figure(np.array(lrs), np.array(losses), np.array(smoothed), marks), path, DPI)


def _history_figure(rows: Sequence[Mapping[str, float]]) -> Figure:
    figure = Figure(figsize=(10, 3.8), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    epochs = np.array([row.get("epoch", index) for index, row in enumerate(rows)], dtype=float) + 1
    judging = JUDGING[task_of(rows)]
    for axes, quantity, title in ((left, "loss", "Loss"), (right, judging.quantity, judging.title)):
        drawn = [draw_series(axes, epochs, rows, f"{split}_{quantity}", color) for split, color in SPLITS]
        frame(axes, title, "epoch")
        set_epochs(axes, epochs)
        if any(drawn):
            axes.legend(frameon=False, fontsize=TEXT, labelcolor=INK)
        else:
            say_no_data(axes)
    if judging.share:
        right.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}%")
    key = f"val_{judging.quantity}"
    best = _best(rows, judging.monitor)  # by what best.pt is chosen too where nothing else is set
    value = None if best is None else rows[best].get(key)
    if best is not None and value is not None:
        right.plot(epochs[best], value, "o", color=BLUE, markersize=9, fillstyle="none")
        for axes in (left, right):
            axes.axvline(epochs[best], color=GRAY, linewidth=1, linestyle=":", zorder=0)
        shown = f"{value:.2%}" if judging.share else f"{value:.4g}"
        by = "" if key == judging.monitor else f" by {judging.monitor.replace('_', ' ')}"
        set_title(right, f"{judging.title}, best val {shown} (epoch {epochs[best]:.0f}{by})")
    return figure


def draw_series(axes: Axes, x: NDArray[np.float64], rows: Sequence[Mapping[str, float]], key: str, color: str) -> bool:
    """Draw a key of the rows as a line; return whether it has a value anywhere.

    The line goes past epochs that were not scored, and breaks where a value is not finite.
    """
    values = column(rows, key)
    if np.isnan(values).all():
        return False
    scored = [row.get(key) is not None for row in rows]
    marker = "o" if sum(scored) <= 30 else None
    axes.plot(
        x[scored], values[scored], color=color, linewidth=1.6, marker=marker, markersize=3.5, label=key.split("_")[0]
    )
    return True


def column(rows: Sequence[Mapping[str, float]], key: str) -> NDArray[np.float64]:
    """Return a key of all rows, (rows,); NaN where it is missing or not finite."""
    # A JSON null reads as None, which NumPy turns into NaN.
    values = np.array([row.get(key) for row in rows], dtype=float)
    return np.where(np.isfinite(values), values, np.nan)


def _best(rows: Sequence[Mapping[str, float]], key: str) -> int | None:
    """Return the index of the first row in which a value is best; None where there is none."""
    values = column(rows, key) * (-1 if smaller_is_better(key) else 1)
    return None if np.isnan(values).all() else int(np.nanargmax(values))


def _schedule_figure(values: Sequence[float]) -> Figure:
    figure = Figure(figsize=(6, 3.4), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    axes.plot(values, color=BLUE, linewidth=1.6, marker="o" if len(values) == 1 else None)
    axes.xaxis.set_major_locator(whole_numbers())
    axes.margins(x=0.02)
    frame(axes, "Learning rate", "step")
    if len(values):
        peak = int(np.argmax(values))
        set_title(axes, f"Learning rate, highest {values[peak]:.3g} in step {peak}")
    else:
        say_no_data(axes)
    return figure


def _rates_figure(
    lrs: NDArray[np.float64],
    losses: NDArray[np.float64],
    smoothed: NDArray[np.float64],
    marks: Mapping[str, float],
) -> Figure:
    figure = Figure(figsize=(7, 4.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    axes.plot(lrs, losses, ".", color=GRAY, markersize=5, alpha=0.5, label="batch")
    axes.plot(lrs, smoothed, color=BLUE, linewidth=1.8, label="smoothed")
    axes.set_xscale("log")
    # The explosion at the end would press all else flat.
    low, high = smoothed.min(), min(smoothed.max(), 1.6 * np.median(smoothed[: max(1, len(smoothed) // 2)]))
    axes.set_ylim(low - 0.12 * (high - low), high + 0.12 * (high - low))
    frame(axes, "Loss over the learning rate", "learning rate")
    for place, (name, lr) in enumerate(marks.items()):
        color, face = (INK, "white") if place else (BLUE, BLUE)
        at = (lr, smoothed[int(np.argmin(np.abs(lrs - lr)))])
        axes.axvline(lr, color=color, linewidth=1, linestyle=":", zorder=0)
        axes.plot(
            *at,
            _MARKERS[place % len(_MARKERS)],
            color=color,
            markerfacecolor=face,
            markersize=8,
            label=f"{name if place else 'suggested'} {lr:.2g}",
        )
        if not place:
            set_title(axes, f"Loss over the learning rate, suggested: {lr:.2g}")
    axes.legend(frameon=False, fontsize=TEXT, labelcolor=INK)
    return figure
