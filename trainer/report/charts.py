"""Draw the curves of a run as SVG images for its page."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from math import isfinite, nan

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from augment.drawing.figure_style import BLUE
from augment.support.formatting import amount
from augment.support.nested import value_at
from trainer.figures.batches import LOCK, SPLITS, frame
from trainer.report.run_content import RunRecord

_SIZE, _FAINT = (5.2, 2.9), "0.75"
_SPOTS = 60  # largest number of spots on a line that show their values on hover
_HUGE = 1e100  # Matplotlib fails for the largest floats
_SCHEDULES = 10  # largest number of schedules, because each takes a tenth of a second. Runs have two
_POINTS = 1000  # largest number of points on a line. More would not be visible


@dataclass(frozen=True)
class Chart:
    """A curve in the page."""

    title: str
    uri: str  # the image, as a data URI
    alt: str  # a description of the image
    caption: str  # the text below the image, which may be empty
    spots: tuple[tuple[float, float, str], ...]  # areas that show a text on hover: start in %, width in %, text


def charts(record: RunRecord) -> list[Chart]:
    """Draw all curves that have data."""
    # The number of training batches before each epoch and in the whole fit: (epochs + 1,), or (1,) if it is unknown.
    before = np.cumsum([0, *record.run.facts.batches])
    with LOCK:
        return [*_scores(record, before), *(_schedules(record, before) if len(before) > 1 else ())]


def _scores(record: RunRecord, before: NDArray[np.int64]) -> Iterator[Chart]:
    """Yield charts of loss and score over the epochs, for both splits. The best epoch is marked."""
    display, best, rows = record.display, record.best, record.run.rows
    score = (display.score, display.score_title, "{:.1%}" if display.share else "{:.3g}")
    for quantity, title, form in (("loss", "Loss", "{:.3g}"), score):
        axes = Figure(_SIZE, dpi=72).subplots()
        if not draw_splits(axes, rows, quantity):
            continue
        if best:
            axes.axvline(best["epoch"] + 1, color=_FAINT, linewidth=1, linestyle=":", zorder=0)
        if quantity == "loss":
            _add_steps(axes, record, before)
        elif f"val_{quantity}" in best:
            axes.plot(best["epoch"] + 1, best[f"val_{quantity}"], "o", color=BLUE, markersize=9, fillstyle="none")
        if "%" in form:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(frameon=False, fontsize=9)
        texts = [_epoch_text(row, quantity, form) for row in rows]
        yield _chart(axes, title, _describe(rows, quantity, form), "", column(rows, "epoch") + 1, texts)


def _epoch_text(row: Mapping[str, float], quantity: str, form: str) -> str:
    """Return the text that a chart shows on hover: the epoch, and the quantity in both splits."""
    found = [(split, row.get(f"{split}_{quantity}", nan)) for split in ("train", "val")]
    shown = [f"{split} {form.format(value)}" for split, value in found if isfinite(value)]
    return "\n".join([f"epoch {int(row['epoch']) + 1}", *shown])


def _describe(rows: Sequence[Mapping[str, float]], quantity: str, form: str) -> str:
    """Describe a chart by the first and the last value of each split, as alternative text."""
    parts = []
    for split, name in (("train", "Training"), ("val", "Validation")):
        values = column(rows, f"{split}_{quantity}")
        if len(values := values[np.isfinite(values)]):
            first, last = form.format(values[0]), form.format(values[-1])
            parts.append(f"{name} {quantity}: {first} in the first epoch, {last} in the last.")
    return " ".join(parts)


def draw_splits(axes: Axes, rows: Sequence[Mapping[str, float]], quantity: str) -> bool:
    """Draw a quantity over the epochs for both splits. Return whether any row has a value.

    A line skips epochs without a score, and has a gap at values that are not finite.
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
        axes.set_ylim(0, 1.15 * highest)  # around a single point, Matplotlib would choose odd ticks
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    return drawn


