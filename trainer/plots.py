"""Figures of a run as PNG files: its history, its confusion matrix, a batch of pictures, its schedule.

All text is drawn with fonts that have its characters; a character that no such font has is spelled as its code point.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from matplotlib.transforms import IdentityTransform
from numpy.typing import ArrayLike, NDArray

from augment.figures import save_figure
from augment.lettering import DPI, drawable, font, shorten, text_width, two_lines
from trainer.tasks import JUDGING, smaller_is_better, task_of

MAX_PICTURES = 32

_INK, _GRAY, _BLUE = "0.15", "0.6", "#1f5a96"
SPLITS = (("train", _GRAY), ("val", _BLUE))
_TITLE, _TEXT, _SMALL = 11, 10, 9  # points
# Matplotlib's font caches are shared by all threads.
LOCK = Lock()


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


def plot_confusion(counts: ArrayLike, classes: Sequence[str], path: Path) -> None:
    """Draw a confusion matrix, each row colored by its share of the true class.

    Args:
        counts: (C, C) integers, rows true, columns predicted.
        classes: C names.
        path: the PNG to write.

    Raises:
        ValueError: `counts` is not (C, C).
    """
    with LOCK:
        save_figure(_confusion_figure(np.asarray(counts), classes), path, DPI)


def plot_batch(images: NDArray[np.uint8], labels: Sequence[str], path: Path, *, title: str = "") -> None:
    """Draw the first 32 pictures of a batch, pixel by pixel (small ones enlarged by a whole factor), over their labels.

    Args:
        images: (N, H, W, 3) uint8 RGB, N at least 1.
        labels: N texts; one too long for its picture gets a second line, then an ellipsis in the middle.
        path: the PNG to write.
        title: a line above the pictures.

    Raises:
        ValueError: `images` has another shape or type, or `labels` another length.
    """
    with LOCK:
        save_figure(_batch_figure(images, labels, title), path, DPI)


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


# ---- history and schedule


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
            axes.legend(frameon=False, fontsize=_TEXT, labelcolor=_INK)
        else:
            _say_no_data(axes)
    if judging.share:
        right.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}%")
    key = f"val_{judging.quantity}"
    best = _best(rows, judging.monitor)  # by what best.pt is chosen too
    value = None if best is None else rows[best].get(key)
    if best is not None and value is not None:
        right.plot(epochs[best], value, "o", color=_BLUE, markersize=9, fillstyle="none")
        for axes in (left, right):
            axes.axvline(epochs[best], color=_GRAY, linewidth=1, linestyle=":", zorder=0)
        shown = f"{value:.2%}" if judging.share else f"{value:.4g}"
        by = "" if key == judging.monitor else f" by {judging.monitor.replace('_', ' ')}"
        _set_title(right, f"{judging.title}, best val {shown} (epoch {epochs[best]:.0f}{by})")
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


def set_epochs(axes: Axes, epochs: NDArray[np.float64]) -> None:
    """Make the x axis one of whole epochs."""
    if len(epochs):
        axes.set_xlim(epochs.min() - 0.5, epochs.max() + max(0.5, 0.015 * np.ptp(epochs)))
    axes.xaxis.set_major_locator(whole_numbers())


def whole_numbers() -> MaxNLocator:
    """Return what places ticks at whole numbers."""
    return MaxNLocator(nbins=10, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)


def _schedule_figure(values: Sequence[float]) -> Figure:
    figure = Figure(figsize=(6, 3.4), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    axes.plot(values, color=_BLUE, linewidth=1.6, marker="o" if len(values) == 1 else None)
    axes.xaxis.set_major_locator(whole_numbers())
    axes.margins(x=0.02)
    frame(axes, "Learning rate", "step")
    if len(values):
        peak = int(np.argmax(values))
        _set_title(axes, f"Learning rate, highest {values[peak]:.3g} in step {peak}")
    else:
        _say_no_data(axes)
    return figure


def _rates_figure(
    lrs: NDArray[np.float64],
    losses: NDArray[np.float64],
    smoothed: NDArray[np.float64],
    marks: Mapping[str, float],
) -> Figure:
    figure = Figure(figsize=(7, 4.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    axes.plot(lrs, losses, ".", color=_GRAY, markersize=5, alpha=0.5, label="batch")
    axes.plot(lrs, smoothed, color=_BLUE, linewidth=1.8, label="smoothed")
    axes.set_xscale("log")
    # The explosion at the end would press all else flat.
    low, high = smoothed.min(), min(smoothed.max(), 1.6 * np.median(smoothed[: max(1, len(smoothed) // 2)]))
    axes.set_ylim(low - 0.12 * (high - low), high + 0.12 * (high - low))
    frame(axes, "Loss over the learning rate", "learning rate")
    for place, (name, lr) in enumerate(marks.items()):
        color, face = (_INK, "white") if place else (_BLUE, _BLUE)
        at = (lr, smoothed[int(np.argmin(np.abs(lrs - lr)))])
        axes.axvline(lr, color=color, linewidth=1, linestyle=":", zorder=0)
        axes.plot(*at, "o", color=color, markerfacecolor=face, markersize=8, label=f"{name} {lr:.2g}")
        if not place:
            _set_title(axes, f"Loss over the learning rate, suggested: {lr:.2g}")
    axes.legend(frameon=False, fontsize=_TEXT, labelcolor=_INK)
    return figure


def frame(axes: Axes, title: str, xlabel: str) -> None:
    """Give axes the look of all figures."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(_GRAY)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=_TEXT, color=_GRAY, labelcolor=_INK)
    axes.set_xlabel(xlabel, fontsize=_TEXT, color=_INK)
    _set_title(axes, title)


