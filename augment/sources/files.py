"""The sources whose pictures are files of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar

import numpy as np

from augment.check import require_readable
from augment.dataset import Dataset, Split
from augment.drawn.sample import make_sample
from augment.drawn.scenes import make_scenes
from augment.filelist import SEPARATORS, Line, Lines, read_list
from augment.files import near_file
from augment.folder import scan_folder
from augment.imagenette import IMAGENETTE, IMAGEWOOF, Archive, name_classes, prepare_imagenette
from augment.params import Choice, Text, Texts, setting
from augment.sources.leak import warn_of_leak
from augment.sources.registry import DATA_DIR, SKIP_BAD, LabeledSource, Source, source
from augment.targets.classes import note_missing
from augment.targets.emptied import note_emptied
from augment.targets.lists import understand


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
    skip_bad: bool = setting(SKIP_BAD)

    def load(self) -> Dataset:
        """List the folder and check every file; the result of the check is kept below outputs/."""
        dataset = self.unchecked()
        learned, scored = (_folders(split) for split in (dataset.train, dataset.val))
        warn_of_leak(learned, scored, "folders")
        train, val = (np.array(split.targets) for split in (dataset.train, dataset.val))
        note_missing(dataset.classes, train, val, offset=0)
        return check_files(dataset, Path(self.root), skip_bad=self.skip_bad)

    def unchecked(self) -> Dataset:
        """List the folder."""
        return scan_folder(Path(self.root))


@source("filelist")
@dataclass(frozen=True, kw_only=True)
class FileList(LabeledSource):
    """Lists of your own pictures: lines `path label [label ...]`, or CSV with a header; classes, labels or numbers."""

    train: str = setting(Text(required=True, doc="list of the pictures to learn from"))
    val: str = setting(Text(required=True, doc="list of the pictures to be scored on"))
    classes: str | None = setting(
        Text(optional=True, doc="file that names the classes, one a line; null: those in data.train, sorted")
    )
    root: str | None = setting(Text(optional=True, doc="folder that paths are relative to; null: that of each list"))
    image: str | None = setting(Text(optional=True, doc="CSV: column of the path; null: path, or the first one"))
    label: str | None = setting(
        Text(optional=True, doc="CSV: column of the labels, separated by ; in a cell; null: label, or the second one")
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="CSV: columns of numbers to predict, or of 0 and 1 with data.multilabel=true")
    )
    skip_bad: bool = setting(SKIP_BAD)

    def load(self) -> Dataset:
        """Read both lists and check every file; the result of the check is kept below outputs/."""
        dataset = self._read(allow_missing=self.skip_bad)
        warn_of_leak(dataset.train.files, dataset.val.files, "pictures")
        return check_files(dataset, Path(self.train).expanduser(), skip_bad=self.skip_bad)

    def unchecked(self) -> Dataset:
        """Read both lists."""
        return self._read(allow_missing=True)

    def _read(self, *, allow_missing: bool) -> Dataset:
        task = self.asked()
        train, val = (
            read_list(f"data.{name}", Path(file).expanduser(), image=self.image, label=self.label, targets=self.targets)
            for name, file in (("train", self.train), ("val", self.val))
        )
        classes = self.class_names()
        # The files first: a path that is not what was meant, as one cut at a blank, has other words for labels too.
        files = [self._files(lines, allow_missing) for lines in (train, val)]
        return understand(train, val, task=task, classes=classes, offset=self.label_offset).of(*files)

    def _files(self, lines: Lines, allow_missing: bool) -> tuple[Path, ...]:
        folder = lines.file.parent if self.root is None else Path(self.root).expanduser()
        files = tuple(folder / line.path for line in lines.lines)
        missing = [] if allow_missing else [place for place, file in enumerate(files) if not file.exists()]
        if missing:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise lines.error(
                lines.lines[missing[0]],
                f"there is no {files[missing[0]]}{more}.{_meant(lines, lines.lines[missing[0]], folder)} "
                "Paths are relative to data.root, or the list's folder.",
            )
        return files


def _meant(lines: Lines, line: Line, folder: Path) -> str:
    """Return the tail of a message that a picture is missing: what its path was meant to be."""
    if (slashes := line.path.replace("\\", "/")) != line.path and (folder / slashes).exists():
        return f" Did you mean {folder / slashes}? Folders are separated by /."
    if lines.file.suffix.lower() not in SEPARATORS:
        for count in range(1, len(line.words) + 1):
            longer = " ".join((line.path, *line.words[:count]))
            if (folder / longer).exists():
                return f" Did you mean '{longer}'? A path with blanks is put in quotes."
    return near_file(folder / line.path)


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


def _folders(split: Split) -> list[Path]:
    """Return the folders that pictures lie in, behind all links."""
    return [folder.resolve() for folder in dict.fromkeys(file.parent for file in split.files if isinstance(file, Path))]


def check_files(dataset: Dataset, about: Path, *, skip_bad: bool) -> Dataset:
    """Check every picture of a dataset; the result is kept below outputs/, under the file or folder that it is about.

    Raises:
        UserError: one cannot be decoded, unless such are left out.
    """
    digest = blake2b(str(about.resolve()).encode(), digest_size=6).hexdigest()
    check = partial(require_readable, skip_bad=skip_bad, cache=Path(DATA_DIR) / f"checked-{digest}.json")
    return note_emptied(dataset, replace(dataset, train=check(dataset.train, "train"), val=check(dataset.val, "val")))
