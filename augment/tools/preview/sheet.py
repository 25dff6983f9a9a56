"""Draw a sheet of images with captions: blocks of rows, with every image pixel exact and no text overlapping.

`lay_out` decides all positions, in pixels; `draw` only draws them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

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
# Images are enlarged by an integer factor to at least SMALLEST, or reduced to LARGEST.
SMALLEST, LARGEST = 128, 512


@dataclass(frozen=True)
class Tile:
    """An image, (height, width, 3) RGB, above the phrases of its caption."""

    image: Pixels
    caption: tuple[str, ...]


@dataclass(frozen=True)
class SheetRow:
    """Tiles side by side.

    Attributes:
        tiles: tiles from left to right.
        title: what they show.
        lines: further paragraphs.
    """

    tiles: tuple[Tile, ...]
    title: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """Rows under a heading.

    Attributes:
        title: the heading.
        text: a line below it.
        rows: rows from top to bottom.
        panels: number of rows side by side.
        names: position of row titles: in a column before the tiles, above them, or nowhere.
    """

    title: str
    text: str
    rows: tuple[SheetRow, ...]
    panels: int = 1
    names: Literal["before", "above", "nowhere"] = "before"


@dataclass(frozen=True)
class Sheet:
    """Blocks under a title.

    Attributes:
        blocks: blocks from top to bottom.
        smallest: smallest side of an image in pixels.
        title: title of the sheet.
        text: a line below it.
    """

    blocks: tuple[Block, ...]
    smallest: int = SMALLEST
    title: str = ""
    text: str = ""


@dataclass(frozen=True)
class TextLines:
    """Lines of text; (x, y) is the top left of the text, or its top center, in pixels from the top left."""

    x: float
    y: float
    lines: tuple[str, ...]
    points: float
    color: str = INK
    bold: bool = False
    centered: bool = False

    @property
    def height(self) -> int:
        """Height in pixels."""
        return len(self.lines) * line_height(self.points)


@dataclass
class Layout:
    """The position of everything, in pixels from the top left.

    Attributes:
        width: width of the sheet.
        height: height of the sheet.
        side: side of the square cell of an image.
        images: left, top and pixels of each image.
        texts: all texts.
        rules: tops of the lines between blocks.
    """

    width: int
    height: int
    side: int
    images: list[tuple[int, int, Pixels]] = field(default_factory=list)
    texts: list[TextLines] = field(default_factory=list)
    rules: list[int] = field(default_factory=list)


def line_height(points: float) -> int:
    """Return the distance between lines in pixels."""
    return round(points * DPI / 72 * 1.3)


def lay_out(sheet: Sheet) -> Layout:
    """Lay out a sheet."""
    tiles = [tile for block in sheet.blocks for row in block.rows for tile in row.tiles]
    side = max((max(_scaled(tile.image, sheet.smallest).shape[:2]) for tile in tiles), default=sheet.smallest)
    width = max(560, *(b.panels * (_panel(b, side) + GUTTER) - GUTTER for b in sheet.blocks)) + 2 * MARGIN
    layout = Layout(width, 0, side)
    y = MARGIN
    y = _write(layout, MARGIN, y, [sheet.title], width - 2 * MARGIN, TITLE, bold=True) + 4
    y = _write(layout, MARGIN, y, [sheet.text], width - 2 * MARGIN, TEXT, color=GRAY) + 18
    for block in sheet.blocks:
        layout.rules.append(y)
        y = _write(layout, MARGIN, y + 14, [block.title], width - 2 * MARGIN, HEADING, bold=True)
        if block.text:
            y = _write(layout, MARGIN, y + 2, [block.text], width - 2 * MARGIN, TEXT, color=GRAY)
        y += 12
        for start in range(0, len(block.rows), block.panels):
            y = _put_rows(layout, block, block.rows[start : start + block.panels], y, sheet.smallest) + GAP
        y += 10
    layout.height = y - 10 - GAP + MARGIN
    return layout


def _panel(block: Block, side: int) -> int:
    """Return the width of a row in pixels."""
    columns = max((len(row.tiles) for row in block.rows), default=1) + (block.names == "before")
    return columns * (side + GAP) - GAP


def _put_rows(layout: Layout, block: Block, rows: Sequence[SheetRow], y: int, smallest: int) -> int:
    """Put rows side by side with aligned images; return their bottom."""
    width = _panel(block, layout.side)
    starts = [MARGIN + i * (width + GUTTER) for i in range(len(rows))]
    bottom = y
    if block.names == "before":
        bottom = max(_put_name(layout, row, x, y - 3, layout.side) for x, row in zip(starts, rows, strict=True))
        starts = [x + layout.side + GAP for x in starts]
    elif block.names == "above":
        y = max(_put_name(layout, row, x, y, width) for x, row in zip(starts, rows, strict=True)) + 6
    return max(bottom, *(_put_tiles(layout, row, x, y, smallest) for x, row in zip(starts, rows, strict=True)))


def _put_name(layout: Layout, row: SheetRow, x: int, y: int, width: float) -> int:
    bottom = _write(layout, x, y, [row.title], width, TEXT, bold=True)
    for line in row.lines:
        bottom = _write(layout, x, bottom, [line], width, TEXT, color=GRAY)
    return bottom


def _put_tiles(layout: Layout, row: SheetRow, x: int, y: int, smallest: int) -> int:
    side, bottom = layout.side, y
    for number, tile in enumerate(row.tiles):
        left = x + number * (side + GAP)
        image = _scaled(tile.image, smallest)
        height, width, _ = image.shape
        layout.images.append((left + (side - width) // 2, y + (side - height) // 2, image))
        below = _write(layout, left + side / 2, y + side + 5, tile.caption, side + 2, TEXT, centered=True)
        bottom = max(bottom, below)
    return bottom


def _write(
    layout: Layout,
    x: float,
    y: float,
    phrases: Sequence[str],
    width: float,
    points: float,
    *,
    color: str = INK,
    bold: bool = False,
    centered: bool = False,
) -> int:
    """Put text at (x, y), wrapped to `width` pixels; return its bottom."""
    lines = tuple(wrap((drawable(phrase) for phrase in phrases if phrase), width, points, bold=bold))
    text = TextLines(x, y, lines, points, color, bold, centered)
    if lines:
        layout.texts.append(text)
    return round(y) + text.height


def _scaled(image: Pixels, smallest: int) -> Pixels:
    longest = max(image.shape[:2])
    if longest > LARGEST:
        height, width = (max(1, round(side * LARGEST / longest)) for side in image.shape[:2])
        return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))
    factor = -(-smallest // longest)
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def draw(sheet: Sheet) -> Figure:
    """Draw a sheet."""
    layout = lay_out(sheet)
    # Slightly more than the pixels, as Matplotlib rounds down.
    figure = Figure(figsize=((layout.width + 0.01) / DPI, (layout.height + 0.01) / DPI), dpi=DPI)
    canvas = np.full((layout.height, layout.width, 3), 255, dtype=np.uint8)
    for y in layout.rules:
        canvas[y, MARGIN:-MARGIN] = RULE
    for left, top, image in layout.images:
        height, width, _ = image.shape
        canvas[top - 1 : top + height + 1, left - 1 : left + width + 1] = RULE
        canvas[top : top + height, left : left + width] = image
    figure.figimage(canvas)
    for text in layout.texts:
        for number, line in enumerate(text.lines):
            # The baseline does not depend on the letters of the line.
            base = text.y + number * line_height(text.points) + round(text.points * DPI / 72)
            label = figure.text(text.x, layout.height - base, line, ha="center" if text.centered else "left",
                                va="baseline", color=text.color, fontproperties=font(text.points, bold=text.bold),
                                parse_math=False)  # fmt: skip
            label.set_transform(IdentityTransform())  # coordinates are pixels
    return figure