def _set_title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=_TITLE, color=_INK)


def _say_no_data(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", fontsize=_TEXT, color=_GRAY)


# ---- confusion matrix


def _confusion_figure(counts: NDArray[np.integer], classes: Sequence[str]) -> Figure:
    size = len(classes)
    if not size or counts.shape != (size, size):
        raise ValueError(f"counts must be ({size}, {size}) for {size} classes, not {counts.shape}")
    cell, points = (0.46, _SMALL) if size <= 20 else (0.2, 8) if size <= 60 else (0.14, 7)
    named = size <= 150
    # Inches, as all lengths that follow; without names two pixels a class, within limits.
    side = max(cell * size, 2.8) if named else min(max(2 * size, 1200), 2400) / DPI
    names = [shorten(drawable(name), 2.2 * DPI, points) for name in classes] if named else []
    widest = max((text_width(name, points) / DPI for name in names), default=0.5)
    rotation = 0 if not named or widest < 0.9 * side / size else 45 if size <= 60 else 90
    left, right, top = widest + 0.48, 1.1, 0.45
    bottom = 0.6 + widest * np.sin(np.radians(rotation))
    width, height = left + side + right, bottom + side + top

    figure = Figure(figsize=(width, height), dpi=DPI)
    axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # The square root keeps the rare confusions of a good model visible.
    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1), aspect="auto")
    if named:
        _name_ticks(axes, names, points, rotation)
    if size <= 20:
        _write_counts(axes, counts, shares)
    axes.tick_params(length=0, pad=4, labelsize=points, labelcolor=_INK)
    axes.spines[:].set_color(_GRAY)
    axes.set_ylabel("true", fontsize=_TEXT, color=_INK)
    axes.set_xlabel("predicted", fontsize=_TEXT, color=_INK)
    # At fixed places, as the default ones are known only when the figure is drawn.
    axes.yaxis.set_label_coords(0.25 / width, (bottom + side / 2) / height, transform=figure.transFigure)
    axes.xaxis.set_label_coords((left + side / 2) / width, 0.33 / height, transform=figure.transFigure)
    total, correct = int(counts.sum()), int(np.trace(counts))
    _set_title(axes, f"Accuracy {correct / total:.2%} ({correct:,} of {total:,})" if total else "No samples")

    bar_axes = figure.add_axes(((left + side + 0.15) / width, bottom / height, 0.12 / width, side / height))
    bar = figure.colorbar(image, cax=bar_axes, ticks=[0, 0.05, 0.2, 0.5, 1], format=PercentFormatter(1.0, decimals=0))
    bar.outline.set_edgecolor(_GRAY)
    bar_axes.tick_params(labelsize=_SMALL, length=2, color=_GRAY, labelcolor=_INK)
    bar_axes.set_ylabel("share of the true class", fontsize=_SMALL, color=_INK)
    return figure


