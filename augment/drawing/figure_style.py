"""The style of figures: fonts for all characters, wrapped lines, axes, and saving."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font, get_font_names

from augment.support.files import atomic_path

DPI = 120

# DejaVu ships with Matplotlib. The other fonts cover more scripts, and are used if they are installed.
_FAMILIES = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Micro Hei", "Microsoft YaHei", "Yu Gothic",
    "Malgun Gothic", "Hiragino Sans", "Arial Unicode MS", "Noto Sans",
)  # fmt: skip


_MAX_DRAWN = 1000  # maximum number of characters of a drawn text. Measuring a million takes seconds


def drawable(text: str) -> str:
    r"""Escape characters that cannot be printed or that no font has, as \u9ce5. Shorten texts over 1,000 characters."""
    if len(text) > _MAX_DRAWN:
        text = _elide(text, _MAX_DRAWN)
    return "".join(
        char if char.isprintable() and ord(char) in _characters() else char.encode("unicode_escape").decode()
        for char in text
    )


@cache
def families() -> tuple[str, ...]:
    """Return the installed font families, the default one first."""
    installed = set(get_font_names())
    return tuple(family for family in _FAMILIES if family in installed)


@cache
def _characters() -> frozenset[int]:
    return frozenset(code for family in families() for code in get_font(findfont(family)).get_charmap())


def font(points: float, *, bold: bool = False) -> FontProperties:
    """Return the font at a size in points. Characters missing from the first family come from the other families."""
    return FontProperties(family=list(families()), size=points, weight="bold" if bold else "normal")


@cache
def _renderer() -> RendererBase:
    return RendererAgg(1, 1, DPI)  # type: ignore[no-untyped-call]


def text_width(text: str, points: float, *, bold: bool = False) -> float:
    """Return the width of one line in pixels."""
    return _renderer().get_text_width_height_descent(text, font(points, bold=bold), ismath=False)[0]


def shorten(text: str, width: float, points: float, *, bold: bool = False) -> str:
    """Shorten a text to `width` pixels with an ellipsis in the middle."""
    if text_width(text, points, bold=bold) <= width:
        return text
    lengths = range(len(text))
    too_long = bisect_right(lengths, width, key=lambda length: text_width(_elide(text, length), points, bold=bold))
    return _elide(text, max(too_long - 1, 0))


def _elide(text: str, length: int) -> str:
    """Keep `length` characters of a text, half of them at each end."""
    return text[: length - length // 2] + "…" + text[len(text) - length // 2 :]


def wrap(phrases: Iterable[str], width: float, points: float, *, bold: bool = False) -> list[str]:
    """Join phrases with commas and wrap them into lines of at most `width` pixels.

    Lines break between phrases. A phrase that is wider than a line breaks between words, but not next to a number. A
    word that is wider than a line is shortened.
    """
    *rest, last = [*phrases] or [""]
    lines: list[str] = []

    def too_wide(text: str) -> bool:
        return text_width(text, points, bold=bold) > width

    def pieces(phrase: str) -> Iterator[str]:
        if not too_wide(phrase):
            yield phrase
            return
        for group in re.split(r"(?<!\d) (?![-\d])", phrase):
            yield from group.split(" ") if too_wide(group) else [group]

    for phrase in [*(f"{phrase}," for phrase in rest), last]:
        for piece in pieces(phrase):
            joined = f"{lines[-1]} {piece}" if lines else piece
            lines[-1:] = [*lines[-1:], piece] if too_wide(joined) else [joined]
    return [shorten(line, width, points, bold=bold) for line in lines if line]


INK, GRAY, BLUE = "0.15", "0.6", "#1f5a96"
TITLE = 11  # points
IMAGES = "Images"  # key in a PNG for the positions of the images in a figure


def frame(axes: Axes, title: str, xlabel: str, points: float, *, grid: Literal["x", "y"] = "y") -> None:
    """Style the spines, grid, title and label of axes.

    Args:
        axes: the axes.
        title: a text above the axes, or empty.
        xlabel: a text below the axes.
        points: the text size.
        grid: the axis with grid lines. For horizontal bars (x), the y axis has no ticks.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(GRAY)
    axes.grid(axis=grid, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=points, color=GRAY, labelcolor=INK)
    if grid == "x":
        axes.tick_params(axis="y", length=0)
    axes.set_xlabel(xlabel, fontsize=points, color=INK)
    if title:
        set_title(axes, title)


def set_title(axes: Axes, text: str) -> None:
    """Write a left-aligned title above axes. Dollar signs are literal, because users' names may contain them."""
    axes.set_title(text, loc="left", color=INK, fontproperties=font(TITLE), parse_math=False)


def save_figure(figure: Figure, path: Path, dpi: float, *, parents: bool = True) -> None:
    """Save a figure as a PNG atomically. The PNG's metadata contains the figure's ID under `IMAGES`.

    Args:
        figure: the figure. Its layout is computed once and then fixed.
        path: the file.
        dpi: the resolution.
        parents: whether to create missing parent folders.
    """
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)  # lay out once, or saving would draw the figure twice
        figure.set_layout_engine(None)
    with atomic_path(path, parents=parents) as part:
        named = {} if figure.get_gid() is None else {IMAGES: figure.get_gid()}
        figure.savefig(part, format="png", dpi=dpi, metadata=named)
