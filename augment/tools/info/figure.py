"""Draw the statistics of a dataset: targets, image sizes, aspect ratios, channels, and images that look the same."""

from itertools import chain
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from augment.data.dataset import ImageRef
from augment.data.display import channel_names
from augment.data.images import open_image, to_rgb
from augment.drawing.figure_style import BLUE, DPI, GRAY, INK, TITLE, drawable, font, frame, shorten
from augment.support.formatting import amount, short_number
from augment.tools.info.summary import LISTED, Info

_WIDTH = 11.0  # inches
_COLORS = {"train": GRAY, "val": BLUE}
_MARK = "#c8641e"
_TEXT, _SMALL = 9, 8  # points
_THOUSANDS = "{x:,.0f}"  # format of ticks
_COLUMNS = 5  # histograms of channels side by side
_SIDE = 256  # px, the longer side of an image in a pair
_ASPECT = 4.0  # largest ratio of the sides in the histogram


def draw(info: Info) -> Figure:
    pairs = info.ordered(info.copies.alike)[:8]
    heights = [2.8 if info.target_stats else 1.0 + 0.22 * len(info.listed), 3.2]
    heights += [0.4 + 2.1 * -(-len(pairs) // 4)] if pairs else []
    heights += [] if info.data.pixels.is_rgb else [0.4 + 1.6 * -(-info.data.pixels.channels // _COLUMNS)]
    figure = Figure(figsize=(_WIDTH, 0.5 + sum(heights)), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.1)
    title = shorten(drawable(info.headline), (_WIDTH - 0.4) * DPI, TITLE + 1, bold=True)
    figure.suptitle(title, x=0.02, ha="left", color=INK, fontproperties=font(TITLE + 1, bold=True), parse_math=False)
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    if info.target_stats:
        _draw_numbers(parts[0], info)
    else:
        _draw_classes(parts[0].subplots(), info)
    if info.usable.any():
        _draw_sizes(parts[1], info)
    if pairs:
        _draw_pairs(parts[2], info, pairs)
    if not info.data.pixels.is_rgb:
        _draw_channels(parts[-1], info)
    return figure


def _draw_classes(axes: Axes, info: Info) -> None:
    what, counts = "Images", info.counts
    if info.spatial is not None:
        what, counts = info.spatial.unit.title(), info.spatial.amounts
    positions, (train, val) = np.arange(len(info.listed)), counts[info.listed].T
    axes.barh(positions, train, color=_COLORS["train"], height=0.72, label="train")
    axes.barh(positions, val, left=train, color=_COLORS["val"], height=0.72, label="val")
    for position, a, b in zip(positions.tolist(), train.tolist(), val.tolist(), strict=True):
        axes.annotate(f"{a:,} + {b:,}", (a + b, position), (4, 0), textcoords="offset points", va="center",
                      fontsize=_SMALL, color=INK)  # fmt: skip
    names = [shorten(drawable(info.names[index]), 2.2 * DPI, _TEXT) for index in info.listed]
    axes.set_yticks(positions, names, fontproperties=font(_TEXT), parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    some = "" if len(names) == len(info.counts) else f": the {LISTED // 2} largest, and the {LISTED // 2} smallest"
    frame(axes, f"{what} per {info.data.kind.noun}, train + val{some}", "", _TEXT, grid="x")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(_THOUSANDS)
    axes.set_xlim(0, 1.12 * (train + val).max(initial=1))
    _add_legend(axes)


def _draw_numbers(part: SubFigure, info: Info) -> None:
    names = list(info.target_stats)[:4]
    rows = np.array(info.targets, float)
    for index, (axes, name) in enumerate(zip(part.subplots(1, len(names), squeeze=False)[0], names, strict=True)):
        low, high = float(rows[:, index].min()), float(rows[:, index].max())
        _draw_shares(axes, info, rows[:, index], (low, high if high > low else low + 1))
        frame(axes, shorten(drawable(name), _WIDTH / len(names) * DPI / 2, TITLE), "", _TEXT)
        if index == 0:
            _add_legend(axes)


def _draw_sizes(part: SubFigure, info: Info) -> None:
    short_sides, aspects = part.subplots(1, 2)
    values, side = info.sizes["short_side"].astype(float), min(info.size)
    low, high = values[info.usable].min(), values[info.usable].max()
    _draw_shares(short_sides, info, values, (min(low, side) / 1.05, max(high, side) * 1.05))
    short_sides.axvline(side, color=_MARK, linewidth=1.3, linestyle="--")
    short_sides.xaxis.set_major_formatter(_THOUSANDS)
    frame(short_sides, f"Short side (dashed: aug.size={info.size.plain})", "px", _TEXT)
    ratios = np.clip(info.sizes["aspect"], 1 / _ASPECT, _ASPECT)
    _draw_shares(aspects, info, ratios, (min(ratios.min(), 0.75), max(ratios.max(), 1.33)))
    frame(aspects, "Aspect ratio", "width / height", _TEXT)
    _add_legend(aspects)


def _draw_shares(axes: Axes, info: Info, values: NDArray[np.float64], limits: tuple[float, float]) -> None:
    """Draw a histogram of the values, (N,), of the usable images. Bars are percentages of each split's images."""
    train = len(info.data.train)
    splits = [values[part][info.usable[part]] for part in (slice(train), slice(train, None))]
    bins = int(np.clip(2 * min(map(len, splits)) ** 0.5, 12, 40))
    for (split, color), some in zip(_COLORS.items(), splits, strict=True):
        weights = np.full(len(some), 1 / max(len(some), 1))
        kind: Literal["stepfilled", "step"] = "stepfilled" if split == "train" else "step"
        axes.hist(some, bins, range=limits, weights=weights, color=color, label=split, histtype=kind, linewidth=1.4)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g}%")
    axes.set_ylabel("of the split's images", fontsize=_TEXT, color=INK)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))


def _add_legend(axes: Axes) -> None:
    axes.legend(frameon=False, fontsize=_TEXT, labelcolor=INK, loc="lower right", bbox_to_anchor=(1.02, 0.98), ncols=2,
                handlelength=1.2, columnspacing=1.2)  # fmt: skip


def _draw_pairs(part: SubFigure, info: Info, pairs: list[tuple[int, int]]) -> None:
    first = f"the first {len(pairs)} of " if len(pairs) < len(info.copies.alike) else ""
    title = f"Images that look the same: {first}{amount(len(info.copies.alike), 'pair')}"
    part.suptitle(title, x=0.02, ha="left", color=INK, fontproperties=font(TITLE))
    # The images of a pair are closer to each other than to other pairs.
    cells = chain.from_iterable(part.subfigures(-(-len(pairs) // 4), 4, squeeze=False, wspace=0.06))
    for cell, pair in zip(cells, pairs, strict=False):
        for axes, index in zip(cell.subplots(1, 2), pair, strict=True):
            axes.set_axis_off()
            axes.imshow(_read(info.images[index]), interpolation="antialiased")
            name, _, split = info.describe(index).rpartition(" (")
            size = f"{info.facts['width'][index]} x {info.facts['height'][index]}"
            lines = (shorten(drawable(line), 1.2 * DPI, _SMALL) for line in (split[:-1], name.rpartition("/")[2], size))
            axes.set_title("\n".join(lines), fontproperties=font(_SMALL), color=INK, parse_math=False)


def _draw_channels(part: SubFigure, info: Info) -> None:
    title = "Values of each channel (dashed: ends of data.range)"
    part.suptitle(title, x=0.02, ha="left", color=INK, fontproperties=font(TITLE))
    names = channel_names(info.data.pixels)
    for number, (name, values, ends) in enumerate(zip(names, info.values.T, info.ends.T, strict=True)):
        axes = part.add_subplot(-(-len(names) // _COLUMNS), min(len(names), _COLUMNS), number + 1)
        low, high = np.nanpercentile(values, (0.1, 99.9))
        axes.hist(values, 60, range=(low, high), color=BLUE, histtype="stepfilled")
        for end in ends[(low <= ends) & (ends <= high)]:
            axes.axvline(end, color=_MARK, linewidth=1.3, linestyle="--")
        frame(axes, f"channel {name}", f"data.range {'..'.join(map(short_number, ends))}", _SMALL)
        axes.set_yticks([])
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))


def _read(ref: ImageRef) -> NDArray[np.uint8]:
    with open_image(ref) as image:
        image.draft("RGB", (_SIDE, _SIDE))
        upright = to_rgb(image)
        upright.thumbnail((_SIDE, _SIDE))
        return np.asarray(upright)
