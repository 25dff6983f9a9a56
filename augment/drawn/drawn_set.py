"""A set of pictures that is drawn into a folder, once: whole or not at all."""

import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.progress import track

from augment.errors import UserError

JPEG_QUALITY = 90


def make_set(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Make a folder by a function that fills it, unless it is there already; it appears whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as beside:
            made = Path(beside) / "set"
            made.mkdir()
            fill(made)
            _publish(made, folder)
    except OSError as error:
        raise UserError(
            f"Cannot write the sample set to {folder}: {error.strerror or error}. "
            "It needs a folder that can be written to, with some 10 MB of space."
        ) from error
    return folder


def draw_all(folder: Path, pictures: Mapping[str, tuple[Any, ...]], draw: Callable[..., Image.Image]) -> None:
    """Draw pictures into files.

    Args:
        folder: where they go.
        pictures: for each file, relative to the folder, what it is drawn from.
        draw: draws one.
    """
    for parent in sorted({(folder / name).parent for name in pictures}):
        parent.mkdir(parents=True, exist_ok=True)

    def save(name: str) -> None:
        draw(*pictures[name]).save(folder / name, quality=JPEG_QUALITY)

    # Threads, as most of the time goes into Pillow and NumPy calls that release the GIL.
    pool = ThreadPoolExecutor(min(os.cpu_count() or 1, 8))
    try:
        done = pool.map(save, pictures)
        for _ in track(done, "Drawing the sample set", len(pictures), console=Console(stderr=True), transient=True):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _publish(made: Path, folder: Path) -> None:
    """Rename a finished set to its place, unless another process was first."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
