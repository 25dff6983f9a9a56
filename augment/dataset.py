"""What a source hands over: the pictures of each split and their targets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray


class Stored(Protocol):
    """An encoded picture that lies in a larger file; hashable, and picklable without what it holds.

    It may have a method `expect() -> None` too: `read` will be called soon, and what it needs can be fetched by then.
    Or a class method `begin(pictures: Mapping[int, Self]) -> list[Future[dict[int, ...]]]`, which reads in the
    background what `read`, or `read_pixels`, returns of each; it is found by the picture's key.
    """

    @property
    def name(self) -> str:
        """For people and messages, unique in its split: "train-000.tar/cat_0001.jpg"."""
        ...

    def read(self) -> bytes | memoryview:
        """Return the encoded picture, where possible a view of a file that is mapped into memory."""
        ...


class Raw(Stored, Protocol):
    """A picture that is stored decoded; what cannot do without an encoded one gets it from `read`, losslessly.

    It is taken to be good, unless it has a method `prove() -> None` too, which raises UserError where it is not.
    """

    def read_pixels(self) -> NDArray[np.uint8]:
        """Return (height, width, 3) RGB."""
        ...


Picture = Path | Stored

# What is asked of a picture: which one class it shows, which of several labels it has, or some numbers.
Task = Literal["classify", "multilabel", "regress"]

# A class, an index into `Dataset.classes`; or a number for each of these: 1 where a picture has a label and 0 where
# not, or what is to be predicted.
Target = int | tuple[float, ...]


@dataclass(frozen=True)
class Split:
    """The pictures of one split, in a fixed order; a sample's index in `files` is its identity.

    Attributes:
        files: paths of encoded pictures, or pictures in larger files.
        targets: for each picture its target, all of one kind and length.
        repeated: how many of the last ones are there once more, to be seen more often in an epoch.
    """

    files: tuple[Picture, ...]
    targets: tuple[Target, ...]
    repeated: int = 0

    def __len__(self) -> int:
        return len(self.files)

    @property
    def pictures(self) -> int:
        """How many pictures there are; the length is how many samples an epoch has."""
        return len(self.files) - self.repeated


@dataclass(frozen=True)
class Dataset:
    """A train and a val split over the same classes, labels or numbers.

    Attributes:
        classes: names of the classes or labels, or of the numbers that are to be predicted.
        train: the pictures to learn from.
        val: the pictures to be scored on.
        task: what the targets are.
    """

    classes: tuple[str, ...]
    train: Split
    val: Split
    task: Task = "classify"
