"""Figures: their contents, that they are legible, and that nothing is cut off."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from numpy.typing import NDArray
from PIL import Image

from augment.drawing import text as lettering
from trainer.figures import style
from trainer.figures.batch import plot_batch
from trainer.figures.curves import plot_history, plot_rates, plot_schedule
from trainer.figures.outputs import plot_confusion

LONG = "n02979186_a_cassette_player_with_an_uncommonly_long_name_and_a_tail"
TRICKY = ["鳥", "🐦 bird", "$10 bill$", "broken \udcff name", "two\nlines", "père & fils", LONG, ""]


def history(epochs: int) -> list[dict[str, float]]:
    rng = np.random.default_rng(0)
    keys = ("train_loss", "val_loss", "train_accuracy", "val_accuracy")
    return [{"epoch": epoch, **dict(zip(keys, rng.random(4), strict=True))} for epoch in range(epochs)]


def confusion(size: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(1, 400, (size, size)) + np.diag(np.full(size, 1000))


def image_files(count: int, height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def read_png(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def figure_of(plot: Callable[..., None], *args: Any, **options: Any) -> Figure:
    """Return the figure that a function draws, without writing a file."""
    figures: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "save_figure", lambda figure, *_: figures.append(figure))
        plot(*args, path=Path("unwritten.png"), **options)
    (figure,) = figures
    return figure


def draw(figure: Figure) -> NDArray[np.uint8]:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]


def assert_whole(pixels: NDArray[np.uint8]) -> None:
    """Nothing touches the border of the image, and there is something in it."""
    inside = pixels[2:-2, 2:-2]
    assert inside.std() > 1
    assert pixels.sum(dtype=np.int64) - inside.sum(dtype=np.int64) == (pixels.size - inside.size) * 255


def extents(texts: Sequence[Text]) -> list[Bbox]:
    return [text.get_window_extent() for text in texts if text.get_text()]


def assert_apart(boxes: Sequence[Bbox]) -> None:
    assert not [pair for pair in combinations(boxes, 2) if pair[0].padded(-1).overlaps(pair[1].padded(-1))]


def epoch_ticks(axes: Axes) -> list[float]:
    left, right = axes.get_xlim()
    return [tick for tick in axes.get_xticks() if left <= tick <= right]


# ---- history


@pytest.mark.parametrize("epochs", [0, 1, 2, 5, 50, 200])
def test_history_is_whole(tmp_path: Path, epochs: int) -> None:
    plot_history(history(epochs), tmp_path / "history.png")
    assert_whole(read_png(tmp_path / "history.png"))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e7])
def test_labels_of_all_lengths_have_room(tmp_path: Path, scale: float) -> None:
    rows = [{"epoch": epoch, "val_mae": scale * epoch, "val_loss": scale * (3 - epoch)} for epoch in range(3)]
    plot_history(rows, tmp_path / "history.png")
    plot_schedule([scale * step for step in range(2001)], tmp_path / "schedule.png")
    for name in ("history.png", "schedule.png"):
        pixels = read_png(tmp_path / name)
        assert_whole(pixels[:, : len(pixels[0]) // 2] if name == "history.png" else pixels)  # without the long title


@pytest.mark.parametrize("constrained", [True, False])
def test_a_figure_is_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constrained: bool) -> None:
    drawn: list[Axes] = []
    draw_axes = Axes.draw
    monkeypatch.setattr(Axes, "draw", lambda axes, renderer: drawn.append(axes) or draw_axes(axes, renderer))
    with style.new_figure(tmp_path / "some.png", constrained=constrained) as figure:
        axes = figure.subplots()
    assert drawn == [axes]


def test_history_draws_each_series_over_epochs_from_one() -> None:
    rows = history(5)
    for axes, quantity in zip(figure_of(plot_history, rows).axes, ("loss", "accuracy"), strict=True):
        lines = {line.get_label(): line for line in axes.get_lines()}
        for split in ("train", "val"):
            assert list(np.asarray(lines[split].get_xdata())) == [1, 2, 3, 4, 5]
            assert list(np.asarray(lines[split].get_ydata())) == [row[f"{split}_{quantity}"] for row in rows]


@pytest.mark.parametrize("epochs", [1, 2, 5, 8, 50, 200])
def test_history_ticks_are_epochs(epochs: int) -> None:
    figure = figure_of(plot_history, history(epochs))
    draw(figure)
    for axes in figure.axes:
        ticks = epoch_ticks(axes)
        assert 1 <= len(ticks) <= 12
        assert all(tick == int(tick) and 1 <= tick <= epochs for tick in ticks)


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


# ---- confusion matrix


@pytest.mark.parametrize("size", [1, 2, 10, 20, 60, 100, 300])
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


@pytest.mark.long
def test_counts_fit_their_cells() -> None:
    counts = np.resize([9, 99_999, 123_456, 12_345_678], (20, 20))
    axes = figure_of(plot_confusion, counts, ["x"] * 20).axes[0]
    assert max(box.width for box in extents(axes.texts)) < axes.bbox.width / 20


def test_confusion_of_many_classes_has_no_counts_then_no_names() -> None:
    few, many, most = (figure_of(plot_confusion, confusion(size), ["cat"] * size).axes[0] for size in (20, 100, 300))
    assert len(few.texts) == 400
    assert not many.texts
    assert {label.get_text() for label in many.get_xticklabels()} == {"cat"}
    assert "cat" not in {label.get_text() for label in most.get_xticklabels()}


def test_confusion_grows_within_limits() -> None:
    sizes = (2, 20, 100, 1000, 3000)
    widths = [figure_of(plot_confusion, np.eye(size, dtype=int), ["x"] * size).bbox.width for size in sizes]
    assert widths == sorted(widths)
    assert widths[0] > 300
    assert widths[-1] < 3000


def test_confusion_shortens_names_that_would_dwarf_it() -> None:
    axes = figure_of(plot_confusion, confusion(2), ["x" * 500, "y"]).axes[0]
    assert axes.get_yticklabels()[0].get_text().count("…") == 1
    assert axes.bbox.x0 < 400


def test_confusion_of_nothing() -> None:
    axes = figure_of(plot_confusion, np.zeros((2, 2), dtype=int), ["cat", "dog"]).axes[0]
    assert axes.get_title("left") == "No samples"


@pytest.mark.parametrize(("shape", "size"), [((2, 3), 2), ((3, 3), 2), ((0, 0), 0), ((4,), 2)])
def test_confusion_refuses_other_shapes(tmp_path: Path, shape: tuple[int, ...], size: int) -> None:
    with pytest.raises(ValueError, match="counts must be"):
        plot_confusion(np.zeros(shape, dtype=int), ["cat"] * size, tmp_path / "confusion.png")


# ---- batch of images


@pytest.mark.parametrize(("size", "factor"), [(1, 128), (32, 4), (64, 2), (100, 2), (128, 1), (224, 1)])
def test_batch_shows_each_pixel(tmp_path: Path, size: int, factor: int) -> None:
    images = image_files(3, size, size)
    plot_batch(images, ["a", "b", "c"], tmp_path / "batch.png")
    pixels = read_png(tmp_path / "batch.png")
    side = size * factor
    assert pixels.shape[1] == max(3 * side + 2 * 12, 320) + 2 * 16
    for index, image in enumerate(images):
        x = 16 + index * (side + 12)
        np.testing.assert_array_equal(pixels[16 : 16 + side, x : x + side], image.repeat(factor, 0).repeat(factor, 1))


@pytest.mark.parametrize("shape", [(1, 224, 224), (2, 32, 32), (32, 128, 128), (5, 600, 300), (3, 20, 90)])
@pytest.mark.parametrize("label", ["church", "English springer .62 / cassette player .38", LONG])
def test_batch_labels_are_whole_and_free(shape: tuple[int, int, int], label: str) -> None:
    figure = figure_of(plot_batch, image_files(*shape), [label] * shape[0], title=LONG * 2)
    assert_whole(draw(figure))
    boxes = extents(figure.texts)
    assert len(boxes) == shape[0] + 1
    assert_apart(boxes)
    canvas = np.flipud(np.asarray(figure.images[0].get_array()))
    for box in boxes:
        behind = canvas[int(box.y0) : math.ceil(box.y1), int(box.x0) : math.ceil(box.x1)]
        assert (behind == 255).all()


def test_batch_shows_at_most_32_images() -> None:
    figure = figure_of(plot_batch, image_files(40, 8, 8), [str(index) for index in range(40)])
    assert [text.get_text() for text in figure.texts] == [str(index) for index in range(32)]


def test_batch_title_is_drawn() -> None:
    figure = figure_of(plot_batch, image_files(1, 8, 8), ["cat"], title="train, epoch 1")
    assert [text.get_text() for text in figure.texts] == ["cat", "train, epoch 1"]


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 3, 8, 8), dtype=np.uint8),
        np.zeros((2, 8, 8, 3), dtype=np.float32),
        np.zeros((0, 8, 8, 3), dtype=np.uint8),
        np.zeros((8, 8, 3), dtype=np.uint8),
    ],
)
def test_batch_refuses_other_arrays(tmp_path: Path, images: NDArray[np.uint8]) -> None:
    with pytest.raises(ValueError, match="images must be"):
        plot_batch(images, ["cat"] * len(images), tmp_path / "batch.png")


def test_batch_needs_a_label_for_each_image(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="each of 2 images, not 1"):
        plot_batch(image_files(2, 8, 8), ["cat"], tmp_path / "batch.png")


# ---- schedule


@pytest.mark.parametrize("steps", [0, 1, 7, 1000])
def test_schedule_is_whole(tmp_path: Path, steps: int) -> None:
    plot_schedule(np.linspace(0.1, 0.9, steps).tolist(), tmp_path / "schedule.png")
    assert_whole(read_png(tmp_path / "schedule.png"))


def test_schedule_draws_the_values() -> None:
    axes = figure_of(plot_schedule, [0.3, 0.9, 0.1]).axes[0]
    assert list(np.asarray(axes.get_lines()[0].get_ydata())) == [0.3, 0.9, 0.1]
    assert axes.get_title("left") == "Learning rate, highest 0.9 in step 1"


# ---- text


def test_names_in_any_script_are_drawn_without_a_warning(tmp_path: Path) -> None:
    plot_confusion(confusion(len(TRICKY)), TRICKY, tmp_path / "confusion.png")
    assert_whole(read_png(tmp_path / "confusion.png"))
    plot_batch(image_files(len(TRICKY), 32, 32), TRICKY, tmp_path / "batch.png", title="鳥 $x$")
    assert_whole(read_png(tmp_path / "batch.png"))


def test_characters_without_a_glyph_stay_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lettering, "_characters", lambda: frozenset(map(ord, "abc \\é\n")))
    assert lettering.drawable("abc é") == "abc é"
    assert lettering.drawable("鳥 a") == "\\u9ce5 a"
    assert lettering.drawable("a\nb\udcff") == "a\\nb\\udcff"


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


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("church", ["church"]),
        ("a cassette player of old", ["a cassette player", "of old"]),
        ("a_cassette-player_of_old", ["a_cassette-", "player_of_old"]),
        ("n_" + "x" * 20, None),
        ("x" * 21, None),
    ],
)
def test_labels_wrap_at_words_where_they_can(text: str, lines: list[str] | None) -> None:
    width = lettering.text_width("a cassette player", 9) + 1
    wrapped = lettering.two_lines(text, width, 9).split("\n")
    assert max(lettering.text_width(line, 9) for line in wrapped) <= width
    if lines:
        assert wrapped == lines
    else:
        assert "".join(wrapped) == text
        assert lettering.text_width(wrapped[0] + "x", 9) > width


# ---- files


def test_a_figure_replaces_the_old_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "plots" / "history.png"
    plot_history(history(1), path)
    before = read_png(path)
    plot_history(history(5), path)
    assert (read_png(path) != before).any()
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.png"
    plot_history(history(1), path)
    before = path.read_bytes()

    def fail(self: Figure, path: Path, **_: object) -> None:
        path.write_bytes(b"not whole")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        plot_history(history(5), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_threads_draw_the_same_figure(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.png", "b.png", "c.png", "a.png", "b.png", "c.png")]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda path: plot_history(history(5), path), paths))
    assert sorted(tmp_path.iterdir()) == paths[:3]
    assert len({path.read_bytes() for path in paths}) == 1


def test_suggested_rates_have_distinct_markers() -> None:
    lrs = np.geomspace(1e-4, 1, 9)
    marks = {"peak": lrs[6], "steepest": lrs[4], "valley": lrs[2]}
    (axes,) = figure_of(plot_rates, lrs, np.linspace(3, 1, 9), np.linspace(3, 1, 9), marks).axes
    marked = [line for line in axes.lines if np.size(line.get_xdata()) == 1]
    assert [line.get_label() for line in marked] == ["suggested 0.1", "steepest 0.01", "valley 0.001"]
    assert len({line.get_marker() for line in marked}) == 3
