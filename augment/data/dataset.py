"""The data set that a source returns: the images of each split and their targets.

Paths of many files are in one array: a million take 0.1 GB, as objects 0.8 GB.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from augment.data.targets.classification import CLASSES
from augment.data.targets.kind import Kind, known_kinds
from augment.data.targets.kind import Target as Target
from augment.data.targets.multilabel import LABELS
from augment.support.errors import UserError
from augment.support.formatting import amount, as_bytes, list_some

V = TypeVar("V")


class Paths(Sequence[Path]):
    """Paths of files; a `Path` is made when one is asked for.

    Attributes:
        names: (N,) the paths as the system has them, in bytes.
    """

    def __init__(self, files: Iterable[str | Path] | NDArray[np.bytes_]) -> None:
        self.names = files if isinstance(files, np.ndarray) else np.array(list(map(os.fsencode, files)), np.bytes_)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        found = self.names[index]
        return Paths(found) if isinstance(found, np.ndarray) else Path(os.fsdecode(found))

    def __iter__(self) -> Iterator[Path]:
        return map(Path, self.texts())

    def __add__(self, others: Any) -> Any:
        paths = as_paths(others)
        return (*self, *others) if paths is None else Paths(np.concatenate([self.names, paths.names]))

    def __radd__(self, others: Any) -> Any:
        paths = as_paths(others)
        return (*others, *self) if paths is None else paths + self

    def __eq__(self, others: object) -> bool:
        if isinstance(others, Paths):
            return np.array_equal(self.names, others.names)
        return isinstance(others, Sequence) and list(self) == list(others)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Paths({', '.join(map(str, self[:3]))}{', ...' if len(self) > 3 else ''})"

    def texts(self) -> Iterator[str]:
        """Yield the paths as text."""
        for start in range(0, len(self), 65536):
            some = self.names[start : start + 65536].tolist()
            yield from os.fsdecode(b"\0\n".join(some)).split("\0\n")  # each by itself takes several times as long


def as_paths(images: Sequence[Any]) -> Paths | None:
    """Return images as paths; None: not all are files of their own."""
    if isinstance(images, Paths):
        return images
    return Paths(images) if all(issubclass(kind, Path) for kind in kinds_of(images)) else None


def kinds_of(images: Sequence[Any]) -> set[type]:
    """Return the types of images."""
    return {Path} if isinstance(images, Paths) else set(map(type, images))


def keys_of(images: Sequence[Any]) -> list[Any]:
    """Return what is equal for equal images: themselves, or names of files, which are lighter than paths."""
    return images.names.tolist() if isinstance(images, Paths) else list(images)


def take_images(images: Sequence[Any], indices: NDArray[np.int64]) -> Any:
    """Return the images at some indices."""
    return images[indices] if isinstance(images, Paths) else tuple(images[index] for index in indices.tolist())


def known_of(images: Sequence[Any], known: Mapping[Any, V]) -> dict[int, V]:
    """Return what is known of some images by their index."""
    if not known:
        return {}
    if isinstance(images, Paths):
        names = {os.fsencode(image): value for image, value in known.items() if isinstance(image, Path)}
        return {index: names[name] for index, name in enumerate(images.names.tolist()) if name in names}
    return {index: known[image] for index, image in enumerate(images) if image in known}


class ImageError(UserError):
    """One of several images that are read together fails, by its key among them."""

    def __init__(self, key: int, text: str) -> None:
        super().__init__(key, text)  # as it is pickled
        self.key = key

    def __str__(self) -> str:
        return str(self.args[1])


class StoredImage(Protocol):
    """An encoded image in a larger file; hashable, and picklable without its content.

    It may have more methods: `expect() -> None` is called some time before `read`, to prefetch its bytes. A class
    method `begin(images: Mapping[int, Self]) -> list[Future[dict[int, ...]]]` reads images in the background; each
    future holds the results of `read`, or of `read_pixels`, by the keys of the images, or raises an `ImageError`.
    `read_together(images: Sequence[Self]) -> list[NDArray]` reads decoded images in less time than one after another.

    It may also have attributes `file` (a `RecordFile`) and `slot` (a str), which together identify its bytes: then the
    check of its file is cached. Its name does not identify it, since the next run may give it to another image.
    """

    @property
    def name(self) -> str:
        """The name for messages, unique in its split: "train-000.tar/cat_0001.jpg"."""

    def read(self) -> bytes | memoryview:
        """Return the encoded image."""


class DecodedImage(StoredImage, Protocol):
    """An image that is stored decoded; `read` encodes it losslessly."""

    def read_pixels(self) -> NDArray[np.uint8]:
        """Return (height, width, 3) RGB, in an array that nobody writes to later."""


ImageRef = Path | StoredImage
Images = Paths | tuple[ImageRef, ...]

# The folder for indexes, caches and images that sources make or download, below the current folder.
DATA_DIR = "outputs/data"

# The file next to converted data that names the classes, one per line.
CLASSES_FILE = "classes.txt"


@dataclass(frozen=True)
class BadImage:
    """An image that cannot be decoded."""

    index: int  # among all images that the source lists for the split
    file: ImageRef
    target: Target
    reason: str  # the fault as a predicate: "is empty (0 bytes)"


@dataclass(frozen=True)
class Split:
    """The images of one split, in a fixed order; a sample's index in `files` is its identity.

    Attributes:
        files: paths of encoded images, as `Paths` even if given as a tuple, or images in larger files.
        targets: the target of each image.
        kind: their kind, see `augment.data.targets`; rows without a kind count as labels.
        repeated: number of repeated images at the end, which balance classes.
        max_bad: number of images that may turn out bad while they are read: others stand in for them. 0: the first one
            is an error.
        left_out: the images that the check left out.
        bad: images among `files` that are known to be bad: others stand in for them from the beginning.
        foreign: files in formats that DALI does not decode, which are left out.
        weights: of train, with balance=weights: the weights of the classes or labels in the loss, (K,).
        window: how many larger files, such as shards, are shuffled together; 0: all.
    """

    files: Images
    targets: tuple[Target, ...]
    kind: Kind = field(default=CLASSES, compare=False)
    repeated: int = 0
    max_bad: int = 0
    left_out: tuple[BadImage, ...] = ()
    bad: tuple[BadImage, ...] = ()
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
        """The number of images; the length is the number of samples in an epoch."""
        return len(self.files) - self.repeated


# The val split of a data set without one, before it is cut from train.
NO_VAL = Split((), ())

_LONGEST = 1000  # characters of the name of a class


@dataclass(frozen=True)
class Dataset:
    """A train and a val split over the same classes, labels or numbers.

    Attributes:
        classes: names of the classes or labels, or of the numbers to predict.
        train: the training images.
        val: the validation images.
        task: the name of the task, which also says of which kind the targets are unless that is known; empty: the one
            that trains on the kind. A source of a plugin may name a task of its own.
        class_ids: the id of each class in the file of annotations, by its name, if it has such.
        copies: the number of its group for each image that has the same bytes as others, as far as they were compared.
        faults: what is wrong with the targets of some images, as a predicate; they are treated as images that cannot be
            decoded.
        problems: why training would refuse the data set.
        notices: what is strange about it, a sentence each.
    """

    classes: tuple[str, ...]
    train: Split
    val: Split = field(default_factory=lambda: Split((), ()))
    task: str = ""
    class_ids: Mapping[str, int | str] = field(default_factory=dict)
    copies: Mapping[ImageRef, int] = field(default_factory=dict)
    faults: Mapping[ImageRef, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.classes:
            if len(name) > _LONGEST:
                raise UserError(f"data: the name {name:.40}... has {len(name):,} characters. Allowed: {_LONGEST:,}.")
            if as_bytes(name).decode(errors="surrogateescape") != name:
                raise UserError(f"data: the name {name!a} is not text. Allowed: Unicode without half of a pair.")
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
        """Return the data set with further notices, except for empty ones."""
        return replace(self, notices=(*self.notices, *filter(None, notices)))


def check_dataset(dataset: object, what: str) -> Dataset:
    """Return what a source, named `what` in messages, has loaded, after a check that it is a data set as described.

    Raises:
        UserError: it is no such data set.
    """
    if not isinstance(dataset, Dataset):
        raise UserError(f"{what}: loads {type(dataset).__name__}. Allowed: an augment.Dataset.")
    if twice := [name for name, count in Counter(dataset.classes).items() if count > 1]:
        raise UserError(
            f"data: {amount(len(twice), 'name')} of classes twice: {list_some(twice)}. Rename one of the two."
        )
    for name, split in (("train", dataset.train), ("val", dataset.val)):
        has = f"{what}: {name} has"
        if len(split.files) != len(split.targets):
            raise UserError(f"{has} {len(split.files)} files and {len(split.targets)} targets. Allowed: as many.")
        for file in () if isinstance(split.files, Paths) else {type(file): file for file in split.files}.values():
            if not isinstance(file, Path) and not (hasattr(file, "name") and hasattr(file, "read")):
                raise UserError(f"{has} the file {file!r}. Allowed: a Path, or an object with a name and a read().")
        if fault := split.kind.fault(split.targets, len(dataset.classes)):
            raise UserError(f"{has} the target {fault}")
        reported = dataset.faults or dataset.problems  # which are why
        if split.targets and not reported and all(map(split.kind.is_empty, split.targets)):
            why = "".join(f" {notice}." for notice in dataset.notices)
            raise UserError(
                f"data: no image of {name} has an object, so there is nothing to learn or to compare with.{why} "
                "Check that the annotations are of these images."
            )
    return dataset


def same_outputs(names: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two models' outputs mean the same: they have the same names, or each has one, whatever it is called."""
    return tuple(names) == tuple(others) or len(names) == len(others) == 1
