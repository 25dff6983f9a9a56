"""The figure of a batch: each pixel and each label."""

import math
from pathlib import Path

import numpy as np
import pytest
from figures import LONG, assert_apart, assert_whole, draw, extents, figure_of, image_files, read_png

from augment.drawing.sheet import GAP, MARGIN, NARROWEST
from trainer.figures.outputs import plot_batch


@pytest.mark.parametrize(("size", "factor"), [(1, 128), (32, 4), (100, 2), (224, 1)])
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
        ((32, 128, 128), "English springer .62 / cassette player .38"),
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
