"""Curves of a run as SVG pictures that stand in the page itself."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from trainer.plot_style import LOCK, SPLITS, frame, set_epochs
from trainer.plots import column, draw_series
from trainer.report.record import Record
from trainer.schedule import Schedule
from trainer.tasks import Row

_COLORS = dict(SPLITS)
_FAINT = "0.75"
_POINTS = 1000  # that a line is drawn with at most; more cannot be seen


@dataclass(frozen=True)
class Chart:
    """A curve in the page.

    Attributes:
        title: above it.
        uri: the picture, as a data URI.
        alt: what it shows, in words.
        caption: below it; may be empty.
    """

    title: str
    uri: str
    alt: str
    caption: str = ""


def charts(record: Record) -> list[Chart]:
    """Draw all curves that there are data for."""
    with LOCK:
        made = [_loss(record), _score(record), *_schedules(record), _speed(record)]
    return [chart for chart in made if chart is not None]


def _loss(record: Record) -> Chart | None:
    figure, axes = _axes()
    epochs = _epochs(record.rows)
    steps = [step for step in record.steps if {"step", "loss"} <= step.keys()]
    if steps and (before := record.batches_before) is not None:
        # An epoch's row is a mean over it and stands at its number, so its batches lie half an epoch to both sides.
        x = np.interp(column(steps, "step"), before, np.arange(len(before))) + 0.5
        axes.plot(*_thin(x, column(steps, "loss")), color=_FAINT, linewidth=0.8, label="train, within epochs", zorder=1)
    if not _draw_splits(axes, record, epochs, "loss"):
        return None
    _set_range(axes, record.rows)
    return Chart("Loss", _svg(figure), _told(record.rows, "loss", "{:.3g}"))


def _score(record: Record) -> Chart | None:
    figure, axes = _axes()
    judging = record.judging
    if not _draw_splits(axes, record, _epochs(record.rows), judging.quantity):
        return None
    if judging.share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    best = record.best.get(f"val_{judging.quantity}")
    if best is not None:
        axes.plot(record.best["epoch"] + 1, best, "o", color=_COLORS["val"], markersize=9, fillstyle="none")
    return Chart(
        judging.title, _svg(figure), _told(record.rows, judging.quantity, "{:.1%}" if judging.share else "{:.3g}")
    )


def _draw_splits(axes: Axes, record: Record, epochs: NDArray[np.float64], quantity: str) -> bool:
    drawn = [draw_series(axes, epochs, record.rows, f"{split}_{quantity}", color) for split, color in SPLITS]
    frame(axes, "", "epoch")
    set_epochs(axes, epochs)
    if record.best:
        axes.axvline(record.best["epoch"] + 1, color=_FAINT, linewidth=1, linestyle=":", zorder=0)
    if any(drawn):
        handles, labels = axes.get_legend_handles_labels()
        order = sorted(range(len(labels)), key=lambda i: "," in labels[i])  # what is faint comes last
        axes.legend([handles[i] for i in order], [labels[i] for i in order], frameon=False, fontsize=9)
    return any(drawn)


def _set_range(axes: Axes, rows: Sequence[Row]) -> None:
    """Keep single steps, of which one may be far off, from flattening the curves of the epochs."""
    values = np.concatenate([column(rows, f"{split}_loss") for split, _ in SPLITS])
    values = values[np.isfinite(values)]
    low, high = values.min(), values.max()
    margin = 0.08 * (high - low) or 0.1
    axes.set_ylim(min(low - margin, axes.get_ylim()[1]), high + margin)


def _schedules(record: Record) -> list[Chart]:
    if record.config is None:
        return []
    made = []
    for name, schedule in record.config.fit.schedules().items():
        title = {"lr": "Learning rate"}.get(name, name.capitalize())
        made.append(_schedule(record, title, schedule, record.config.fit.epochs))
    return made


def _schedule(record: Record, title: str, schedule: Schedule, epochs: int) -> Chart:
    figure, axes = _axes()
    position = np.linspace(0, 1, 401)
    values = np.array([schedule(float(p)) for p in position])
    before = record.batches_before
    # A schedule goes by batches, of which not all epochs have as many.
    x = position * epochs if before is None else np.interp(position * before[-1], before, np.arange(epochs + 1))
    done = x <= len(record.rows)
    axes.plot(x, values, color=_FAINT, linewidth=1.6, linestyle=":")
    axes.plot(x[done], values[done], color=_COLORS["val"], linewidth=1.8)
    frame(axes, "", "epochs")
    axes.margins(x=0.02)
    if values.min() >= 0:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]) if values.min() < values.max() / 2 else None)
    # Where it turns, up or down; an end where it does not.
    ends = (values[0], values[-1])
    peak = int(values.argmax() if values.max() > max(ends) else values.argmin())
    steps = "" if before is None else f"{before[-1]:,} training batches. "
    told = f"from {values[0]:.3g} over {values[peak]:.3g} to {values[-1]:.3g}"
    if len(set(values.tolist())) == 1:
        told = f"{values[0]:.3g} throughout"
    elif values[peak] in ends:
        told = f"from {values[0]:.3g} to {values[-1]:.3g}"
    rest = "" if done.all() else " Dotted: what was not reached."
    return Chart(title, _svg(figure), f"{title}: {told}.", f"{steps}{told[0].upper()}{told[1:]}.{rest}")


def _speed(record: Record) -> Chart | None:
    rates = column(record.rows, "images_per_second")
    steps = [step for step in record.steps if {"seconds", "images_per_second"} <= step.keys()]
    figure, axes = _axes()
    if steps:
        seconds = column(steps, "seconds")
        unit, name = (60.0, "minutes") if np.nanmax(seconds, initial=0) > 300 else (1.0, "seconds")
        x, y = _thin(seconds / unit, column(steps, "images_per_second"))
        axes.plot(x, y, color=_COLORS["val"], linewidth=1.2)
        frame(axes, "", name)
        axes.margins(x=0.02)
    elif not draw_series(axes, _epochs(record.rows), record.rows, "images_per_second", _COLORS["val"]):
        return None
    else:
        frame(axes, "", "epoch")
        set_epochs(axes, _epochs(record.rows))
        y = rates
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:,.0f}")
    seen = y[np.isfinite(y)]
    if not len(seen):
        return None
    told = f"{seen.min():,.0f} to {seen.max():,.0f}, median {np.median(seen):,.0f}"
    return Chart("Training pictures a second", _svg(figure), f"Pictures a second in training: {told}.")


def _epochs(rows: Sequence[Row]) -> NDArray[np.float64]:
    return column(rows, "epoch") + 1


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.2, 2.9), layout="constrained")
    return figure, figure.subplots()


def _thin(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means of neighbors, if there are more points than can be seen."""
    group = -(-len(x) // _POINTS)
    if group <= 1:
        return x, y
    count = len(x) // group * group
    return x[:count].reshape(-1, group).mean(axis=1), y[:count].reshape(-1, group).mean(axis=1)


def _told(rows: Sequence[Row], quantity: str, form: str) -> str:
    parts = []
    for split, name in (("train", "Training"), ("val", "Validation")):
        values = column(rows, f"{split}_{quantity}")
        values = values[np.isfinite(values)]
        if len(values):
            parts.append(f"{name} {quantity}: {form.format(values[0])} at first, {form.format(values[-1])} at last.")
    return " ".join(parts)


def _svg(figure: Figure) -> str:
    # Letters become outlines, which look the same everywhere; the same figure becomes the same file.
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "report"}):
        svg = BytesIO()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        # Without a ground of its own, so that the page's shows, light or dark.
        figure.savefig(svg, format="svg", metadata=metadata, transparent=True)
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.getvalue()).decode()}"
