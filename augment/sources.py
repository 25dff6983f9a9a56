"""Where pictures come from: each source is declared once, as a dataclass of its settings that loads a dataset."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from augment.arrays import read_arrays
from augment.check import require_readable
from augment.dataset import Dataset, Stored, Task
from augment.errors import UserError
from augment.filelist import Lines, read_list
from augment.folder import scan_folder
from augment.imagenette import IMAGENETTE, IMAGEWOOF, Archive, name_classes, prepare_imagenette
from augment.labels import Label, Labeled, Labels, pack, read_names, understand_labels
from augment.params import Choice, Count, Flag, Text, Texts, parse_named, setting
from augment.sample import make_sample
from augment.scenes import make_scenes
from augment.shards import find_shards
from augment.targets import understand
from augment.webdataset import check_shards, read_shards

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Base of all sources. A source is hashable, and two equal ones give the same dataset."""

    def load(self) -> Dataset:
        """Prepare what is missing and list the files of both splits.

        Raises:
            UserError: what is there cannot be used, or cannot be had.
        """
        raise NotImplementedError


S = TypeVar("S", bound=type[Source])

_SOURCES: dict[str, type[Source]] = {}

# Read-only view: name in the configuration -> source.
SOURCES: Mapping[str, type[Source]] = MappingProxyType(_SOURCES)

# Where sources that make or download their pictures put them, below the folder the program is started in.
DATA_DIR = "outputs/data"


# Settings of several sources.
LABEL_OFFSET = Count(default=0, doc="label of the first class: 1 where labels are numbers that begin at 1")
MULTILABEL = Flag(default=False, doc="a picture has any number of labels, also none; false: so if one has several")
_CLASSES = Text(optional=True, doc="file with a class name a line; null: the labels themselves")


def source(name: str) -> Callable[[S], S]:
    """Register a source under its name in the configuration."""

    def decorate(cls: S) -> S:
        _SOURCES[name] = cls
        return cls

    return decorate


def parse_data(given: object, key: str = "data") -> Source:
    """Check the `data` section, `{source: name, ...settings}`.

    Raises:
        UserError: an unknown source or setting, a missing one, or a value that is not allowed.
    """
    return parse_named(_SOURCES, given, key, "source")


def load_dataset(source: Source) -> Dataset:
    """Load a source's dataset, once in a process for each folder that relative paths begin at."""
    return _load(source, Path.cwd())


@cache
def _load(source: Source, _: Path) -> Dataset:
    return source.load()


@source("sample")
@dataclass(frozen=True, kw_only=True)
class Sample(Source):
    """Ten classes of pictures drawn by the project itself: nothing to download."""

    dir: str = setting(Text(default=DATA_DIR, doc="folder in which the set is made once"))

    def load(self) -> Dataset:
        """Draw the set if it is not there."""
        return scan_folder(make_sample(Path(self.dir)))


@source("sample_multilabel")
@dataclass(frozen=True, kw_only=True)
class SampleMultilabel(Source):
    """Pictures drawn by the project itself with one to four of the sample's ten things in each."""

    dir: str = setting(Text(default=DATA_DIR, doc="folder in which the set is made once"))

    def load(self) -> Dataset:
        """Draw the set if it is not there."""
        folder = make_scenes(Path(self.dir))
        train, val, classes = (str(folder / f"{name}.txt") for name in ("train", "val", "classes"))
        return FileList(train=train, val=val, classes=classes, multilabel=True).load()


@source("folder")
@dataclass(frozen=True, kw_only=True)
class Folder(Source):
    """Your own pictures: DIR/train/<class>/* and DIR/val/<class>/*."""

    root: str = setting(Text(required=True, doc="folder with train/<class>/* and val/<class>/*"))
    skip_bad: bool = setting(Flag(default=False, doc="leave out files that cannot be decoded, in place of an error"))

    def load(self) -> Dataset:
        """List the folder and check every file; the result of the check is kept below outputs/."""
        dataset = scan_folder(Path(self.root))
        digest = blake2b(str(Path(self.root).resolve()).encode(), digest_size=6).hexdigest()
        check = partial(require_readable, skip_bad=self.skip_bad, cache=Path(DATA_DIR) / f"checked-{digest}.json")
        return Dataset(dataset.classes, check(dataset.train, "train"), check(dataset.val, "val"))


