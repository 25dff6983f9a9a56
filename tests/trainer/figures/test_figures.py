"""Figures of a run: batches, confusion matrices, curves, and text in any script."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figures import LONG, assert_apart, assert_whole, confusion, draw, extents, figure_of, image_files, read_png
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from augment.drawing import figure_style as lettering
from augment.drawing.contact_sheet import GAP, MARGIN, NARROWEST
from trainer.figures.batches import plot_bars, plot_batch, plot_confusion, plot_outputs
from trainer.report.charts import draw_splits
from trainer.tasks.display import BarChart, Scatter

# --- batches ---


@pytest.mark.parametrize(("size", "factor"), [(1, 128), (100, 2), (224, 1)])
def test_batch_shows_each_pixel(tmp_path: Path, size: int, factor: int) -> None:
    images = image_files(3, size, size)
    plot_batch(images, ["a", "b", "c"], tmp_path / "batch.png")
    pixels = read_png(tmp_path / "batch.png")
    side = size * factor
    assert pixels.shape[1] == max(3 * side + 2 * GAP, NARROWEST) + 2 * MARGIN
    for index, image in enumerate(images):
        x, y = MARGIN + index * (side + GAP), MARGIN + 6
        np.testing.assert_array_equal(pixels[y : y + side, x : x + side], image.repeat(factor, 0).repeat(factor, 1))


@pytest.mark.parametrize(
    ("shape", "label"),
    [
        ((1, 224, 224), "church"),
        ((2, 32, 32), LONG),
        ((5, 600, 300), LONG),
        ((3, 20, 90), "English springer .62 / cassette player .38"),
    ],
)
def test_batch_labels_are_whole_and_free(shape: tuple[int, int, int], label: str) -> None:
    figure = figure_of(plot_batch, image_files(*shape), [label] * shape[0], title=LONG * 2)
    assert_whole(draw(figure))
    boxes = extents(figure.texts)
    assert len(boxes) > shape[0]
    assert_apart(boxes)
    canvas = np.flipud(np.asarray(figure.images[0].get_array()))
    for box in boxes:
        behind = canvas[int(box.y0) : math.ceil(box.y1), int(box.x0) : math.ceil(box.x1)]
        assert (behind == 255).all()


def test_batch_shows_at_most_32_images() -> None:
    figure = figure_of(plot_batch, image_files(40, 8, 8), [str(index) for index in range(40)])
    assert [text.get_text() for text in figure.texts] == [str(index) for index in range(32)]


# --- confusion matrices ---


@pytest.mark.parametrize("size", [1, 12, 300])
def test_confusion_is_whole_with_its_names_apart(size: int) -> None:
    figure = figure_of(plot_confusion, confusion(size), [LONG if size % 4 == 0 else "cat"] * size)
    assert_whole(draw(figure))
    axes = figure.axes[0]
    assert_apart([*extents(axes.get_yticklabels()), axes.yaxis.label.get_window_extent()])
    for label in axes.get_xticklabels():
        assert label.get_window_extent().y0 > axes.xaxis.label.get_window_extent().y1
        assert label.get_window_extent().y1 < axes.bbox.y0


def test_confusion_is_normalized_by_row_and_keeps_a_class_without_samples() -> None:
    counts = np.array([[3, 1, 0], [0, 0, 0], [5, 0, 15]])
    axes = figure_of(plot_confusion, counts, ["a", "b", "c"]).axes[0]
    assert np.asarray(axes.images[0].get_array()).tolist() == [[0.75, 0.25, 0], [0, 0, 0], [0.25, 0, 0.75]]
    assert axes.images[0].get_clim() == (0, 1)
    assert axes.get_title("left") == "Accuracy 75.00% (18 of 24)"


def test_confusion_writes_each_count_into_its_cell() -> None:
    counts = np.array([[97, 3], [0, 123_456]])
    axes = figure_of(plot_confusion, counts, ["cat", "dog"]).axes[0]
    written = {text.get_position(): text.get_text() for text in axes.texts}
    assert written == {(0, 0): "97", (1, 0): "3", (0, 1): "0", (1, 1): "0.12M"}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cat", "dog"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]


def test_confusion_of_many_classes_has_no_counts_then_no_names() -> None:
    few, many, most = (figure_of(plot_confusion, confusion(size), ["cat"] * size).axes[0] for size in (12, 50, 300))
    assert len(few.texts) == 144
    assert not many.texts
    assert {label.get_text() for label in many.get_xticklabels()} == {"cat"}
    assert "cat" not in {label.get_text() for label in most.get_xticklabels()}


def test_bars_of_many_labels_name_the_mean_of_all() -> None:
    bars = [(str(value), 1, value / 100) for value in range(100)]
    axes = figure_of(plot_bars, BarChart("precision", "labels", bars, total=100)).axes[0]
    assert axes.get_title("left") == "Precision, mean 0.4950, the lowest 60 of 100 labels"


# --- curves ---


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


# --- text ---


TRICKY = ["鳥", "🐦 bird", "$10 bill$", "broken \udcff name", "two\nlines", "père & fils", LONG, ""]


def test_names_in_any_script_are_drawn_without_a_warning(tmp_path: Path) -> None:
    plot_confusion(confusion(len(TRICKY)), TRICKY, tmp_path / "confusion.png")
    assert_whole(read_png(tmp_path / "confusion.png"))
    plot_batch(image_files(len(TRICKY), 32, 32), TRICKY, tmp_path / "batch.png", title="鳥 $x$")
    assert_whole(read_png(tmp_path / "batch.png"))
    numbers = np.random.default_rng(0).random((20, len(TRICKY)), np.float32)
    for display in (Scatter(numbers, numbers + 1, TRICKY), BarChart("x", "y", [(n, 3, 0.5) for n in TRICKY], total=8)):
        plot_outputs(display, tmp_path / "outputs.png")
        assert read_png(tmp_path / "outputs.png").std() > 10


def test_characters_without_a_glyph_stay_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lettering, "_characters", lambda: frozenset(map(ord, "abc \\é\n")))
    assert lettering.drawable("abc é") == "abc é"
    assert lettering.drawable("鳥 a") == "\\u9ce5 a"
    assert lettering.drawable("a\nb\udcff") == "a\\nb\\udcff"
    assert len(lettering.drawable("a" * 10**6)) < 1010


def test_dollar_signs_are_not_read_as_formulas() -> None:
    axes = figure_of(plot_confusion, confusion(2), ["$x$", "y"]).axes[0]
    assert not any(label.get_parse_math() for label in [*axes.get_xticklabels(), *axes.get_yticklabels()])
    figure = figure_of(plot_batch, image_files(1, 8, 8), ["$x$"], title="$y$")
    assert not any(text.get_parse_math() for text in figure.texts)


def test_long_text_keeps_its_ends() -> None:
    short = lettering.shorten(LONG, 200, 9)
    assert lettering.text_width(short, 9) <= 200 < lettering.text_width(LONG, 9)
    start, end = short.split("…")
    assert LONG.startswith(start)
    assert LONG.endswith(end)
    assert abs(len(start) - len(end)) <= 1
    assert lettering.text_width(LONG[: len(start) + 1] + "…" + LONG[-len(end) - 1 :], 9) > 200
    assert lettering.shorten("church", 200, 9) == "church"
    assert lettering.shorten(LONG, 0, 9) == "…"
