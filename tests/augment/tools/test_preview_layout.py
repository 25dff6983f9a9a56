"""The layout of previews: captions wrap, and nothing overlaps."""

import numpy as np

from augment.drawing.contact_sheet import SheetBlock, SheetRow, Tile, lay_out, line_height
from augment.drawing.figure_style import text_width


def tile(side: int, *caption: str) -> Tile:
    return Tile(np.zeros((side, side, 3), np.uint8), caption)


LONG = ("affine (translate_x -0.008, translate_y -0.025, scale 0.902, shear_x -0.9 deg)", "color_jitter 7", "x" * 40)


def test_nothing_overlaps() -> None:
    rows = tuple(SheetRow((tile(16, *LONG[:n]), tile(16, "b")), f"step {n}", ("p 1", LONG[0])) for n in range(4))
    layout = lay_out("A title " * 30, "a text", [SheetBlock(name, LONG[0], rows) for name in ("one", "two")])
    boxes: list[tuple[float, float, float, float]] = []
    boxes += [(x, y, x + image.shape[1], y + image.shape[0]) for x, y, image in layout.images]
    for line in layout.lines:
        width, height = text_width(line.text, line.points, bold=line.bold), line_height(line.points)
        left = line.x - width / 2 if line.centered else line.x
        boxes.append((left, line.y - 0.7 * height, left + width, line.y + 0.2 * height))
    assert all(0 <= box[0] < box[2] <= layout.width and 0 <= box[1] < box[3] <= layout.height for box in boxes)
    for i, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[i + 1 :]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, (boxes[i], other)
