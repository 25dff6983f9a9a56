"""Measure, shorten and wrap text, in fonts that have its characters."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import cache

from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties, findfont, get_font, get_font_names

DPI = 120

# Keep a number with its name and its unit.
_BREAK = re.compile(r"(?<!\d) (?![-\d])")

# DejaVu ships with Matplotlib; the others cover more scripts and are used where they are installed.
_FAMILIES = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Micro Hei", "Microsoft YaHei", "Yu Gothic",
    "Malgun Gothic", "Hiragino Sans", "Arial Unicode MS", "Noto Sans",
)  # fmt: skip


def drawable(text: str) -> str:
    r"""Return `text` with characters that no font has, or that are not printable, escaped as in Python (\u9ce5)."""
    return "".join(
        char if char.isprintable() and ord(char) in _characters() else char.encode("unicode_escape").decode()
        for char in text
    )


@cache
def families() -> tuple[str, ...]:
    """Return the families of fonts that are installed, the usual one first."""
    installed = set(get_font_names())
    return tuple(family for family in _FAMILIES if family in installed)


@cache
def _characters() -> frozenset[int]:
    return frozenset(code for family in families() for code in get_font(findfont(family)).get_charmap())


def font(points: float, *, bold: bool = False) -> FontProperties:
    """Return the font of all text, with its fallbacks, in a size."""
    return FontProperties(family=list(families()), size=points, weight="bold" if bold else "normal")


@cache
def _renderer() -> RendererBase:
    return RendererAgg(1, 1, DPI)  # type: ignore[no-untyped-call]


def text_width(text: str, points: float, *, bold: bool = False) -> float:
    """Return the width of one line in pixels."""
    return _renderer().get_text_width_height_descent(text, font(points, bold=bold), ismath=False)[0]


def shorten(text: str, width: float, points: float, *, bold: bool = False) -> str:
    """Return `text`, with an ellipsis in the middle if it is wider than `width` pixels."""
    if text_width(text, points, bold=bold) <= width:
        return text
    kept = bisect_right(range(len(text)), width, key=lambda count: text_width(_elide(text, count), points, bold=bold))
    return _elide(text, max(kept - 1, 0))


def _elide(text: str, kept: int) -> str:
    return text[: kept - kept // 2] + "…" + text[len(text) - kept // 2 :]


def wrap(phrases: Iterable[str], width: float, points: float, *, bold: bool = False) -> list[str]:
    """Join phrases with commas and wrap them into lines of at most `width` pixels.

    Lines break between phrases. A phrase that is wider than a line breaks between words, but not next to a number; a
    word that is wider than a line is shortened.
    """
    *rest, last = [*phrases] or [""]
    lines: list[str] = []

    def wide(text: str) -> bool:
        return text_width(text, points, bold=bold) > width

    for phrase in [*(f"{phrase}," for phrase in rest), last]:
        parts = _BREAK.split(phrase) if wide(phrase) else [phrase]
        for part in [word for group in parts for word in (group.split(" ") if wide(group) else [group])]:
            joined = f"{lines[-1]} {part}" if lines else part
            lines[-1:] = [*lines[-1:], part] if wide(joined) else [joined]
    return [shorten(line, width, points, bold=bold) for line in lines if line]
