"""Draw the contents of a data set: classes or numbers, sizes, shapes, and images that look the same."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from augment.data.dataset import ImageRef
from augment.data.faults import DECODER_ERRORS
from augment.data.images import open_image, to_rgb
from augment.drawing.style import INK, TITLE, frame
from augment.drawing.text import DPI, drawable, font, shorten, text_width
from augment.support.text import amount
from augment.tools.info.page import (
    CHARTS,
    COLORS,
    SMALL,
    TEXT,
    THOUSANDS,
    WIDTH,
    Page,
    bins,
    draw_charts,
    draw_shares,
    legend,
)
from augment.tools.info.summary import Info
from augment.tools.info.text import headline

NAMED = 40  # classes, up to which each has a bar with its name
_LONG_TAIL = 30  # ratio of largest to smallest class, above which their axis is logarithmic
_NUMBERS = 8  # histograms of numbers to predict, at most
_PAIRS = 8  # pairs of images shown, at most
_SIDE = 256  # px, the longer side of an image in a pair

# Inches: the side margins, and the heights of the page's parts including margins.
_MARGIN = 0.2
_INNER = WIDTH - 2 * _MARGIN
_HEAD, _BARS, _BAR, _RANKS, _NUMBER, _PAIRS_HEAD, _PAIR = 0.55, 0.9, 0.22, 3.1, 2.5, 0.35, 2.0


def draw(info: Info) -> Figure:
    """Draw the contents of a data set."""
    pairs = info.pairs[:_PAIRS]
    bars = len(info.counts)
    if info.numbers:
        first, draw_targets = _NUMBER * -(-min(len(info.numbers), _NUMBERS) // 4), _draw_numbers
    elif bars <= NAMED:
        first, draw_targets = _BARS + _BAR * bars, _draw_bars
    else:
        first, draw_targets = _RANKS, _draw_ranks
    last = _PAIRS_HEAD + _PAIR * -(-len(pairs) // 4) if pairs else 0.0
    height = _HEAD + first + CHARTS + last
    page = Page(Figure(figsize=(WIDTH, height), dpi=DPI), height)
    title = shorten(drawable(headline(info)), _INNER * DPI, TITLE + 1, bold=True)
    page.write(_MARGIN, 0.15, title, TITLE + 1, bold=True)
    draw_targets(page, info)
    draw_charts(page, info, _HEAD + first)
    if pairs:
        _draw_pairs(page, info, pairs, _HEAD + first + CHARTS)
    return page.figure


# --- classes, labels, numbers ---


def _draw_bars(page: Page, info: Info) -> None:
    """Draw a bar for each class: train, then val."""
    names = [shorten(drawable(name), 2.2 * DPI, TEXT) for name in info.data.classes]
    left = max(text_width(name, TEXT) for name in names) / DPI + 0.35
    axes = page.axes(left, _HEAD + 0.3, WIDTH - left - 0.3, 0.05 + _BAR * len(names))
    positions = np.arange(len(names))
    train, val = info.counts.T
    axes.barh(positions, train, color=COLORS["train"], height=0.72, label="train")
    axes.barh(positions, val, left=train, color=COLORS["val"], height=0.72, label="val")
    for position, (a, b) in enumerate(info.counts.tolist()):
        axes.annotate(f"{a:,} + {b:,}", (a + b, position), (4, 0), textcoords="offset points", va="center",
                      fontsize=SMALL, color=INK)  # fmt: skip
    axes.set_yticks(positions, names, fontproperties=font(TEXT), parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    frame(axes, f"Images per {info.data.noun}, train + val", "", TEXT, grid="x")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(THOUSANDS)
    axes.set_xlim(0, 1.12 * max(info.counts.sum(axis=1).max(), 1))
    legend(axes)


def _draw_ranks(page: Page, info: Info) -> None:
    """Draw the sizes of many classes, largest first."""
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
    names = [shorten(drawable(info.data.classes[index]), 2.5 * DPI, TEXT) for index in order[[0, -1]].tolist()]
    largest, smallest = (f"{name}: {count:,}" for name, count in zip(names, train[[0, -1]].tolist(), strict=True))
    frame(axes, f"Images per {info.data.noun}, largest in train first: {largest} ... {smallest}", "rank", TEXT)
    axes.xaxis.set_major_formatter(THOUSANDS)
    axes.yaxis.set_major_formatter(THOUSANDS)
    legend(axes)


def _draw_numbers(page: Page, info: Info) -> None:
    names = list(info.numbers)[:_NUMBERS]
    across = min(len(names), 4)
    shape = (-1, len(info.data.classes))
    train, val = (np.array(split.targets, float).reshape(shape) for split in (info.data.train, info.data.val))
    cell = _INNER / across
    width = min(cell, _INNER / 2) - 0.65
    for index, name in enumerate(names):
        row, column = divmod(index, across)
        axes = page.axes(_MARGIN + column * cell + 0.5, _HEAD + 0.3 + row * _NUMBER, width, _NUMBER - 0.8)
        both = np.concatenate([train[:, index], val[:, index]])
        low, high = float(both.min()), float(both.max())
        edges = np.linspace(low, high if high > low else low + 1, bins(len(train), len(val)) + 1)
        draw_shares(axes, train[:, index], val[:, index], edges)
        frame(axes, shorten(drawable(name), (width - 1.3) * DPI, TITLE), "", TEXT)
        if index == 0:
            legend(axes)


# --- images that look the same ---


def _draw_pairs(page: Page, info: Info, pairs: Sequence[Sequence[int]], top: float) -> None:
    total = len(info.pairs)
    shown = f"the first {len(pairs)} of {total:,} pairs" if total > len(pairs) else amount(total, "pair")
    page.write(_MARGIN, top, f"Images that look the same: {shown}", TITLE)
    cell = _INNER / 8
    size = cell - 0.1
    for number, pair in enumerate(pairs):
        row, column = divmod(number, 4)
        for side, index in enumerate(pair):
            # The images of a pair are closer to each other than to other pairs.
            left = _MARGIN + (2 * column + side) * cell + (0.02 if side else 0.08)
            y = top + _PAIRS_HEAD + row * _PAIR
            axes = page.axes(left, y, size, size)
            axes.set_axis_off()
            pixels = _read(info.images[index])
            if pixels is not None:
                axes.imshow(pixels, interpolation="antialiased")
                axes.set_anchor("S")
            page.write(left + size / 2, y + size + 0.05, _caption(info, index, size), SMALL, ha="center")


def _caption(info: Info, index: int, width: float) -> str:
    what = ", ".join(filter(None, (info.split_of(index), info.label(index))))
    lines = (what, info.name(index).rpartition("/")[2], info.shape(index))
    return "\n".join(shorten(drawable(line), width * DPI, SMALL) for line in lines)


def _read(ref: ImageRef) -> NDArray[np.uint8] | None:
    try:
        with open_image(ref) as image:
            image.draft("RGB", (_SIDE, _SIDE))
            upright = to_rgb(image)
            upright.thumbnail((_SIDE, _SIDE))
            return np.asarray(upright)
    except DECODER_ERRORS:
        return None
