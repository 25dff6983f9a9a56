"""Draw masks, boxes and keypoints on images, in colors that color-blind people can distinguish on any photo."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from math import ceil
from typing import Any

import numpy as np
from matplotlib.font_manager import findfont, get_font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from augment.drawing.figure_style import drawable, families

Pixels = NDArray[np.uint8]  # (height, width, 3) RGB
Color = tuple[int, int, int]

# The colors of Okabe and Ito without black, https://jfly.uni-koeln.de/color/. Label 0 gets the last color.
_COLORS: tuple[Color, ...] = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167),
)  # fmt: skip
LEFT, RIGHT, MIDDLE = _COLORS[1], _COLORS[5], _COLORS[3]
_BLACK, _WHITE, _INK = (0, 0, 0), (255, 255, 255), (38, 38, 38)

_TINT = 0.45  # opacity of a mask
_TEXT = 11  # text height in pixels
_NARROWEST = 320  # minimum width of a legend in pixels
_SMALLEST, _LARGEST = 320, 4096  # longer side of a readable drawing in pixels


def color_of(label: int) -> Color:
    """Return the color of a class: seven colors, then their darker and lighter versions, then the seven again."""
    turn, number = divmod(label - 1, len(_COLORS))
    color = _COLORS[number]
    if turn % 3 == 0:
        return color
    mixed_with = _BLACK if turn % 3 == 1 else _WHITE
    red, green, blue = ((a + b) // 2 for a, b in zip(color, mixed_with, strict=True))
    return red, green, blue


class Drawing:
    """An image on which targets are drawn, one after another.

    All coordinates are in pixels of the image, (height, width, 3) RGB. Boxes are given by their edges, so the whole
    image is [0, 0, width, height]. The coordinates of keypoints are integers at pixel centers.

    Args:
        image: the image.
        scale: enlarges the image, but not lines and text.
        weight: enlarges lines and text, for large images.
    """

    def __init__(self, image: Pixels, scale: float = 1.0, weight: int = 1) -> None:
        self.weight = weight
        self._sides = [max(1, round(side * scale)) for side in image.shape[:2]]
        self._scale = [new / old for new, old in zip(self._sides, image.shape[:2], strict=True)]
        resample = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
        self._image = Image.fromarray(np.ascontiguousarray(image)).resize((self._sides[1], self._sides[0]), resample)
        self._has_text = np.zeros(self._sides, np.bool_)  # whether a pixel of the drawing is part of a text

    @classmethod
    def readable(cls, image: Pixels) -> Drawing:
        """Return a drawing of an image of any size. Small images are enlarged. Sides above 4096 pixels are reduced.

        Large images get thick lines and large text.
        """
        longer = max(image.shape[:2])
        scale = min(max(1, ceil(_SMALLEST / longer)), _LARGEST / longer)
        return cls(image, scale, max(1, round(longer * scale / 1000)))

    @property
    def pixels(self) -> Pixels:
        """The drawing, (height, width, 3) RGB."""
        return np.asarray(self._image)

    def mask(self, labels: NDArray[np.integer], names: Sequence[str] = (), *, ignore: int | None = None) -> Drawing:
        """Draw a mask, (height, width), as transparent areas with outlines, and write the name of each class once.

        Label 0 is not drawn if its name is "background". The label `ignore` is white.
        """
        large = self._resized(labels)
        for label in np.unique(large).tolist():
            if label == ignore:
                self._area(large == label, _WHITE, "")
            elif label or [*names[:1]] != ["background"]:
                self._area(large == label, color_of(label), names[label] if label < len(names) else "")
        return self

    def masks(self, masks: Iterable[NDArray[Any]], labels: Sequence[int]) -> Drawing:
        """Draw the masks of objects, K times (height, width), in the colors of their classes, (K,)."""
        for mask, label in zip(masks, labels, strict=True):
            self._area(self._resized(mask) > 0, color_of(int(label)), "")
        return self

    def boxes(self, boxes: NDArray[np.floating], labels: Sequence[int], texts: Sequence[str] = ()) -> Drawing:
        """Draw boxes, (K, 4), in the colors of their classes, (K,), each with a text."""
        canvas, weight = ImageDraw.Draw(self._image), self.weight
        for number, (box, label) in enumerate(zip(np.asarray(boxes, np.float64), labels, strict=True)):
            left, top, end, bottom = self._edges(box)
            color = color_of(int(label))
            outer = left - weight, top - weight, end + weight, bottom + weight
            canvas.rectangle(outer, outline=_BLACK, width=4 * weight)
            canvas.rectangle((left, top, end, bottom), outline=color, width=2 * weight)
            if number < len(texts) and texts[number]:
                self._write(canvas, texts[number], color, (left, top, end, bottom))
        return self

    def texts(self, boxes: NDArray[np.floating], labels: Sequence[int], texts: Sequence[str]) -> Drawing:
        """Write the texts of boxes that `boxes` has drawn. Omit texts that would cover other texts."""
        canvas = ImageDraw.Draw(self._image)
        for box, label, text in zip(np.asarray(boxes, np.float64), labels, texts, strict=True):
            self._write(canvas, text, color_of(int(label)), self._edges(box), always=False)
        return self

    def _edges(self, box: NDArray[np.float64]) -> tuple[int, int, int, int]:
        """Return the first and last pixels of a box in the drawing. A box includes at least one pixel."""
        scale_y, scale_x = self._scale
        left, top = round(box[0] * scale_x), round(box[1] * scale_y)
        right, bottom = round(box[2] * scale_x) - 1, round(box[3] * scale_y) - 1
        return left, top, max(left, right), max(top, bottom)

    def points(
        self, points: NDArray[np.floating], flip_pairs: Sequence[tuple[int, int]] = (), names: Sequence[str] = ()
    ) -> Drawing:
        """Draw keypoints, (P, 3): x, y and visibility. Write the names of the keypoints inside the image.

        The left keypoint of a pair is blue, the right one is red, and others are yellow. Visibility 0 is not drawn, and
        visibility 1 (hidden) is a ring.
        """
        canvas = ImageDraw.Draw(self._image)
        colors = {left: LEFT for left, _ in flip_pairs} | {right: RIGHT for _, right in flip_pairs}
        scale_y, scale_x = self._scale
        for number, (x, y, visibility) in enumerate(np.asarray(points, np.float64).tolist()):
            if not visibility:
                continue
            x, y = (x + 0.5) * scale_x - 0.5, (y + 0.5) * scale_y - 0.5
            color = colors.get(number, MIDDLE)
            for size, fill in ((5, _BLACK), (4, color), (2, color if visibility > 1 else _BLACK)):
                radius = size * self.weight
                canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
            if number < len(names) and 0 <= x < self._sides[1] and 0 <= y < self._sides[0]:
                gap = 6 * self.weight
                self._write(canvas, names[number], color, (round(x + gap), round(y), round(x + gap), round(y + gap)))
        return self

    def _resized(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Resize a mask of any size to the drawing. Each pixel gets the nearest label."""
        if [*labels.shape] == self._sides:
            return labels
        rows, columns = (
            ((np.arange(new) + 0.5) * old // new).astype(np.int64)
            for new, old in zip(self._sides, labels.shape, strict=True)
        )
        return np.asarray(labels[rows[:, None], columns])

    def _area(self, area: NDArray[np.bool_], color: Color, text: str) -> None:
        """Tint and outline an area of the drawing, (height, width). Write a text far from its outline."""
        from scipy.ndimage import binary_erosion, distance_transform_edt

        if not area.any():
            return
        # Process only the bounding box of the area, with a margin of two pixels.
        rows, columns = np.flatnonzero(area.any(axis=1)), np.flatnonzero(area.any(axis=0))
        left, top = max(int(columns[0]) - 2, 0), max(int(rows[0]) - 2, 0)
        area = area[top : int(rows[-1]) + 3, left : int(columns[-1]) + 3]
        pixels = np.array(self._image.crop((left, top, left + area.shape[1], top + area.shape[0])))
        pixels[area] = np.rint(pixels[area] * (1 - _TINT) + np.array(color) * _TINT)
        inner, core = (binary_erosion(area, iterations=times * self.weight, border_value=1) for times in (1, 2))
        pixels[area & ~inner] //= 3  # a dark and a bright line, so that one of them is visible on any photo
        pixels[inner & ~core] = color
        self._image.paste(Image.fromarray(pixels), (left, top))
        if text:
            depth = distance_transform_edt(np.pad(area, 1))[1:-1, 1:-1]  # distance to the outline
            y, x = np.unravel_index(int(np.argmax(depth)), area.shape)
            width, height = _extent(text, self.weight)
            at = round(left + x - width / 2), round(top + y + height / 2)
            self._write(ImageDraw.Draw(self._image), text, color, at * 2)

    def _write(
        self,
        canvas: ImageDraw.ImageDraw,
        text: str,
        color: Color,
        box: tuple[int, int, int, int],
        *,
        always: bool = True,
    ) -> None:
        """Write a text on a colored background, at the first free position above, below or inside the box.

        If no position is free, cover other texts, or write nothing unless `always`.
        """
        width, height = _extent(text, self.weight)
        left, top, right, bottom = box
        corners = [(left, top - height), (left, bottom + 1), (left, top), (right - width, top), (left, bottom - height)]
        max_y, max_x = self._sides[0] - height, self._sides[1] - width
        inside = [(x, y) for x, y in corners if 0 <= x <= max_x and 0 <= y <= max_y]
        # If these are not free, try the same corners, moved into the drawing.
        inside += [(min(max(x, 0), max_x), min(max(y, 0), max_y)) for x, y in corners]
        areas = [np.s_[max(y, 0) : y + height, max(x, 0) : x + width] for x, y in inside]
        free = [number for number, area in enumerate(areas) if not self._has_text[area].any()]
        if not free and not always:
            return
        number = free[0] if free else 0
        self._has_text[areas[number]] = True
        x, y = inside[number]
        canvas.rectangle((x, y, x + width - 1, y + height - 1), fill=color)
        light = np.dot(color, (0.299, 0.587, 0.114)) > 110
        drawn_text, weight = drawable(text), self.weight
        start = x + 2 * weight, y + height - 3 * weight
        canvas.text(start, drawn_text, _BLACK if light else _WHITE, _font_for(drawn_text, weight), "ls")


def with_legend(image: Pixels, entries: Sequence[tuple[int | None, str]], weight: int = 1) -> Pixels:
    """Add a white strip below an image with a legend of its colors. Without entries, return the image.

    Args:
        image: (height, width, 3) RGB.
        entries: labels of classes, and texts. A text with the label None has no colored square.
        weight: see `Drawing`.
    """
    if not entries:
        return image
    height, width, _ = image.shape
    wide, square, gap = max(width, _NARROWEST * weight), _TEXT * weight, 4 * weight
    step, left, top = square + 2 * gap, gap, height + gap
    sheet = Image.new("RGB", (wide, height + len(entries) * step), _WHITE)
    sheet.paste(Image.fromarray(image), (0, 0))
    canvas = ImageDraw.Draw(sheet)
    for label, text in entries:
        drawn_text = drawable(text)
        while len(drawn_text) > 2 and _extent(drawn_text, weight)[0] > wide - square - 4 * gap:
            drawn_text = f"{drawn_text[:-2]}…"
        indent = 0 if label is None else square + gap
        needed = indent + _extent(drawn_text, weight)[0]
        if left + needed > wide and left > gap:
            left, top = gap, top + step
        if label is not None:
            canvas.rectangle((left, top, left + square - 1, top + square - 1), fill=color_of(label))
        canvas.text((left + indent, top + square - weight), drawn_text, _INK, _font_for(drawn_text, weight), "ls")
        left += needed + 2 * gap
    return np.asarray(sheet.crop((0, 0, wide, top + step - gap)))


def with_scale(image: Pixels, colors: Pixels, weight: int = 1) -> Pixels:
    """Add a white strip below an image with a color bar from "little" to "much".

    Args:
        image: (height, width, 3) RGB. The width is at least 320 times the weight.
        colors: the colors of the bar, (1, length, 3) RGB.
        weight: see `Drawing`.
    """
    square, gap = _TEXT * weight, 4 * weight
    strip = Image.new("RGB", (image.shape[1], square + 2 * gap), _WHITE)
    bar, left = Image.fromarray(colors).resize((10 * square, square)), gap + _extent("little", weight)[0]
    strip.paste(bar, (left, gap))
    canvas = ImageDraw.Draw(strip)
    for x, text in ((gap, "little"), (left + bar.width + gap, "much")):
        canvas.text((x, gap + square - weight), text, _INK, _font_for(text, weight), "ls")
    return np.concatenate([image, strip])


@cache
def _font_for(text: str, weight: int) -> ImageFont.FreeTypeFont:
    """Return a font with all characters of a text, or the default font."""
    files = [findfont(family) for family in families()]
    codes = set(map(ord, text))
    file = next((f for f in files if codes <= get_font(f).get_charmap().keys()), files[0])
    return _font(file, _TEXT * weight)


@cache  # all texts of a size share an open file
def _font(file: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(file, size)


@cache
def _extent(text: str, weight: int) -> tuple[int, int]:
    """Return the width and height of a text with its background."""
    drawn_text = drawable(text)
    return round(_font_for(drawn_text, weight).getlength(drawn_text)) + 4 * weight, (_TEXT + 3) * weight
