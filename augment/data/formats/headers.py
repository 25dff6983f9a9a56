"""Read what the headers of image files say: the size as stored, and how the image is turned to be shown."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.data.cache import remember
from augment.data.dataset import DATA_DIR
from augment.data.faults import DECODER_ERRORS
from augment.data.images import SIDEWAYS, orientation_of, points_back
from augment.support.files import digest


@dataclass(frozen=True)
class Header:
    """Height and width of the pixels of a file, and its EXIF orientation; 1 is upright."""

    height: int
    width: int
    orientation: int = 1

    @property
    def shown(self) -> tuple[int, int]:
        """Height and width of the upright image."""
        return (self.width, self.height) if self.orientation >= SIDEWAYS else (self.height, self.width)

    def turn_of(self, size: tuple[int, int] | None) -> int | None:
        """Return the orientation of annotations that were made for a height and width; None: for no form of this image.

        Annotations are of the image as it is shown, upright, unless their size says that they are of the stored pixels.
        """
        if size is None or size == self.shown:
            return self.orientation
        return 1 if size == (self.height, self.width) else None

    def stored(self, points: NDArray[np.float64], turn: int) -> NDArray[np.float64]:
        """Return where points, (M, 2) in pixels from the top left corner of the image as turned, are in the file."""
        height, width = self.shown if turn == self.orientation else (self.height, self.width)
        shares = points_back(points / np.array([width, height]), turn)
        return shares * np.array([self.width, self.height]) if turn > 1 else points


def read_headers(files: Sequence[Path]) -> dict[Path, Header]:
    """Return the headers of images, without those that cannot be read; they are cached."""
    lines = remember(files, _read, cache_file("headers", files))
    return {file: Header(*map(int, line.split())) for file, line in zip(files, lines, strict=True) if line}


def cache_file(what: str, files: Sequence[Path], *options: object) -> Path:
    """Return the cache for what is read of some files: one for each folder of a data set."""
    folder = files[0].parent.resolve() if files else ""
    return Path(DATA_DIR) / f"{what}-{digest(folder, *options)}.txt"


def _read(file: Path) -> str:
    with suppress(*DECODER_ERRORS), Image.open(file) as image:
        width, height = image.size
        turn = 1
        with suppress(*DECODER_ERRORS):  # a corrupt EXIF block turns nothing
            turn = orientation_of(image)
        return f"{height} {width} {turn}"
    return ""