@source("filelist")
@dataclass(frozen=True, kw_only=True)
class FileList(Source):
    """Lists of your own pictures: lines `path label [label ...]`, or CSV with a header; classes, labels or numbers."""

    train: str = setting(Text(required=True, doc="list of the pictures to learn from"))
    val: str = setting(Text(required=True, doc="list of the pictures to be scored on"))
    classes: str | None = setting(
        Text(optional=True, doc="file that names the classes, one a line; null: those in data.train, sorted")
    )
    root: str | None = setting(Text(optional=True, doc="folder that paths are relative to; null: that of each list"))
    label_offset: int = setting(LABEL_OFFSET)
    multilabel: bool = setting(
        Flag(default=False, doc="a picture has any number of labels, also none; short for data.task=multilabel")
    )
    task: str | None = setting(
        Choice(optional=True, options=get_args(Task), doc="what the lists hold; null: told from them")
    )
    image: str | None = setting(Text(optional=True, doc="CSV: column of the path; null: path, or the first one"))
    label: str | None = setting(
        Text(optional=True, doc="CSV: column of the labels, separated by ; in a cell; null: label, or the second one")
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="CSV: columns of numbers to predict, or of 0 and 1 with data.multilabel=true")
    )
    skip_bad: bool = setting(Flag(default=False, doc="leave out files that cannot be decoded, in place of an error"))

    def load(self) -> Dataset:
        """Read both lists and check every file; the result of the check is kept below outputs/."""
        if self.multilabel and self.task not in (None, "multilabel"):
            raise UserError(f"data.task={self.task}: but data.multilabel=true. Allowed: one of the two.")
        task = "multilabel" if self.multilabel else cast(Task | None, self.task)
        train, val = (
            read_list(f"data.{name}", Path(file).expanduser(), image=self.image, label=self.label, targets=self.targets)
            for name, file in (("train", self.train), ("val", self.val))
        )
        classes = None if self.classes is None else read_names(self.classes)
        found = understand(train, val, task=task, classes=classes, offset=self.label_offset)
        digest = blake2b(str(train.file.resolve()).encode(), digest_size=6).hexdigest()
        check = partial(require_readable, skip_bad=self.skip_bad, cache=Path(DATA_DIR) / f"checked-{digest}.json")
        dataset = found.of(self._files(train), self._files(val))
        return replace(dataset, train=check(dataset.train, "train"), val=check(dataset.val, "val"))

    def _files(self, lines: Lines) -> tuple[Path, ...]:
        folder = lines.file.parent if self.root is None else Path(self.root).expanduser()
        files = tuple(folder / line.path for line in lines.lines)
        missing = [] if self.skip_bad else [place for place, file in enumerate(files) if not file.exists()]
        if missing:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise lines.error(
                lines.lines[missing[0]],
                f"there is no {files[missing[0]]}{more}. They are relative to data.root, or the list's folder.",
            )
        return files


def _labeled(key: str, pictures: Sequence[Stored], labels: Sequence[Sequence[Label]] | NDArray[np.int64]) -> Labeled:
    """Return the labels of pictures: some of each, or (N,) one of each."""

    def name(place: int) -> str:
        return pictures[place].name

    if isinstance(labels, np.ndarray):
        return Labeled(key, Labels(labels, np.ones(len(labels), np.int64)), name)
    try:
        return Labeled(key, pack(labels, name), name)
    except UserError as error:
        raise UserError(f"{key}: {error}") from None


