"""Draw a sheet of images with captions, in blocks of rows. Images of up to 512 pixels keep their exact pixels.

`lay_out` computes the positions of images and texts in pixels, so that no texts overlap. `draw` draws the layout.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import IdentityTransform
from numpy.typing import NDArray
from PIL import Image

from augment.drawing.figure_style import DPI, INK, drawable, font, wrap

Pixels = NDArray[np.uint8]  # (height, width, 3) RGB

SOFT_INK, RULE = "0.45", 225  # grays of secondary text, and of lines
SHEET_TITLE, HEADING, TEXT = 14, 11, 9  # points
MARGIN, GAP = 28, 12  # pixels around the sheet, and between images
NARROWEST = 560  # minimum number of pixels between the margins
# Small images are enlarged by an integer factor to at least SMALLEST. Large images are reduced to LARGEST.
SMALLEST, LARGEST = 160, 512
MAX_IMAGES = 32  # maximum number of images in the figure of a batch


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
    """Rows under a heading and a line of text."""

    title: str
    text: str
    rows: tuple[SheetRow, ...]


@dataclass(frozen=True)
class SheetLine:
    """A line of text. (x, y) is the left end or the center of its baseline, in pixels from the top left."""

    x: float
    y: int
    text: str
    points: float
    color: str = INK
    bold: bool = False
    centered: bool = False


@dataclass
class Layout:
    """The positions of all images, texts and lines, in pixels from the top left."""

    width: int  # width of the sheet
    side: int  # side of an image's square cell
    smallest: int = SMALLEST  # minimum longer side of an image
    height: int = MARGIN  # height of the sheet so far
    images: list[tuple[int, int, Pixels]] = field(default_factory=list)  # left, top and pixels of each image
    lines: list[SheetLine] = field(default_factory=list)  # all text
    rules: list[int] = field(default_factory=list)  # tops of the lines between blocks

    def write(self, phrases: Iterable[str], points: float, *, color: str = INK, bold: bool = False) -> None:
        """Add text at the bottom, wrapped to the width."""
        for line in wrapped(phrases, self.width - 2 * MARGIN, points, bold=bold):
            baseline = self.height + round(points * DPI / 72)
            self.lines.append(SheetLine(MARGIN, baseline, line, points, color, bold))
            self.height += line_height(points)

    def add_row(self, row: SheetRow) -> None:
        """Add a row at the bottom."""
        self.write([row.title], TEXT, bold=True)
        for text in row.lines:
            self.write([text], TEXT, color=SOFT_INK)
        top, bottom = self.height + 6, self.height + 6
        for number, tile in enumerate(row.tiles):
            left, image = MARGIN + number * (self.side + GAP), _scaled(tile.image, self.smallest)
            height, width, _ = image.shape
            self.images.append((left + (self.side - width) // 2, top + (self.side - height) // 2, image))
            baseline = top + self.side + 5 + round(TEXT * DPI / 72)
            for line in wrapped(tile.caption, self.side + 2, TEXT):
                self.lines.append(SheetLine(left + self.side / 2, baseline, line, TEXT, centered=True))
                baseline += line_height(TEXT)
            bottom = max(bottom, baseline)
        self.height = bottom


def line_height(points: float) -> int:
    """Return the distance between lines in pixels."""
    return round(points * DPI / 72 * 1.3)


def wrapped(phrases: Iterable[str], width: float, points: float, *, bold: bool = False) -> list[str]:
    """Wrap phrases into lines of at most `width` pixels."""
    return wrap(map(drawable, filter(None, phrases)), width, points, bold=bold)


def lay_out(title: str, text: str, blocks: Sequence[SheetBlock]) -> Layout:
    """Lay out blocks from top to bottom, under a title and a line of text."""
    rows = [row for block in blocks for row in block.rows]
    longer_sides = [max(_scaled(tile.image).shape[:2]) for row in rows for tile in row.tiles]
    side = max(longer_sides, default=SMALLEST)
    layout = Layout(_width(max((len(row.tiles) for row in rows), default=1), side), side)
    layout.write([title], SHEET_TITLE, bold=True)
    layout.write([text], TEXT, color=SOFT_INK)
    for block in blocks:
        layout.height += 18
        layout.rules.append(layout.height)
        layout.height += 14
        layout.write([block.title], HEADING, bold=True)
        layout.write([block.text], TEXT, color=SOFT_INK)
        for row in block.rows:
            layout.height += GAP
            layout.add_row(row)
    layout.height += MARGIN
    return layout


def _width(columns: int, side: int) -> int:
    """Return the width of a sheet with columns of square cells. `side` is the side of a cell in pixels."""
    return max(NARROWEST, columns * (side + GAP) - GAP) + 2 * MARGIN


def _scaled(image: Pixels, smallest: int = SMALLEST) -> Pixels:
    """Reduce an image whose longer side exceeds `LARGEST`. Enlarge one whose longer side is below `smallest`."""
    longer = max(image.shape[:2])
    if longer > LARGEST:
        height, width = (max(1, round(side * LARGEST / longer)) for side in image.shape[:2])
        return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))
    factor = ceil(smallest / longer)
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def in_rows(tiles: Sequence[Tile], most: int) -> list[tuple[Tile, ...]]:
    """Split tiles into as few rows of at most `most` tiles as possible. Only the last row may be shorter."""
    rows = ceil(len(tiles) / most)
    columns = ceil(len(tiles) / rows)
    return [tuple(tiles[start : start + columns]) for start in range(0, len(tiles), columns)]


def draw_batch(figure: Figure, images: NDArray[np.uint8], labels: Sequence[str], title: str = "") -> None:
    """Draw the first 32 images of a batch, (N, height, width, 3) uint8 RGB, above their labels, below a title.

    Images of up to 512 pixels keep their exact pixels, and small images are enlarged by an integer factor. Pass an
    empty figure with the resolution `DPI`. This function sets the size of the figure, and stores the positions of the
    images in the figure's ID.
    """
    tiles = [Tile(image, (label,)) for image, label in zip(images[:MAX_IMAGES], labels, strict=False)]
    side = max(_scaled(images[0], 128).shape[:2])
    rows = in_rows(tiles, min(8, max(1, 1800 // side)))
    layout = Layout(_width(len(rows[0]), side), side, 128)
    layout.write([title], HEADING)
    for row in rows:
        layout.add_row(SheetRow(row))
    layout.height += MARGIN
    draw(layout, figure)
    height, width, _ = layout.images[0][2].shape
    figure.set_gid(json.dumps([width, height, *((left, top) for left, top, _ in layout.images)]))


def draw(layout: Layout, figure: Figure | None = None) -> Figure:
    """Draw a sheet on a figure, by default a new one."""
    figure = figure or Figure(dpi=DPI)
    # The figure is slightly larger than its pixels, because Matplotlib rounds down.
    figure.set_size_inches((layout.width + 0.01) / DPI, (layout.height + 0.01) / DPI)
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
