"""The images of runs: small ones within the page, and links to their files."""

import os
from base64 import b64decode
from collections.abc import Hashable
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

from augment.support.errors import UserError
from augment.support.reading import contents, read_object
from augment.support.text import as_bytes
from trainer.callbacks.plots import BATCH, REPORT
from trainer.figures.images import data_uri, read_png, without_background
from trainer.run.run_folder import RunFolder
from trainer.tasks.registry import known_tasks

MISTAKES = "mistakes.json"  # of `trainer.report`
FIGURES = tuple(dict.fromkeys(task.figure_file for task in known_tasks().values() if task.figure_file))
_WIDTH, _QUALITY = 480, 70
_MOST_BYTES = (1_200_000, 400_000, 400_000)  # of all batches, figures and mistakes; further ones are linked only
_MOST_PIXELS, _MOST_FILE, _FULL = 2**24, 2**24, (2**24, 2**24)  # of a file; those of a run have a tenth
_COLUMNS, _MISTAKES, _SIDE = 4, 8, 120  # of the mistakes in an image; pixels of each


class RunImages:
    """The first batches, figures and mistakes of runs.

    Args:
        base: the folder that links are relative to.

    Attributes:
        images: each as a data URI, which is empty where there was no room, with its width and height in pixels; and
            the address of its file.
    """

    def __init__(self, base: Path) -> None:
        self.images: list[dict[str, Any]] = []
        self._base = base
        self._bytes = [0, 0, 0]
        self._known: dict[Hashable, int] = {}

    def of(self, run: RunFolder, recipe: Hashable) -> list[int]:
        """Return the positions of a run's first batch, that of its recipe if known, figure and mistakes; -1: none."""
        figure = next((name for name in FIGURES if (run.folder / name).is_file()), "")
        keys = (recipe or run.folder, run.folder, run.folder)
        return [self._index(kind, run.folder / name, keys[kind]) for kind, name in enumerate((BATCH, figure, MISTAKES))]

    def _index(self, kind: int, file: Path, key: Hashable) -> int:
        if (kind, key) not in self._known:
            # Mistakes are in the report in full.
            if not href(file, self._base):
                return -1
            self._known[kind, key] = len(self.images)
            status = file.stat()
            room = self._bytes[kind] < _MOST_BYTES[kind] and status.st_size <= _MOST_FILE
            uri, width, height = _embedded(file, status.st_mtime_ns) if room else ("", 0, 0)
            self._bytes[kind] += len(uri)
            shown = file.with_name(REPORT) if file.name == MISTAKES else file
            self.images.append({"source": uri, "width": width, "height": height, "file": href(shown, self._base)})
        return self._known[kind, key]


@lru_cache(maxsize=1024)
def _embedded(file: Path, changed: int) -> tuple[str, int, int]:
    """Return an image, as it was `changed` last, as a small data URI with width and height; empty if unreadable."""
    image = _sheet(file) if file.name == MISTAKES else read_png(file, _MOST_PIXELS, _FULL)
    if image is None:
        return "", 0, 0
    small = without_background(image)
    small.thumbnail((_WIDTH, 2 * _WIDTH), Image.Resampling.LANCZOS)
    return data_uri(small, "WEBP", _QUALITY), small.width, small.height


def _sheet(file: Path) -> Image.Image | None:
    """Return the first mistakes side by side; None if there are none, or the file is damaged."""
    try:
        with contents(file):
            data = [b64decode(mistake["uri"].partition("base64,")[2]) for mistake in read_object(file)["images"]]
            images = [Image.open(BytesIO(jpeg), formats=["JPEG"]) for jpeg in data[:_MISTAKES] if jpeg]
            rows = -(-len(images) // _COLUMNS)
            sheet = Image.new("RGB", (min(len(images), _COLUMNS) * _SIDE, rows * _SIDE), "gray")
            for i, image in enumerate(images):
                image.thumbnail((_SIDE, _SIDE))
                sheet.paste(image, (i % _COLUMNS * _SIDE, i // _COLUMNS * _SIDE))
    except (OSError, UserError, Image.DecompressionBombError):
        return None
    return sheet if images else None


def href(file: Path, base: Path) -> str:
    """Return the address of a file relative to a folder; empty if there is none, or if it is a link to anywhere."""
    if file.is_symlink() or not file.is_file():
        return ""
    # The leading ./ keeps a name such as "javascript:..." a name.
    return "./" + quote(as_bytes(Path(os.path.relpath(file.absolute(), base.absolute())).as_posix()))
