"""The confusion matrix: counts, names, and how large it grows."""

import numpy as np
import pytest
from figures import LONG, assert_apart, assert_whole, confusion, draw, extents, figure_of

from trainer.figures.outputs import plot_confusion


@pytest.mark.parametrize("size", [1, 2, 20, 300])
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
    few, many, most = (figure_of(plot_confusion, confusion(size), ["cat"] * size).axes[0] for size in (20, 100, 300))
    assert len(few.texts) == 400
    assert not many.texts
    assert {label.get_text() for label in many.get_xticklabels()} == {"cat"}
    assert "cat" not in {label.get_text() for label in most.get_xticklabels()}
