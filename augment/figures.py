"""Figures on disk."""

from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure

from augment.files import write_whole


def save_figure(figure: Figure, path: Path, dpi: float) -> None:
    """Write a figure as PNG, whole or not at all; the folder is made."""
    png = BytesIO()
    figure.savefig(png, format="png", dpi=dpi)
    write_whole(path, png.getvalue())
