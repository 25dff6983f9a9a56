"""Figures: the look of their axes, and how they are written."""

from io import BytesIO
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from augment.files import write_whole
from augment.lettering import font

INK, GRAY, BLUE = "0.15", "0.6", "#1f5a96"
TITLE = 11  # points


def frame(axes: Axes, title: str, xlabel: str, points: float) -> None:
    """Give axes the look of all, with text of a size, in points."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(GRAY)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=points, color=GRAY, labelcolor=INK)
    axes.set_xlabel(xlabel, fontsize=points, color=INK)
    set_title(axes, title)


def set_title(axes: Axes, text: str) -> None:
    """Write a title above axes, at the left; it may hold names that people gave."""
    axes.set_title(text, loc="left", color=INK, fontproperties=font(TITLE), parse_math=False)


def save_figure(figure: Figure, path: Path, dpi: float) -> None:
    """Write a figure as PNG, whole or not at all; the folder is made."""
    png = BytesIO()
    figure.savefig(png, format="png", dpi=dpi)
    write_whole(path, png.getvalue())