@source("imagenette")
@dataclass(frozen=True, kw_only=True)
class Imagenette(Source):
    """Imagenette, ten easy classes of ImageNet (Howard 2019), downloaded once."""

    archives: ClassVar[Mapping[str, Archive]] = IMAGENETTE

    variant: str = setting(
        Choice(default="160", options=("full", "320", "160"), doc="short side of the photos in px, or full size")
    )
    dir: str = setting(Text(default=DATA_DIR, doc="folder for the archive and the photos"))
    url: str | None = setting(Text(optional=True, doc="where to download from; null: the official place"))

    def load(self) -> Dataset:
        """Download and unpack what is missing."""
        folder = prepare_imagenette(self.variant, Path(self.dir), self.url, archives=self.archives)
        return name_classes(scan_folder(folder))


@source("imagewoof")
@dataclass(frozen=True, kw_only=True)
class Imagewoof(Imagenette):
    """Imagewoof, ten breeds of dogs in ImageNet (Howard 2019), downloaded once; its checksums are not known here."""

    archives: ClassVar[Mapping[str, Archive]] = IMAGEWOOF


@source("webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(Source):
    """Tar shards of pairs as cat_1.jpg and cat_1.cls, the number or name of its class, or JSON; read where they lie."""

    train: str = setting(
        Text(required=True, doc="the shards to learn from, as shards/train-*.tar or train-{000..009}.tar")
    )
    val: str = setting(Text(required=True, doc="the shards to be scored on"))
    label: str | None = setting(
        Text(optional=True, doc="where labels are: an ending as cls, or json.FIELD; null: cls, else json.label")
    )
    classes: str | None = setting(_CLASSES)
    label_offset: int = setting(LABEL_OFFSET)
    multilabel: bool = setting(MULTILABEL)
    skip_bad: bool = setting(Flag(default=False, doc="leave out pictures that cannot be decoded, in place of an error"))

    def load(self) -> Dataset:
        """List the shards and check every picture, once."""
        names = read_names(self.classes) if self.classes else None
        # Both patterns first: what is missing shall not be found out after the shards of train were listed.
        splits = {key: find_shards(p, key) for key, p in (("data.train", self.train), ("data.val", self.val))}
        folder = Path(DATA_DIR) / "shards"
        train, val = (read_shards(files, self.label, folder, key) for key, files in splits.items())
        labeled = (_labeled(key, *split) for key, split in zip(splits, (train, val), strict=True))
        task: Task | None = "multilabel" if self.multilabel else None
        targets = understand_labels(*labeled, classes=names, offset=self.label_offset, task=task)
        dataset = targets.of(train[0], val[0])
        check = partial(check_shards, skip_bad=self.skip_bad, folder=folder)
        return replace(
            dataset,
            train=check(dataset.train, "train", splits["data.train"]),
            val=check(dataset.val, "val", splits["data.val"]),
        )


@source("numpy")
@dataclass(frozen=True, kw_only=True)
class Arrays(Source):
    """Decoded pictures of one size in .npy files, (N, height, width, 3) uint8, and their labels, (N,)."""

    train: str = setting(Text(required=True, doc="the pictures to learn from, a .npy file"))
    train_targets: str = setting(Text(required=True, doc="their labels, a .npy file of whole numbers"))
    val: str = setting(Text(required=True, doc="the pictures to be scored on, a .npy file"))
    val_targets: str = setting(Text(required=True, doc="their labels, a .npy file"))
    classes: str | None = setting(_CLASSES)
    label_offset: int = setting(LABEL_OFFSET)

    def load(self) -> Dataset:
        """Map the arrays."""
        names = read_names(self.classes) if self.classes else None
        train, labels = read_arrays(self.train, self.train_targets, "data.train")
        val, val_labels = read_arrays(self.val, self.val_targets, "data.val")
        both = (_labeled("data.train", train, labels), _labeled("data.val", val, val_labels))
        return understand_labels(*both, classes=names, offset=self.label_offset).of(train, val)


# Registers its sources; it needs what is above.
import augment.records.sources  # noqa: E402, F401
