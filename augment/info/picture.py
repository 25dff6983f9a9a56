"""A drawing of what a data set holds: classes or numbers, sizes, shapes, and pictures that look the same."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from augment.check import DECODER_ERRORS
from augment.dataset import Picture
from augment.figures import INK, TITLE
from augment.info.charts import CHARTS, draw_charts
from augment.info.page import COLORS, SMALL, TEXT, WIDTH, Page, bins, draw_shares, frame, legend, thousands
from augment.info.summary import Info
from augment.info.text import headline
from augment.lettering import DPI, drawable, font, shorten, text_width
from augment.stored import open_picture, to_rgb
from augment.wording import amount

NAMED = 40  # classes that have their names beside their bars
_LONG_TAIL = 30  # most over fewest pictures, from which on their axis is logarithmic
_NUMBERS = 8  # of which a histogram is drawn
_PAIRS = 8
_SIDE = 256  # px of a picture in a pair

# Inches: the blank at the sides, and the heights of the page's parts with the blanks around them.
_MARGIN = 0.2
_INNER = WIDTH - 2 * _MARGIN
_HEAD, _BARS, _BAR, _RANKS, _NUMBER, _PAIRS_HEAD, _PAIR = 0.55, 0.9, 0.22, 3.1, 2.5, 0.35, 2.0


def draw(info: Info) -> Figure:
    """Draw a data set."""
    pairs = info.pairs[:_PAIRS]
    bars = len(info.counts)
    first = _numbers_height(info) if info.numbers else _BARS + _BAR * bars if bars <= NAMED else _RANKS
    last = _PAIRS_HEAD + _PAIR * -(-len(pairs) // 4) if pairs else 0.0
    height = _HEAD + first + CHARTS + last
    page = Page(Figure(figsize=(WIDTH, height), dpi=DPI), height)
    page.write(_MARGIN, 0.15, shorten(drawable(headline(info)), 0.9 * _INNER * DPI, TITLE + 1), TITLE + 1, bold=True)
    if info.numbers:
        _draw_numbers(page, info)
    elif bars <= NAMED:
        _draw_bars(page, info)
    else:
        _draw_ranks(page, info)
    draw_charts(page, info, _HEAD + first)
    if pairs:
        _draw_pairs(page, info, pairs, _HEAD + first + CHARTS)
    return page.figure


# ---- classes, labels, numbers


def _draw_bars(page: Page, info: Info) -> None:
    """Draw a bar for each class: train, and val at its end."""
    names = [shorten(drawable(name), 2.2 * DPI, TEXT) for name in info.data.classes]
    left = max(text_width(name, TEXT) for name in names) / DPI + 0.35
    axes = page.axes(left, _HEAD + 0.3, WIDTH - left - 0.3, 0.05 + _BAR * len(names))
    places = np.arange(len(names))
    train, val = info.counts.T
    axes.barh(places, train, color=COLORS["train"], height=0.72, label="train")
    axes.barh(places, val, left=train, color=COLORS["val"], height=0.72, label="val")
    for place, (a, b) in enumerate(info.counts.tolist()):
        axes.annotate(f"{a:,} + {b:,}", (a + b, place), (4, 0), textcoords="offset points", va="center",
                      fontsize=SMALL, color=INK)  # fmt: skip
    axes.set_yticks(places, names, fontproperties=font(TEXT), parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    frame(axes, f"Pictures with each {_noun(info)}, train + val", "")
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color="0.9", linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(thousands())
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.12 * max(info.counts.sum(axis=1).max(), 1))
    legend(axes)


def _draw_ranks(page: Page, info: Info) -> None:
    """Draw the numbers of many classes, largest first."""
    axes = page.axes(0.75, _HEAD + 0.3, WIDTH - 1.05, _RANKS - 0.9)
    order = np.argsort(-info.counts[:, 0], kind="stable")
    train, val = info.counts[order].T
    edges = np.arange(len(order) + 1) + 0.5
    axes.stairs(train, edges, color=COLORS["train"], fill=True, label="train")
    axes.stairs(val, edges, color=COLORS["val"], linewidth=1.4, label="val")
    axes.set_xlim(0.5, len(order) + 0.5)
    most = max(int(info.counts.max()), 1)
    if most > _LONG_TAIL * max(int(train.min()), 1):
        axes.set_yscale("log")
        axes.set_ylim(0.7, 1.5 * most)
    else:
        axes.set_ylim(0, 1.08 * most)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    names = [shorten(drawable(info.data.classes[place]), 2.5 * DPI, TEXT) for place in order[[0, -1]].tolist()]
    largest, smallest = (f"{name}: {count:,}" for name, count in zip(names, train[[0, -1]].tolist(), strict=True))
    frame(axes, f"Pictures with each {_noun(info)}, most in train first: {largest} ... {smallest}", "rank")
    axes.xaxis.set_major_formatter(thousands())
    axes.yaxis.set_major_formatter(thousands())
    legend(axes)


def _numbers_height(info: Info) -> float:
    return _NUMBER * -(-min(len(info.numbers), _NUMBERS) // 4)


def _draw_numbers(page: Page, info: Info) -> None:
    names = list(info.numbers)[:_NUMBERS]
    across = min(len(names), 4)
    train, val = (np.array(split.targets, float) for split in (info.data.train, info.data.val))
    cell = _INNER / across
    width = min(cell, _INNER / 2) - 0.65
    for place, name in enumerate(names):
        row, column = divmod(place, across)
        axes = page.axes(_MARGIN + column * cell + 0.5, _HEAD + 0.3 + row * _NUMBER, width, _NUMBER - 0.8)
        both = np.concatenate([train[:, place], val[:, place]])
        low, high = float(both.min()), float(both.max())
        edges = np.linspace(low, high if high > low else low + 1, bins(len(train), len(val)) + 1)
        draw_shares(axes, train[:, place], val[:, place], edges)
        frame(axes, shorten(drawable(name), (width - 1.3) * DPI, TITLE), "")
        if place == 0:
            legend(axes)


def _noun(info: Info) -> str:
    return "label" if info.data.task == "multilabel" else "class"


# ---- pictures that look the same


def _draw_pairs(page: Page, info: Info, pairs: Sequence[Sequence[int]], top: float) -> None:
    total = len(info.pairs)
    shown = f"the first {len(pairs)} of {total:,} pairs" if total > len(pairs) else amount(total, "pair")
    page.write(_MARGIN, top, f"Look the same: {shown}", TITLE)
    cell = _INNER / 8
    size = cell - 0.1
    for number, pair in enumerate(pairs):
        row, column = divmod(number, 4)
        for side, place in enumerate(pair):
            # The two of a pair stand closer together.
            left = _MARGIN + (2 * column + side) * cell + (0.02 if side else 0.08)
            y = top + _PAIRS_HEAD + row * _PAIR
            axes = page.axes(left, y, size, size)
            axes.set_axis_off()
            pixels = _read(info.pictures[place])
            if pixels is not None:
                axes.imshow(pixels, interpolation="antialiased")
                axes.set_anchor("S")
            page.write(left + size / 2, y + size + 0.05, _caption(info, place, size), SMALL, ha="center")


def _caption(info: Info, place: int, width: float) -> str:
    target = info.targets[place]
    name = info.name(place).rpartition("/")[2]
    what = f"{info.split_of(place)}, {info.data.classes[target]}" if isinstance(target, int) else info.split_of(place)
    size = f"{info.found.width[place]} x {info.found.height[place]}"
    return "\n".join(shorten(drawable(line), width * DPI, SMALL) for line in (what, name, size))


def _read(picture: Picture) -> NDArray[np.uint8] | None:
    try:
        with open_picture(picture) as image:
            image.draft("RGB", (_SIDE, _SIDE))
            upright = to_rgb(image)
            upright.thumbnail((_SIDE, _SIDE))
            return np.asarray(upright)
    except DECODER_ERRORS:
        return None
