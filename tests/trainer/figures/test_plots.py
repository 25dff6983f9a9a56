"""Curves over epochs: what they show; and that figures are written whole."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from trainer.figures.outputs import plot_confusion
from trainer.report.charts import draw_splits


def lines_of(rows: Sequence[Any]) -> dict[object, Line2D]:
    """Return the lines of the loss by their labels."""
    axes = Figure().subplots()
    drawn = draw_splits(axes, rows, "loss")
    assert drawn == bool(axes.get_lines())
    return {line.get_label(): line for line in axes.get_lines()}


def test_each_series_is_drawn_over_epochs_from_one() -> None:
    rows = [{"epoch": epoch, "train_loss": 3.0 - epoch, "val_loss": 2.0} for epoch in range(3)]
    lines = lines_of(rows)
    for split in ("train", "val"):
        assert list(np.asarray(lines[split].get_xdata())) == [1, 2, 3]
        assert list(np.asarray(lines[split].get_ydata())) == [row[f"{split}_loss"] for row in rows]


def test_missing_values_are_left_out() -> None:
    assert not lines_of([])
    assert not lines_of([{"epoch": 0}, {"epoch": 1, "train_loss": math.nan, "val_loss": math.inf}])
    assert [*lines_of([{"epoch": 0, "train_loss": None, "val_loss": 1.0}, {"epoch": 1, "val_loss": 0.0}])] == ["val"]


def test_rare_validations_are_a_line() -> None:
    rows = [{"epoch": i, "train_loss": 1.0} | ({"val_loss": 2.0 - i / 60} if i % 6 == 5 else {}) for i in range(60)]
    line = lines_of(rows)["val"]
    assert list(np.asarray(line.get_xdata())) == list(range(6, 61, 6))
    assert np.isfinite(np.asarray(line.get_ydata())).all()


def test_threads_draw_the_same_figure(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.png", "b.png", "c.png", "a.png", "b.png", "c.png")]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda path: plot_confusion(np.eye(2, dtype=int), ("a", "b"), path), paths))
    assert sorted(tmp_path.iterdir()) == paths[:3]
    assert len({path.read_bytes() for path in paths}) == 1