def column(rows: Sequence[Mapping[str, float]], key: str) -> NDArray[np.float64]:
    """Return the values of a key in all rows, (rows,). Missing, infinite and huge values become NaN."""
    # A missing key or a JSON null is None, which NumPy converts to NaN.
    values = np.array([row.get(key) for row in rows], dtype=float)
    return np.where(np.abs(values) < _HUGE, values, np.nan)


def _add_steps(axes: Axes, record: RunRecord, before: NDArray[np.int64]) -> None:
    """Draw the loss within epochs. The axes keep their range, because outliers would flatten the epoch curves."""
    steps = [step for step in record.run.steps if {"step", "loss"} <= step.keys()]
    if steps and len(before) > 1:
        limits = axes.get_ylim()
        # The mean of epoch 3 is drawn at 3, so the batches of this epoch lie between 2.5 and 3.5.
        x = np.interp(column(steps, "step"), before, np.arange(len(before))) + 0.5
        losses, each = column(steps, "loss"), -(-len(steps) // _POINTS)
        axes.plot(x[::each], losses[::each], color=_FAINT, linewidth=0.8, label="train, within epochs", zorder=1)
        axes.set_ylim(limits)


def _schedules(record: RunRecord, before: NDArray[np.int64]) -> Iterator[Chart]:
    for name, points in islice(record.run.facts.schedules.items(), _SCHEDULES):
        axes = Figure(_SIZE, dpi=72).subplots()
        title, values = {"lr": "Learning rate"}.get(name, name.capitalize()), np.array(points)
        # Schedules are functions of batches, and epochs may differ in their number of batches.
        x = np.interp(np.linspace(0, 1, len(values)) * before[-1], before, np.arange(len(before)))
        done = x <= len(record.run.rows)
        rates = column(record.run.rows, "lr")
        if name == "lr" and len(rates) and value_at(record.run.config, "fit.schedule") == "plateau":
            values = rates[x.astype(int).clip(max=len(rates) - 1)]  # these rates are known only for epochs that ran
        axes.plot(x, values, color=_FAINT, linewidth=1.6, linestyle=":")
        axes.plot(x[done], values[done], color=BLUE, linewidth=1.8)
        frame(axes, "", "epochs")
        axes.margins(x=0.02)
        if values.min() >= 0:
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]) if values.min() < values.max() / 2 else None)
        course = f"From {values[0]:.3g} to {values[-1]:.3g}, between {values.min():.3g} and {values.max():.3g}."
        caption = f"{amount(int(before[-1]), 'training batch')}. {course}"
        rest = "" if done.all() else " The dotted part was not reached."
        few = np.linspace(0, len(x) - 1, _SPOTS).round().astype(int)
        texts = [f"epoch {x[i]:.2f}\n{values[i]:.4g}" for i in few]
        yield _chart(axes, title, f"{title}: {course}", f"{caption}{rest}", x[few], texts)


def _chart(axes: Axes, title: str, alt: str, caption: str, x: NDArray[np.float64], texts: Sequence[str]) -> Chart:
    """Return axes as a chart. On hover, the chart shows the text of the nearest point of x."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    # Text as outlines looks the same on every machine. With a fixed salt, equal figures give identical files.
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "report"}):
        svg = BytesIO()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        # A transparent background suits light and dark pages.
        figure.set_layout_engine("constrained")
        figure.savefig(svg, format="svg", metadata=metadata, transparent=True)
    pixels = axes.transData.transform(np.column_stack([x, np.full(len(x), axes.get_ylim()[0])]))[:, 0]
    at = 100 * pixels / figure.bbox.width
    left, right = 100 * axes.bbox.x0 / figure.bbox.width, 100 * axes.bbox.x1 / figure.bbox.width
    edges = [left, *((at[1:] + at[:-1]) / 2), right]
    spots = (
        (round(float(a), 2), round(float(b - a), 2), text)
        for a, b, text in zip(edges, edges[1:], texts, strict=False)
        if b > a
    )
    uri = f"data:image/svg+xml;base64,{base64.b64encode(svg.getvalue()).decode()}"
    return Chart(title, uri, alt, caption, tuple(spots))
