"""What a source hands over: the files of each split and their targets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# What is asked of a picture: which one class it shows, which of several labels it has, or some numbers.
Task = Literal["classify", "multilabel", "regress"]

# A class, an index into `Dataset.classes`; or a number for each of these: 1 where a picture has a label and 0 where
# not, or what is to be predicted.
Target = int | tuple[float, ...]


@dataclass(frozen=True)
class Split:
    """The pictures of one split, in a fixed order; a sample's index in `files` is its identity.

    Attributes:
        files: paths of the encoded pictures.
        targets: for each file its target, all of one kind and length.
    """

    files: tuple[Path, ...]
    targets: tuple[Target, ...]

    def __len__(self) -> int:
        return len(self.files)


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
