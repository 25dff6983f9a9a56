"""Style axes and titles the same way in every figure, and save figures."""

from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from augment.drawing.text import font
from augment.support.files import atomic_path

INK, GRAY, BLUE = "0.15", "0.6", "#1f5a96"
TITLE = 11  # points
IMAGES = "Images"  # key of a PNG under which a figure of images says where they are


def frame(axes: Axes, title: str, xlabel: str, points: float, *, grid: Literal["x", "y"] = "y") -> None:
    """Style axes: spines, a light grid, a title above unless it is empty, and a label below; text has a size in points.

    The ticks of the axis `grid` have grid lines; of bars from left to right (x), the y axis has no ticks.
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
    """Write a title above axes, left-aligned; dollar signs, as in names given by users, are literal."""
    axes.set_title(text, loc="left", color=INK, fontproperties=font(TITLE), parse_math=False)


def arrange(figure: Figure) -> None:
    """Let the figure's layout engine arrange its axes, once and for all; saving would draw the figure twice for it."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


def save_figure(figure: Figure, path: Path, dpi: float, *, parents: bool = True) -> None:
    """Save a figure as PNG, atomically, with its id under `IMAGES`; with `parents`, its folder is created."""
    arrange(figure)
    with atomic_path(path, parents=parents) as part:
        named = {} if figure.get_gid() is None else {IMAGES: figure.get_gid()}
        figure.savefig(part, format="png", dpi=dpi, metadata=named)
