"""The dataset that a source returns: the images of each split and their targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from augment.data.images import ImageRef as ImageRef
from augment.data.images import Images, Paths, as_paths
from augment.data.targets.classification import CLASSES
from augment.data.targets.kind import Kind, known_kinds
from augment.data.targets.kind import Target as Target
from augment.data.targets.multilabel import LABELS
from augment.params.pixel_format import RGB, PixelFormat
from augment.support.errors import UserError
from augment.support.formatting import list_some

# The folder for indexes, caches, and generated or downloaded images, relative to the current folder.
DATA_DIR = "outputs/data"

# The file with the class names of converted data, one per line.
CLASSES_FILE = "classes.txt"


@dataclass(frozen=True)
class BadImage:
    """An image that cannot be decoded."""

    file: ImageRef
    reason: str  # the fault as a predicate, such as "is empty (0 bytes)"


@dataclass(frozen=True)
class Split:
    """The images of one split, in a fixed order. A sample's index in `files` identifies it.

    Attributes:
        files: images in larger files, or paths of images. A tuple of paths becomes `Paths`.
        targets: the target of each image.
        kind: the kind of the targets, see `augment.data.targets`. Without a kind, tuples are multi-label targets.
        repeated: number of repeated images at the end, which balance the classes.
        left_out: the images that the check left out.
        foreign: files in formats that DALI does not decode. They are left out.
        weights: the weights of the classes or labels in the loss, (K,), for train with balance=weights.
        window: number of larger files, such as shards, to shuffle together. 0 means all.
    """

    files: Images
    targets: tuple[Target, ...]
    kind: Kind = field(default=CLASSES, compare=False)
    repeated: int = 0
    left_out: tuple[BadImage, ...] = ()
    foreign: tuple[Path, ...] = ()
    weights: tuple[float, ...] = ()
    window: int = 0

    def __post_init__(self) -> None:
        if self.files and (paths := as_paths(self.files)):
            object.__setattr__(self, "files", paths)
        if self.kind == CLASSES and self.targets and isinstance(self.targets[0], tuple):
            object.__setattr__(self, "kind", LABELS)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def images(self) -> int:
        """The number of images. The length is the number of samples per epoch."""
        return len(self.files) - self.repeated


# The empty validation split of a dataset whose source provides none.
NO_VAL = Split((), ())


@dataclass(frozen=True)
class Dataset:
    """A train and a val split with the same classes, labels or numbers.

    Attributes:
        classes: names of the classes or labels, or of the numbers to predict.
        train: the training images.
        val: the validation images.
        task: the name of the task, which determines the kind of targets. Default: the task that trains on the kind of
            `train`. A plugin's source may name its own task.
        class_ids: the IDs of the classes in the annotation file, by class name, if it has IDs.
        copies: for each image with byte-identical duplicates, a number that it shares with its duplicates.
        faults: for each image with an invalid target, the fault as a predicate. Such images count as unreadable.
        problems: errors that would stop training.
        notices: warnings, one sentence each.
        pixels: the pixel format of all images.
    """

    classes: tuple[str, ...]
    train: Split
    val: Split = NO_VAL
    task: str = ""
    class_ids: Mapping[str, int | str] = field(default_factory=dict)
    copies: Mapping[ImageRef, int] = field(default_factory=dict)
    faults: Mapping[ImageRef, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    pixels: PixelFormat = RGB

    def __post_init__(self) -> None:
        kind = known_kinds().get(self.task, self.train.kind)
        object.__setattr__(self, "task", self.task or kind.task)
        for name in ("train", "val"):
            if getattr(self, name).kind != kind:
                object.__setattr__(self, name, replace(getattr(self, name), kind=kind))

    @property
    def kind(self) -> Kind:
        """The kind of targets."""
        return self.train.kind

    def noting(self, *notices: str) -> Dataset:
        """Return the dataset with additional notices. Empty notices are dropped."""
        return replace(self, notices=(*self.notices, *filter(None, notices)))


def check_dataset(dataset: object, what: str) -> Dataset:
    """Check and return the dataset that a source has loaded. `what` names the source in messages.

    Raises:
        UserError: it is not a valid dataset.
    """
    if not isinstance(dataset, Dataset):
        raise UserError(f"{what}: load() returned {type(dataset).__name__}. Return an augment.Dataset.")
    if twice := [name for name, count in Counter(dataset.classes).items() if count > 1]:
        raise UserError(f"data: several classes have the same name: {list_some(twice)}. Use unique names.")
    for name, split in (("train", dataset.train), ("val", dataset.val)):
        has = f"{what}: {name} has"
        if len(split.files) != len(split.targets):
            raise UserError(
                f"{has} {len(split.files)} files, but {len(split.targets)} targets. Give each file one target."
            )
        for file in () if isinstance(split.files, Paths) else {type(file): file for file in split.files}.values():
            if not isinstance(file, Path) and not (hasattr(file, "name") and hasattr(file, "read")):
                raise UserError(f"{has} the file {file!r}. Use a Path, or an object with a name and a read().")
        if fault := split.kind.fault(split.targets, len(dataset.classes)):
            raise UserError(f"{has} the target {fault}")
        reported = dataset.faults or dataset.problems  # these messages explain why targets are empty
        if split.targets and not reported and all(map(split.kind.is_empty, split.targets)):
            why = "".join(f" {notice}." for notice in dataset.notices)
            raise UserError(
                f"data: no image of {name} has an object.{why} Check that the annotations belong to these images."
            )
    return dataset


def same_outputs(names: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two models' outputs have the same meaning: the same names, or a single output each."""
    return tuple(names) == tuple(others) or len(names) == len(others) == 1