def _name_ticks(axes: Axes, names: Sequence[str], points: float, rotation: int) -> None:
    axes.set_yticks(range(len(names)), names, fontproperties=font(points), parse_math=False)
    axes.set_xticks(range(len(names)), names, fontproperties=font(points), parse_math=False, rotation=rotation)
    if rotation == 45:
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")


def _write_counts(axes: Axes, counts: NDArray[np.integer], shares: NDArray[np.float64]) -> None:
    for (row, column), count in np.ndenumerate(counts):
        color = "0.75" if not count else "white" if shares[row, column] > 0.45 else _INK
        axes.text(column, row, _compact(int(count)), ha="center", va="center", fontsize=_SMALL, color=color)


def _compact(count: int) -> str:
    return str(count) if count < 100_000 else f"{count / 1e6:.2g}M"


# ---- batch of pictures


def _batch_figure(images: NDArray[np.uint8], labels: Sequence[str], title: str) -> Figure:
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8 or not images.size:
        raise ValueError(f"images must be (N, H, W, 3) uint8 with N at least 1, not {images.shape} {images.dtype}")
    if len(labels) != len(images):
        raise ValueError(f"there must be one label for each of {len(images)} images, not {len(labels)}")
    images = images[:MAX_PICTURES]
    factor = max(1, -(-128 // max(images.shape[1:3])))
    tiles = images.repeat(factor, axis=1).repeat(factor, axis=2)
    count, tile_height, tile_width, _ = tiles.shape
    column_width = max(tile_width, 128)
    texts = [two_lines(drawable(label), column_width, _SMALL) for label in labels[:count]]

    # Everything below is in pixels.
    line = round(_SMALL * DPI / 72 * 1.3)
    gap, margin = 12, 16
    label_height = line * (1 + any("\n" in text for text in texts)) + 4
    rows = -(-count // min(8, max(1, 1800 // column_width)))
    columns = -(-count // rows)
    width = max(columns * (column_width + gap) - gap, 320) + 2 * margin
    head = margin + (2 * line if title else 0)
    height = head + rows * (tile_height + label_height + gap) - gap + margin
    # A hair more than the pixels, as Matplotlib rounds down.
    figure = Figure(figsize=((width + 0.01) / DPI, (height + 0.01) / DPI), dpi=DPI)
    canvas = np.full((height, width, 3), 255, dtype=np.uint8)
    for index, (tile, text) in enumerate(zip(tiles, texts, strict=True)):
        row, column = divmod(index, columns)
        x = margin + column * (column_width + gap) + (column_width - tile_width) // 2
        y = head + row * (tile_height + label_height + gap)
        canvas[y : y + tile_height, x : x + tile_width] = tile
        _write(figure, x + tile_width / 2, height - y - tile_height - 4, text, _SMALL, "center")
    figure.figimage(canvas)
    if title:
        text = shorten(drawable(title), width - 2 * margin, _TITLE)
        _write(figure, margin, height - margin, text, _TITLE, "left")
    return figure


def _write(figure: Figure, x: float, y: float, text: str, points: float, ha: str) -> None:
    label = figure.text(x, y, text, ha=ha, va="top", color=_INK, fontproperties=font(points), parse_math=False)
    label.set_transform(IdentityTransform())  # (x, y) in pixels
