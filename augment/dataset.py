"""What a source hands over: the pictures of each split and their targets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Stored(Protocol):
    """An encoded picture that lies in a larger file; hashable, and picklable without what it holds.

    It may have a method `expect() -> None` too: `read` will be called soon, and what it needs can be fetched by then.
    """

    @property
    def name(self) -> str:
        """For people and messages, unique in its split: "train-000.tar/cat_0001.jpg"."""
        ...

    def read(self) -> bytes | memoryview:
        """Return the encoded picture, where possible a view of a file that is mapped into memory."""
        ...


class Raw(Stored, Protocol):
    """A picture that is stored decoded; what cannot do without an encoded one gets it from `read`, losslessly."""

    def read_pixels(self) -> NDArray[np.uint8]:
        """Return (height, width, 3) RGB."""
        ...


Picture = Path | Stored


@dataclass(frozen=True)
class Split:
    """The pictures of one split, in a fixed order; a sample's index in `files` is its identity.

    Attributes:
        files: paths of encoded pictures, or pictures in larger files.
        targets: for each picture its class, an index into `Dataset.classes`.
    """

    files: tuple[Picture, ...]
    targets: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.files)


@dataclass(frozen=True)
class Dataset:
    """A train and a val split over the same classes.

    Attributes:
        classes: class names; a target is an index into them.
        train: the pictures to learn from.
        val: the pictures to be scored on.
    """

    classes: tuple[str, ...]
    train: Split
    val: Split
