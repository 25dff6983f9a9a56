"""Draw a batch, the predictions of a pass, or a learning rate test as a PNG."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from augment.drawing import figure_style
from augment.drawing.contact_sheet import draw_batch
from augment.drawing.figure_style import (
    BLUE,
    DPI,
    GRAY,
    INK,
    drawable,
    font,
    save_figure,
    set_title,
    shorten,
    text_width,
)
from augment.support.formatting import percent
from trainer.tasks.display import BarChart, FigureData, Matrix, Scatter

SPLITS = (("train", GRAY), ("val", BLUE))
TEXT, SMALL = 10, 9  # points
# All threads share Matplotlib's font caches.
LOCK = Lock()


frame = partial(figure_style.frame, points=TEXT)


@contextmanager
def new_figure(path: Path, *, constrained: bool = True) -> Iterator[Figure]:
    """Yield an empty figure, and save it as a PNG at the end."""
    with LOCK:
        figure = Figure(dpi=DPI, layout="constrained" if constrained else None)
        yield figure
        save_figure(figure, path, DPI, parents=False)  # do not create a deleted run folder again


MAX_BARS = 60
MAX_SCATTERS = 9
_MAX_POINTS = 5000

# The number of classes up to which each row applies, the side of a cell in inches, and the size of names in points.
_CELLS = ((20, 0.46, SMALL), (60, 0.2, 8), (float("inf"), 0.14, 7))


def plot_batch(images: NDArray[np.uint8], labels: Sequence[str], path: Path, *, title: str = "") -> None:
    """Draw images, (N, H, W, 3) uint8 RGB, above their labels. See `draw_batch`."""
    with new_figure(path, constrained=False) as figure:
        draw_batch(figure, images, labels, title)


def plot_outputs(figure: FigureData, path: Path) -> None:
    match figure:
        case Matrix():
            plot_confusion(figure.counts, figure.names, path, shares=figure.shares)
        case BarChart():
            plot_bars(figure, path)
        case Scatter():
            plot_scatter(figure, path)


def plot_confusion(counts: NDArray[np.integer], classes: Sequence[str], path: Path, *, shares: bool = False) -> None:
    """Draw a confusion matrix, (C, C), with true rows and predicted columns. Colors are shares of the true class.

    With `shares`, cells show the shares instead of counts.
    """
    size = len(classes)
    with new_figure(path, constrained=False) as figure:
        cell, points = next((cell, points) for most, cell, points in _CELLS if size <= most)
        named = size <= 150
        # All lengths are in inches. Without names, each class has two pixels, within limits.
        side = max(cell * size, 2.8) if named else min(max(2 * size, 1200), 2400) / DPI
        names = [shorten(drawable(name), 2.2 * DPI, points) for name in classes] if named else []
        widest = max((text_width(name, points) / DPI for name in names), default=0.5)
        rotation = 0
        if named and widest >= 0.9 * side / size:
            rotation = 45 if size <= 60 else 90
        left, right, top = widest + 0.48, 1.1, 0.45
        bottom = 0.6 + widest * np.sin(np.radians(rotation))
        width, height = left + side + right, bottom + side + top

        figure.set_size_inches(width, height)
        axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
        colors = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        # The square root of the shares makes the rare confusions of a good model visible.
        # Resampling the shares instead of their colors needs half the memory and less than half the time.
        image = axes.imshow(colors, cmap="Blues", norm=PowerNorm(0.5, 0, 1), aspect="auto", interpolation_stage="data")
        if named:
            _name_ticks(axes, names, points, rotation)
        if size <= 20:
            _write_counts(axes, counts, colors, shares=shares)
        axes.tick_params(length=0, pad=4, labelsize=points, labelcolor=INK)
        axes.spines[:].set_color(GRAY)
        axes.set_ylabel("true", fontsize=TEXT, color=INK)
        axes.set_xlabel("predicted", fontsize=TEXT, color=INK)
        # Fixed positions, because the default ones are unknown until the figure is drawn.
        axes.yaxis.set_label_coords(0.25 / width, (bottom + side / 2) / height, transform=figure.transFigure)
        axes.xaxis.set_label_coords((left + side / 2) / width, 0.33 / height, transform=figure.transFigure)
        total, correct = int(counts.sum()), int(np.trace(counts))
        set_title(axes, f"Accuracy {correct / total:.2%} ({correct:,} of {total:,})" if total else "No samples")

        bar_axes = figure.add_axes(((left + side + 0.15) / width, bottom / height, 0.12 / width, side / height))
        _add_color_bar(image, bar_axes)


def _add_color_bar(image: AxesImage, axes: Axes) -> None:
    bar = axes.figure.colorbar(image, cax=axes, ticks=[0, 0.05, 0.2, 0.5, 1], format=PercentFormatter(1.0, decimals=0))
    bar.outline.set_edgecolor(GRAY)
    axes.tick_params(labelsize=SMALL, length=2, color=GRAY, labelcolor=INK)
    axes.set_ylabel("share of the true class", fontsize=SMALL, color=INK)


def _name_ticks(axes: Axes, names: Sequence[str], points: float, rotation: int) -> None:
    axes.set_yticks(range(len(names)), names, fontproperties=font(points), parse_math=False)
    axes.set_xticks(range(len(names)), names, fontproperties=font(points), parse_math=False, rotation=rotation)
    if rotation == 45:
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")


def _write_counts(axes: Axes, counts: NDArray[np.integer], colors: NDArray[np.float64], *, shares: bool) -> None:
    for (row, column), count in np.ndenumerate(counts):
        share = float(colors[row, column])
        color = "white" if share > 0.45 else INK
        text = str(count) if count < 100_000 else f"{count / 1e6:.2g}M"
        if not count:
            color = "0.75"
        elif shares:
            text = percent(share)
        axes.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=color)


def plot_bars(chart: BarChart, path: Path) -> None:
    """Draw a bar for each class or label, the lowest first, at most `MAX_BARS`."""
    bars = sorted(chart.bars, key=lambda bar: bar[2])[:MAX_BARS]
    values = [value for _, _, value in bars]
    with new_figure(path) as figure:
        figure.set_size_inches(7, 1.2 + 0.26 * max(1, len(bars)))
        axes = figure.subplots()
        axes.barh(range(len(bars)), values, color=BLUE, height=0.7)
        labels = [f"{shorten(drawable(name), 2.2 * DPI, 9)} ({images})" for name, images, _ in bars]
        axes.set_yticks(range(len(bars)), labels, fontproperties=font(9), parse_math=False)
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        mean = float(np.mean([value for *_, value in chart.bars])) if values else float("nan")
        lowest = "the lowest " if len(bars) < len(chart.bars) else ""
        more = "" if len(bars) == chart.total else f", {lowest}{len(bars)} of {chart.total} {chart.units}"
        frame(axes, f"{chart.quantity.capitalize()}, mean {mean:.4f}{more}", chart.quantity)
        axes.grid(visible=False, axis="y")


def plot_scatter(scatter: Scatter, path: Path) -> None:
    """Draw predictions against targets, with a panel for each target.

    At most the first `MAX_SCATTERS` targets are drawn. If there are many images, only some are drawn.
    """
    targets, outputs = scatter.targets, scatter.outputs
    count = min(len(scatter.names), MAX_SCATTERS)
    columns = min(count, 3)
    rows = -(-count // columns)
    step = -(-len(targets) // _MAX_POINTS)
    with new_figure(path) as figure:
        figure.set_size_inches(4.2 * columns, 4 * rows)
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for number, axes in enumerate(panels):
            if number >= count:
                axes.set_visible(False)
                continue
            x, y = targets[::step, number], outputs[::step, number]
            ends = [float(x.min()), float(x.max())]
            axes.plot(ends, ends, color=GRAY, linewidth=1, linestyle=":")
            axes.plot(x, y, ".", color=BLUE, markersize=4, alpha=0.5)
            error = float(np.abs(outputs[:, number] - targets[:, number]).mean())
            frame(axes, f"{shorten(drawable(scatter.names[number]), 2 * DPI, 11)}, mean error {error:.3g}", "true")
            axes.set_ylabel("predicted", color=INK)


def plot_rates(
    lrs: Sequence[float],
    losses: Sequence[float],
    smoothed: Sequence[float],
    suggestion: float | None,
    path: Path,
) -> None:
    """Draw the losses of batches over rising learning rates, a smoothed curve, and the suggested rate."""
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
