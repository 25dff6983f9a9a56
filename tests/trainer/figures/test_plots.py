"""Figures of the history and the schedule: their contents, that they are whole, and the files."""

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from figures import assert_whole, figure_of, read_png

from trainer.figures.curves import plot_history


def history(epochs: int) -> list[dict[str, float]]:
    rng = np.random.default_rng(0)
    keys = ("train_loss", "val_loss", "train_accuracy", "val_accuracy")
    return [{"epoch": epoch, **dict(zip(keys, rng.random(4), strict=True))} for epoch in range(epochs)]


@pytest.mark.parametrize("epochs", [0, 1, 2, 5, 50, 200])
def test_history_is_whole(tmp_path: Path, epochs: int) -> None:
    plot_history(history(epochs), tmp_path / "history.png")
    assert_whole(read_png(tmp_path / "history.png"))


def test_history_draws_each_series_over_epochs_from_one() -> None:
    rows = history(5)
    for axes, quantity in zip(figure_of(plot_history, rows).axes, ("loss", "accuracy"), strict=True):
        lines = {line.get_label(): line for line in axes.get_lines()}
        for split in ("train", "val"):
            assert list(np.asarray(lines[split].get_xdata())) == [1, 2, 3, 4, 5]
            assert list(np.asarray(lines[split].get_ydata())) == [row[f"{split}_{quantity}"] for row in rows]


def test_history_marks_the_first_of_the_best_epochs() -> None:
    accuracies = [0.2, math.nan, 0.7257, 0.5, 0.7257]
    rows = [{"epoch": epoch, "val_accuracy": accuracy} for epoch, accuracy in enumerate(accuracies)]
    axes = figure_of(plot_history, rows).axes[1]
    marks = [line for line in axes.get_lines() if line.get_marker() == "o" and len(np.asarray(line.get_xdata())) == 1]
    assert [(mark.get_xdata(), mark.get_ydata()) for mark in marks] == [([3], [0.7257])]
    assert axes.get_title("left") == "Accuracy, best val 72.57% (epoch 3)"


def test_history_marks_the_epoch_of_best_pt() -> None:
    """For numbers the loss chooses it, while another epoch may have the smallest mean error."""
    rows = [{"epoch": epoch, "val_mae": mae, "val_loss": loss} for epoch, mae, loss in ((0, 15.9, 0.6), (1, 16.1, 0.5))]
    axes = figure_of(plot_history, rows).axes[1]
    marks = [line for line in axes.get_lines() if line.get_marker() == "o" and len(np.asarray(line.get_xdata())) == 1]
    assert [(mark.get_xdata(), mark.get_ydata()) for mark in marks] == [([2], [16.1])]
    assert axes.get_title("left") == "Mean absolute error, best val 16.1 (epoch 2 by val loss)"


def test_history_shows_accuracy_in_percent() -> None:
    formatter = figure_of(plot_history, history(5)).axes[1].yaxis.get_major_formatter()
    assert [formatter(accuracy, 0) for accuracy in (0.0, 0.07, 0.125, 1.0)] == ["0%", "7%", "12.5%", "100%"]


@pytest.mark.parametrize(
    "rows",
    [
        [{"epoch": 0}],
        [{"epoch": 0, "train_loss": 1.0}],
        [{"epoch": 0, "train_loss": math.nan, "val_accuracy": math.nan}],
        [{"epoch": 0, "train_loss": None, "val_accuracy": 0.5}, {"epoch": 1, "train_loss": 2.0}],
        [{"epoch": 0, "train_loss": 1.0}, {"epoch": 1, "train_loss": math.inf}],
        [{"epoch": 3, "val_accuracy": 1.0}, {"epoch": 4, "val_accuracy": 1.0}],
        [{"epoch": 0, "val_loss": 0.0, "val_accuracy": 0.0}],
    ],
)
def test_history_skips_missing_values(tmp_path: Path, rows: list[Mapping[str, float]]) -> None:
    plot_history(rows, tmp_path / "history.png")
    assert_whole(read_png(tmp_path / "history.png"))


def test_history_of_rare_validations_is_a_line() -> None:
    rows = [{"epoch": i, "train_loss": 1.0} | ({"val_loss": 2.0 - i / 60} if i % 6 == 5 else {}) for i in range(60)]
    lines = {line.get_label(): line for line in figure_of(plot_history, rows).axes[0].get_lines()}
    assert list(np.asarray(lines["val"].get_xdata())) == list(range(6, 61, 6))
    assert np.isfinite(np.asarray(lines["val"].get_ydata())).all()


def test_history_names_only_what_it_draws() -> None:
    loss, accuracy = figure_of(plot_history, [{"epoch": 0, "train_loss": 1.0, "val_loss": math.inf}]).axes
    legend = loss.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["train"]
    assert accuracy.get_legend() is None
    assert "no data" in [text.get_text() for text in accuracy.texts]


def test_a_figure_replaces_the_old_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "plots" / "history.png"
    path.parent.mkdir()
    plot_history(history(1), path)
    before = read_png(path)
    plot_history(history(5), path)
    assert (read_png(path) != before).any()
    assert list(path.parent.iterdir()) == [path]


def test_threads_draw_the_same_figure(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.png", "b.png", "c.png", "a.png", "b.png", "c.png")]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda path: plot_history(history(5), path), paths))
    assert sorted(tmp_path.iterdir()) == paths[:3]
    assert len({path.read_bytes() for path in paths}) == 1
