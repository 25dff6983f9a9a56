"""Figures on disk."""

import os
from pathlib import Path
from uuid import uuid4

from matplotlib.figure import Figure


def save_figure(figure: Figure, path: Path, dpi: float) -> None:
    """Write a figure as PNG, whole or not at all; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{uuid4().hex}.part")
    try:
        figure.savefig(part, format="png", dpi=dpi)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
