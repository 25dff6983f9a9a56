"""Previews of recipes: the first training batch of a run, small enough to be embedded; and links to files of runs."""

import os
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

from augment.support.text import as_bytes
from trainer.callbacks.plots import BATCH
from trainer.figures.images import data_uri, read_png
from trainer.run.run_folder import RunFolder

_WIDTH, _QUALITY = 480, 70
_MOST_BYTES = 1_200_000  # of all images together; further ones are linked only
_MOST_PIXELS, _MOST_FILE = 2**24, 2**24  # of a file; those of a run have a tenth


class Previews:
    """The previews of the recipes that were asked for.

    Args:
        base: the folder that links are relative to.

    Attributes:
        images: for each recipe its image as a data URI, which is empty where there was no room, with its width and
            height in pixels; and the address of its file.
    """

    def __init__(self, base: Path) -> None:
        self.images: list[dict[str, Any]] = []
        self._base = base
        self._bytes = 0
        self._known: dict[Hashable, int] = {}

    def index(self, run: RunFolder, recipe: Hashable) -> int:
        """Return the position of the preview of a run's recipe; -1 if there is none.

        Args:
            run: a run.
            recipe: what is equal for equal recipes; empty: unknown.
        """
        key = recipe or run.folder
        if key not in self._known:
            file = run.folder / BATCH
            if not (address := href(file, self._base)):
                return -1
            self._known[key] = len(self.images)
            status = file.stat()
            room = self._bytes < _MOST_BYTES and status.st_size <= _MOST_FILE
            uri, width, height = _embedded(file, status.st_mtime_ns) if room else ("", 0, 0)
            self._bytes += len(uri)
            self.images.append({"source": uri, "width": width, "height": height, "file": address})
        return self._known[key]


@lru_cache(maxsize=256)
def _embedded(file: Path, changed: int) -> tuple[str, int, int]:
    """Return a PNG as a small data URI with its width and height; an empty one if it cannot be read.

    Args:
        file: the PNG.
        changed: when it was changed, so that it is read again then.
    """
    if (small := read_png(file, _MOST_PIXELS)) is None:
        return "", 0, 0
    small.thumbnail((_WIDTH, 2 * _WIDTH), Image.Resampling.LANCZOS, reducing_gap=2)
    return data_uri(small, "WEBP", quality=_QUALITY, method=4), small.width, small.height


def href(file: Path, base: Path) -> str:
    """Return the relative address of a file; empty if there is none, or if it is a link, which may lead anywhere.

    Args:
        file: the file.
        base: the folder of the page.
    """
    if file.is_symlink() or not file.is_file():
        return ""
    # The leading ./ keeps a name such as "javascript:..." a name.
    return "./" + quote(as_bytes(Path(os.path.relpath(file.absolute(), base.absolute())).as_posix()))
