"""What a source hands over: the files of each split and their targets."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Split:
    """The pictures of one split, in a fixed order; a sample's index in `files` is its identity.

    Attributes:
        files: paths of the encoded pictures.
        targets: for each file its class, an index into `Dataset.classes`.
    """

    files: tuple[Path, ...]
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
