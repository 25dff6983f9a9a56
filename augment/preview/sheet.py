"""A sheet of pictures with captions: rows in blocks, every picture shown pixel by pixel, every text in its place.

What goes where is decided by `lay_out`, in pixels; `draw` only carries it out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import IdentityTransform
from numpy.typing import NDArray
from PIL import Image

from augment.lettering import DPI, drawable, font, wrap

Picture = NDArray[np.uint8]

INK, GRAY, RULE = "0.15", "0.45", 225
TITLE, HEADING, TEXT = 14, 11, 9  # points
MARGIN, GAP, GUTTER = 28, 12, 40  # pixels: around the sheet, between pictures, between panels
# Pictures are enlarged by a whole factor to at least the one, and reduced to the other.
SMALLEST, LARGEST = 128, 512


@dataclass(frozen=True)
class Tile:
    """A picture, (H, W, 3) uint8 RGB, over the phrases of its caption."""

    picture: Picture
    caption: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """Tiles side by side.

    Attributes:
        tiles: from the left.
        title: what they show.
        lines: more about it, each a paragraph.
    """

    tiles: tuple[Tile, ...]
    title: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """Rows under a heading.

    Attributes:
        title: the heading.
        text: what is to be known about all of them.
        rows: from the top.
        panels: rows side by side.
        names: where the titles of rows are: in a column before them, above them, or nowhere.
    """

    title: str
    text: str
    rows: tuple[Row, ...]
    panels: int = 1
    names: Literal["before", "above", "nowhere"] = "before"


@dataclass(frozen=True)
class Sheet:
    """Blocks under a title.

    Attributes:
        title: of the whole.
        text: a line below it.
        blocks: from the top.
        smallest: side in pixels that pictures have at least.
    """

    title: str
    text: str
    blocks: tuple[Block, ...]
    smallest: int = SMALLEST


@dataclass(frozen=True)
class Text:
    """Lines of text; (x, y) is the top, in pixels from the top left: at the left, or centered."""

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
    """Where everything is, in pixels from the top left.

    Attributes:
        width: of the sheet.
        height: of the sheet.
        side: of a picture's place.
        pictures: left, top and pixels.
        texts: all texts.
        rules: tops of the lines between blocks.
    """

    width: int
    height: int
    side: int
    pictures: list[tuple[int, int, Picture]] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    rules: list[int] = field(default_factory=list)


def line_height(points: float) -> int:
    """Return the distance from line to line in pixels."""
    return round(points * DPI / 72 * 1.3)


def lay_out(sheet: Sheet) -> Layout:
    """Give everything its place."""
    tiles = [tile for block in sheet.blocks for row in block.rows for tile in row.tiles]
    side = max((max(_scaled(tile.picture, sheet.smallest).shape[:2]) for tile in tiles), default=sheet.smallest)
    width = max([max(_width(block, side) for block in sheet.blocks), 560]) + 2 * MARGIN
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
    """Return the width of a row."""
    columns = max((len(row.tiles) for row in block.rows), default=1) + (block.names == "before")
    return columns * (side + GAP) - GAP


def _width(block: Block, side: int) -> int:
    return block.panels * (_panel(block, side) + GUTTER) - GUTTER


def _put_rows(layout: Layout, block: Block, rows: Sequence[Row], y: int, smallest: int) -> int:
    """Put rows beside each other, their pictures at one height; return their bottom."""
    width = _panel(block, layout.side)
    starts = [MARGIN + i * (width + GUTTER) for i in range(len(rows))]
    bottom = y
    if block.names == "before":
        bottom = max(_put_name(layout, row, x, y - 3, layout.side) for x, row in zip(starts, rows, strict=True))
        starts = [x + layout.side + GAP for x in starts]
    elif block.names == "above":
        y = max(_put_name(layout, row, x, y, width) for x, row in zip(starts, rows, strict=True)) + 6
    return max(bottom, *(_put_tiles(layout, row, x, y, smallest) for x, row in zip(starts, rows, strict=True)))


def _put_name(layout: Layout, row: Row, x: int, y: int, width: float) -> int:
    bottom = _write(layout, x, y, [row.title], width, TEXT + 1, bold=True)
    for line in row.lines:
        bottom = _write(layout, x, bottom, [line], width, TEXT, color=GRAY)
    return bottom


def _put_tiles(layout: Layout, row: Row, x: int, y: int, smallest: int) -> int:
    side, bottom = layout.side, y
    for number, tile in enumerate(row.tiles):
        left = x + number * (side + GAP)
        picture = _scaled(tile.picture, smallest)
        height, width, _ = picture.shape
        layout.pictures.append((left + (side - width) // 2, y + (side - height) // 2, picture))
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
    """Put text at (x, y), in as many lines as it needs; return its bottom."""
    lines = tuple(wrap((drawable(phrase) for phrase in phrases if phrase), width, points, bold=bold))
    text = Text(x, y, lines, points, color, bold, centered)
    if lines:
        layout.texts.append(text)
    return round(y) + text.height


def _scaled(picture: Picture, smallest: int) -> Picture:
    longest = max(picture.shape[:2])
    if longest > LARGEST:
        height, width = (max(1, round(side * LARGEST / longest)) for side in picture.shape[:2])
        return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BOX))
    factor = -(-smallest // longest)
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def draw(sheet: Sheet) -> Figure:
    """Draw a sheet."""
    layout = lay_out(sheet)
    # A hair more than the pixels, as Matplotlib rounds down.
    figure = Figure(figsize=((layout.width + 0.01) / DPI, (layout.height + 0.01) / DPI), dpi=DPI)
    canvas = np.full((layout.height, layout.width, 3), 255, dtype=np.uint8)
    for y in layout.rules:
        canvas[y, MARGIN:-MARGIN] = RULE
    for left, top, picture in layout.pictures:
        height, width, _ = picture.shape
        canvas[top - 1 : top + height + 1, left - 1 : left + width + 1] = RULE
        canvas[top : top + height, left : left + width] = picture
    figure.figimage(canvas)
    for x, base, line, text in _lines(layout):
        label = figure.text(x, layout.height - base, line, ha="center" if text.centered else "left", va="baseline",
                            color=text.color, fontproperties=font(text.points, bold=text.bold),
                            parse_math=False)  # fmt: skip
        label.set_transform(IdentityTransform())  # in pixels
    return figure


def _lines(layout: Layout) -> Iterator[tuple[float, float, str, Text]]:
    """Yield each line of each text with its baseline, so that lines stand alike whatever letters they have."""
    for text in layout.texts:
        for number, line in enumerate(text.lines):
            yield text.x, text.y + number * line_height(text.points) + round(text.points * DPI / 72), line, text
