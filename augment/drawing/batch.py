"""Draw a batch: its images, pixel by pixel, above their labels."""

import json
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import IdentityTransform
from numpy.typing import NDArray

from augment.drawing.style import INK, TITLE
from augment.drawing.text import DPI, drawable, font, shorten, two_lines

MAX_IMAGES = 32
_SMALL = 9  # points


def draw_batch(figure: Figure, images: NDArray[np.uint8], labels: Sequence[str], title: str = "") -> None:
    """Draw the first 32 images of a batch, pixel by pixel (small ones enlarged by a whole factor), above their labels.

    Args:
        figure: an empty figure of `DPI`, which gets the size that it needs.
        images: (N, H, W, 3) uint8 RGB, N at least 1.
        labels: N texts; one that is too long for its image gets a second line, then an ellipsis in the middle.
        title: a line above the images.
    """
    images = images[:MAX_IMAGES]
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
    # Slightly more than the pixels, as Matplotlib rounds down.
    figure.set_size_inches((width + 0.01) / DPI, (height + 0.01) / DPI)
    canvas, boxes = np.full((height, width, 3), 255, dtype=np.uint8), list[tuple[int, int]]()
    for index, (tile, text) in enumerate(zip(tiles, texts, strict=True)):
        row, column = divmod(index, columns)
        x = margin + column * (column_width + gap) + (column_width - tile_width) // 2
        y = head + row * (tile_height + label_height + gap)
        canvas[y : y + tile_height, x : x + tile_width] = tile
        boxes.append((x, y))
        _write(figure, x + tile_width / 2, height - y - tile_height - 4, text, _SMALL, "center")
    figure.figimage(canvas)
    figure.set_gid(json.dumps([tile_width, tile_height, *boxes]))
    if title:
        text = shorten(drawable(title), width - 2 * margin, TITLE)
        _write(figure, margin, height - margin, text, TITLE, "left")


def _write(figure: Figure, x: float, y: float, text: str, points: float, ha: str) -> None:
    label = figure.text(x, y, text, ha=ha, va="top", color=INK, fontproperties=font(points), parse_math=False)
    label.set_transform(IdentityTransform())  # (x, y) in pixels
