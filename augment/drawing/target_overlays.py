"""Draw masks, boxes and keypoints on images, in colors that color-blind people can distinguish on any photo."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

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
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)

_TINT = 0.45  # opacity of a mask
_TEXT = 11  # text height in pixels


def color_of(label: int) -> Color:
    """Return the color of a class: seven colors, then their darker and lighter versions, then the seven again."""
    turn, number = divmod(label - 1, len(_COLORS))
    color = _COLORS[number]
    if turn % 3 == 0:
        return color
    red, green, blue = ((a + b) // 2 for a, b in zip(color, _BLACK if turn % 3 == 1 else _WHITE, strict=True))
    return red, green, blue


class Drawing:
    """An image on which targets are drawn, one after another.

    All coordinates are in pixels of the image, (height, width, 3) RGB. Boxes are given by their edges, so the whole
    image is [0, 0, width, height]. The coordinates of keypoints are integers at pixel centers. The scale enlarges the
    image, but not lines and text.
    """

    def __init__(self, image: Pixels, scale: float = 1.0) -> None:
        self._sides = [max(1, round(side * scale)) for side in image.shape[:2]]
        self._scale = [new / old for new, old in zip(self._sides, image.shape[:2], strict=True)]
        resample = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
        self._image = Image.fromarray(np.ascontiguousarray(image)).resize((self._sides[1], self._sides[0]), resample)
        self._taken: list[tuple[float, float, float, float]] = []

    @property
    def pixels(self) -> Pixels:
        """The drawing, (height, width, 3) RGB."""
        return np.asarray(self._image)

    def mask(self, labels: NDArray[np.integer], names: Sequence[str] = (), *, ignore: int | None = None) -> Drawing:
        """Draw a mask, (height, width), as transparent areas with outlines, and write the name of each class once.

        Label 0 is not drawn if its name is "background". The label `ignore` is white.
        """
        large = self._enlarged(labels)
        for label in np.unique(large).tolist():
            if label == ignore:
                self._area(large == label, _WHITE, "")
            elif label or [*names[:1]] != ["background"]:
                self._area(large == label, color_of(label), names[label] if label < len(names) else "")
        return self

    def masks(self, masks: NDArray[np.integer], labels: Sequence[int]) -> Drawing:
        """Draw the masks of objects, (K, height, width), in the colors of their classes, (K,)."""
        for mask, label in zip(masks, labels, strict=True):
            self._area(self._enlarged(mask) > 0, color_of(int(label)), "")
        return self

    def boxes(self, boxes: NDArray[np.floating], labels: Sequence[int], texts: Sequence[str] = ()) -> Drawing:
        """Draw boxes, (K, 4), in the colors of their classes, (K,), each with a text."""
        canvas = ImageDraw.Draw(self._image)
        down, right = self._scale
        for number, (box, label) in enumerate(zip(np.asarray(boxes, np.float64), labels, strict=True)):
            left, top = round(box[0] * right), round(box[1] * down)
            # A box includes at least one pixel.
            end, bottom = max(round(box[2] * right) - 1, left), max(round(box[3] * down) - 1, top)
            color = color_of(int(label))
            canvas.rectangle((left - 1, top - 1, end + 1, bottom + 1), outline=_BLACK, width=4)
            canvas.rectangle((left, top, end, bottom), outline=color, width=2)
            if number < len(texts) and texts[number]:
                self._write(canvas, texts[number], color, (left, top, end, bottom))
        return self

    def points(
        self, points: NDArray[np.floating], flip_pairs: Sequence[tuple[int, int]] = (), names: Sequence[str] = ()
    ) -> Drawing:
        """Draw keypoints, (P, 3), and their names. The last column is the visibility.

        The left keypoint of a pair is blue, the right one is red, and others are yellow. Visibility 0 is not drawn, and
        visibility 1 (hidden) is a ring.
        """
        canvas = ImageDraw.Draw(self._image)
        colors = {left: LEFT for left, _ in flip_pairs} | {right: RIGHT for _, right in flip_pairs}
        down, right = self._scale
        for number, (x, y, visibility) in enumerate(np.asarray(points, np.float64).tolist()):
            if not visibility:
                continue
            x, y = (x + 0.5) * right - 0.5, (y + 0.5) * down - 0.5
            color = colors.get(number, MIDDLE)
            for radius, fill in ((5, _BLACK), (4, color), (2, color if visibility > 1 else _BLACK)):
                canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
            if number < len(names):
                self._write(canvas, names[number], color, (round(x + 6), round(y), round(x + 6), round(y + 6)))
        return self

    def _enlarged(self, labels: NDArray[np.integer]) -> NDArray[np.integer]:
        row, column = (
            ((np.arange(new) + 0.5) * old // new).astype(np.int64)
            for new, old in zip(self._sides, labels.shape, strict=True)
        )
        return np.asarray(labels[row[:, None], column])

    def _area(self, area: NDArray[np.bool_], color: Color, text: str) -> None:
        from scipy.ndimage import binary_erosion, distance_transform_edt

        if not area.any():
            return
        pixels = np.array(self._image)
        pixels[area] = np.rint(pixels[area] * (1 - _TINT) + np.array(color) * _TINT)
        inner, core = (binary_erosion(area, iterations=times, border_value=1) for times in (1, 2))
        pixels[area & ~inner] //= 3  # a dark and a bright line, so that one is visible on any photo
        pixels[inner & ~core] = color
        self._image = Image.fromarray(pixels)
        if text:
            depth = distance_transform_edt(np.pad(area, 1))[1:-1, 1:-1]  # distance to the outline
            y, x = np.unravel_index(int(np.argmax(depth)), area.shape)
            width, height = _extent(text)
            at = round(x - width / 2), round(y + height / 2)
            self._write(ImageDraw.Draw(self._image), text, color, at * 2)

    def _write(self, canvas: ImageDraw.ImageDraw, text: str, color: Color, box: tuple[int, int, int, int]) -> None:
        """Write on a colored background, above the box or at another free place next to it."""
        width, height = _extent(text)
        left, top, right, bottom = box
        places = [(left, top - height), (left, bottom + 1), (left, top), (right - width, top), (left, bottom - height)]
        most_y, most_x = self._sides[0] - height, self._sides[1] - width
        free = [(x, y) for x, y in places if 0 <= x <= most_x and 0 <= y <= most_y]
        free += [(min(max(x, 0), most_x), min(max(y, 0), most_y)) for x, y in places]
        areas = [(x, y, x + width, y + height) for x, y in free]

        def is_free(a: tuple[float, float, float, float]) -> bool:
            return not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in self._taken)

        area = next(filter(is_free, areas), areas[0])
        self._taken.append(area)
        canvas.rectangle((area[0], area[1], area[2] - 1, area[3] - 1), fill=color)
        light = np.dot(color, (0.299, 0.587, 0.114)) > 110
        shown = drawable(text)
        canvas.text((area[0] + 2, area[1] + height - 3), shown, _BLACK if light else _WHITE, _face(shown), "ls")


@cache
def _face(text: str) -> ImageFont.FreeTypeFont:
    """Return a font with all characters of a text, or the default font."""
    files = [findfont(family) for family in families()]
    codes = set(map(ord, text))
    return ImageFont.truetype(next((f for f in files if codes <= get_font(f).get_charmap().keys()), files[0]), _TEXT)


@cache
def _extent(text: str) -> tuple[int, int]:
    """Return the width and height of a text with its background."""
    shown = drawable(text)
    return round(_face(shown).getlength(shown)) + 4, _TEXT + 3
