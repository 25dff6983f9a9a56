"""Draw a sheet of images with captions: blocks of rows, with every image pixel exact and no text overlapping.

`lay_out` decides all positions, in pixels; `draw` only draws them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import IdentityTransform
from numpy.typing import NDArray
from PIL import Image

from augment.drawing.text import DPI, drawable, font, wrap

Pixels = NDArray[np.uint8]  # (height, width, 3) RGB

INK, GRAY, RULE = "0.15", "0.45", 225
TITLE, HEADING, TEXT = 14, 11, 9  # points
MARGIN, GAP, GUTTER = 28, 12, 40  # pixels: around the sheet, between images, between panels
NARROWEST = 560  # pixels between the margins
# Images are enlarged by an integer factor to at least SMALLEST, or reduced to LARGEST.
SMALLEST, LARGEST = 160, 512


@dataclass(frozen=True)
class Tile:
    """An image, (height, width, 3) RGB, above the phrases of its caption."""

    image: Pixels
    caption: tuple[str, ...]


@dataclass(frozen=True)
class SheetRow:
    """Tiles side by side below a title and further paragraphs."""

    tiles: tuple[Tile, ...]
    title: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class SheetBlock:
    """Rows under a heading and a line of text, several of them side by side if there are panels."""

    title: str
    text: str
    rows: tuple[SheetRow, ...]
    panels: int = 1


@dataclass(frozen=True)
class SheetLine:
    """A line of text; (x, y) is the left end or the center of its baseline, in pixels from the top left."""

    x: float
    y: int
    text: str
    points: float
    color: str = INK
    bold: bool = False
    centered: bool = False


@dataclass
class Layout:
    """The position of everything, in pixels from the top left.

    Attributes:
        width: width of the sheet.
        height: height of the sheet.
        side: side of the square cell of an image.
        images: left, top and pixels of each image.
        lines: all text.
        rules: tops of the lines between blocks.
    """

    width: int
    height: int
    side: int
    images: list[tuple[int, int, Pixels]] = field(default_factory=list)
    lines: list[SheetLine] = field(default_factory=list)
    rules: list[int] = field(default_factory=list)

    def write(self, place: SheetLine, phrases: Iterable[str], width: float) -> int:
        """Put text, wrapped to a width, below `place` and in its style; return its bottom."""
        y, height = place.y, line_height(place.points)
        for text in wrap(map(drawable, filter(None, phrases)), width, place.points, bold=place.bold):
            baseline = y + round(place.points * DPI / 72)  # it does not depend on the letters of the line
            style = (place.points, place.color, place.bold, place.centered)
            self.lines.append(SheetLine(place.x, baseline, text, *style))
            y += height
        return y


def line_height(points: float) -> int:
    """Return the distance between lines in pixels."""
    return round(points * DPI / 72 * 1.3)


def lay_out(title: str, text: str, blocks: Sequence[SheetBlock]) -> Layout:
    """Lay out blocks from top to bottom, under a title and a line of text."""
    tiles = [tile for block in blocks for row in block.rows for tile in row.tiles]
    side = max((max(_scaled(tile.image).shape[:2]) for tile in tiles), default=SMALLEST)
    wide = max(block.panels * (_row_width(block, side) + GUTTER) - GUTTER for block in blocks)
    inner = max(NARROWEST, wide)
    layout = Layout(inner + 2 * MARGIN, 0, side)
    y = layout.write(SheetLine(MARGIN, MARGIN, "", TITLE, bold=True), [title], inner) + 4
    y = layout.write(SheetLine(MARGIN, y, "", TEXT, GRAY), [text], inner) + 18
    for block in blocks:
        layout.rules.append(y)
        y = layout.write(SheetLine(MARGIN, y + 14, "", HEADING, bold=True), [block.title], inner)
        y = layout.write(SheetLine(MARGIN, y + 2, "", TEXT, GRAY), [block.text], inner) + 12
        for start in range(0, len(block.rows), block.panels):
            y = _put_rows(layout, block, block.rows[start : start + block.panels], y) + GAP
        y += 10
    layout.height = y - 10 - GAP + MARGIN
    return layout


def _row_width(block: SheetBlock, side: int) -> int:
    return max((len(row.tiles) for row in block.rows), default=1) * (side + GAP) - GAP


def _put_rows(layout: Layout, block: SheetBlock, rows: Sequence[SheetRow], y: int) -> int:
    """Put rows side by side with aligned images; return their bottom."""
    side, width = layout.side, _row_width(block, layout.side)
    starts = [MARGIN + panel * (width + GUTTER) for panel in range(len(rows))]
    tops = [y]
    for x, row in zip(starts, rows, strict=True):
        top = layout.write(SheetLine(x, y, "", TEXT, bold=True), [row.title], width)
        for line in row.lines:
            top = layout.write(SheetLine(x, top, "", TEXT, GRAY), [line], width)
        tops.append(top + 6)
    y = max(tops)
    bottoms = [y]
    for x, row in zip(starts, rows, strict=True):
        for left, tile in zip(range(x, x + width, side + GAP), row.tiles, strict=False):
            image = _scaled(tile.image)
            layout.images.append((left + (side - image.shape[1]) // 2, y + (side - image.shape[0]) // 2, image))
            below = SheetLine(left + side / 2, y + side + 5, "", TEXT, centered=True)
            bottoms.append(layout.write(below, tile.caption, side + 2))
    return max(bottoms)


def _scaled(image: Pixels) -> Pixels:
    longest = max(image.shape[:2])
    if longest > LARGEST:
        height, width = (max(1, round(side * LARGEST / longest)) for side in image.shape[:2])
        return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))
    factor = -(-SMALLEST // longest)
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def draw(layout: Layout) -> Figure:
    """Draw a sheet."""
    # Slightly more than the pixels, as Matplotlib rounds down.
    figure = Figure(figsize=((layout.width + 0.01) / DPI, (layout.height + 0.01) / DPI), dpi=DPI)
    canvas = np.full((layout.height, layout.width, 3), 255, dtype=np.uint8)
    canvas[layout.rules, MARGIN:-MARGIN] = RULE
    for left, top, image in layout.images:
        height, width, _ = image.shape
        canvas[top - 1 : top + height + 1, left - 1 : left + width + 1] = RULE
        canvas[top : top + height, left : left + width] = image
    figure.figimage(canvas)
    for line in layout.lines:
        label = figure.text(line.x, layout.height - line.y, line.text, ha="center" if line.centered else "left",
                            va="baseline", color=line.color, fontproperties=font(line.points, bold=line.bold),
                            parse_math=False)  # fmt: skip
        label.set_transform(IdentityTransform())  # coordinates are pixels
    return figure
