"""The sources whose images are files of their own."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from augment.data.dataset import DATA_DIR, Dataset
from augment.data.drawn.sample import make_sample
from augment.data.drawn.scenes import make_scenes
from augment.data.formats.filelist import SEPARATORS, Line, Lines, read_list
from augment.data.formats.folder import EXTENSIONS, has_only, scan_flat, scan_folder
from augment.data.sources.notices import MAX_BAD, SKIP_BAD, check_images
from augment.data.sources.registry import LabeledSource, Source, source
from augment.data.targets.classes import check_classes
from augment.data.targets.lists import make_list_dataset
from augment.params import WRITES, Text, Texts, setting
from augment.support.files import expanded, near_file


@source("sample")
@dataclass(frozen=True, kw_only=True)
class Sample(Source):
    """Ten classes of images drawn by the project itself: nothing to download."""

    dir: str = setting(Text(default=DATA_DIR, doc="folder in which the data set is created once", reach=WRITES))

    def load(self) -> Dataset:
        """Draw the set if it is not there."""
        return scan_folder(make_sample(Path(self.dir)))


@source("sample_multilabel")
@dataclass(frozen=True, kw_only=True)
class SampleMultilabel(Source):
    """Images drawn by the project itself, each with one to four of the sample's ten objects."""

    dir: str = setting(Text(default=DATA_DIR, doc="folder in which the data set is created once", reach=WRITES))

    def load(self) -> Dataset:
        """Draw the set if it is not there."""
        folder = make_scenes(Path(self.dir))
        train, val, classes = (str(folder / f"{name}.txt") for name in ("train", "val", "classes"))
        return FileList(train=train, val=val, classes=classes, multilabel=True).load()


@source("folder")
@dataclass(frozen=True, kw_only=True)
class Folder(Source):
    """Your own images: DIR/train/<class>/* and DIR/val/<class>/*, or DIR/<class>/* with val_fraction or folds."""

    root: str = setting(
        Text(
            aliases=("dir", "path", "folder", "data_dir"),
            required=True,
            doc="folder with train/<class>/* and val/<class>/*, or with <class>/*",
        )
    )
    train_dir: str | None = setting(
        Text(optional=True, doc="folder of the training images in root, such as training_set; null: train")
    )
    val_dir: str | None = setting(Text(optional=True, doc="folder of the validation images, likewise; null: val"))
    skip_bad: bool = setting(SKIP_BAD)
    max_bad: int = setting(MAX_BAD)

    def load(self) -> Dataset:
        """List the folder and check every file; the result of the check is cached below outputs/."""
        dataset = self._scan()
        val_targets = None if self.cuts_val else np.array(dataset.val.targets)
        check_classes(dataset.classes, np.array(dataset.train.targets), val_targets)
        return self._checked(dataset)

    @property
    def lacks_train(self) -> bool:
        """Whether the only folder is that of val."""
        return not self.train_dir and has_only(expanded(self.root), self.val_dir or "val")

    @property
    def given_val(self) -> tuple[str, str] | None:
        """The folder of val beside that of train."""
        train, val = (expanded(self.root) / name for name in (self.train_dir or "train", self.val_dir or "val"))
        return (str(val), f"data.root={train}") if train.is_dir() and val.is_dir() else None

    def load_train(self) -> Dataset:
        """Load the folder, and val if there is one; images need no classes, as self-supervised training has none."""
        root = expanded(self.root)
        if self.only_val:  # the folder of train is enough if val is cut, which happens later
            return replace(self, train_dir=self.val_dir or "val", val_fraction=0.5).load()
        if not self.cuts_val and (flat := scan_flat(root)):
            return self._checked(flat)
        has_val = self.val_dir or (root / "val").is_dir()
        return self.load() if has_val else replace(self, val_fraction=0.5).load()  # of which only train is listed

    def unchecked(self) -> Dataset:
        """List the folder."""
        return self._scan(lenient=True)

    def for_conversion(self) -> Dataset:
        """List the folder, and images of other formats."""
        return self._scan(with_foreign=True)

    def _checked(self, dataset: Dataset) -> Dataset:
        return check_images(
            dataset,
            Path(self.root).resolve(),
            skip_bad=self.skip_bad,
            max_bad=self.max_bad,
            only_val=self.only_val,
        )

    def _scan(self, *, lenient: bool = False, with_foreign: bool = False) -> Dataset:
        return scan_folder(
            Path(self.root),
            train_dir=self.train_dir,
            val_dir=self.val_dir,
            cuts_val=self.cuts_val,
            lenient=lenient,
            with_foreign=with_foreign,
        )


@source("filelist")
@dataclass(frozen=True, kw_only=True)
class FileList(LabeledSource):
    """Lists of your own images: lines `path label [label ...]`, or CSV with a header; classes, labels or numbers."""

    train: str = setting(Text(required=True, doc="list of the training images"))
    val: str | None = setting(
        Text(optional=True, doc="list of the validation images; null: with val_fraction or folds")
    )
    classes: str | None = setting(
        Text(optional=True, doc="file with one class name per line; null: those in data.train, sorted")
    )
    root: str | None = setting(
        Text(optional=True, doc="folder that paths are relative to; null: the folder of each list")
    )
    image: str | None = setting(Text(optional=True, doc="CSV: column of the path; null: path, or the first one"))
    label: str | None = setting(
        Text(
            optional=True, doc="CSV: column of the labels, separated by ; within a cell; null: label, or the second one"
        )
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="CSV: columns of numbers to predict, or of 0 and 1 with data.multilabel=true")
    )
    skip_bad: bool = setting(SKIP_BAD)
    max_bad: int = setting(MAX_BAD)

    def load(self) -> Dataset:
        """Read both lists and check every file; the result of the check is cached below outputs/."""
        dataset = self._read(allow_missing=self.skip_bad)
        return check_images(
            dataset,
            expanded(self.train).resolve(),
            skip_bad=self.skip_bad,
            max_bad=self.max_bad,
            only_val=self.only_val,
        )

    def unchecked(self) -> Dataset:
        """Read both lists."""
        return self._read(allow_missing=True)

    def _read(self, *, allow_missing: bool) -> Dataset:
        options = self.target_options()
        lists = [
            read_list(key, expanded(file), image=self.image, label=self.label, targets=self.targets)
            for key, file in self.given().items()
        ]
        # The files first: a wrong path, such as one cut at a blank, leaves wrong words for labels too.
        files = [self._files(lines, allow_missing) for lines in lists]
        return make_list_dataset(lists, files, options)

    def _files(self, lines: Lines, allow_missing: bool) -> tuple[Path, ...]:
        folder = lines.file.parent if self.root is None else expanded(self.root)
        files = _with_endings([folder / line.path for line in lines.lines])
        missing = [] if allow_missing else [index for index, file in enumerate(files) if not os.path.exists(file)]
        if missing:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise lines.error(
                lines.lines[missing[0]],
                f"there is no {files[missing[0]]}{more}.{_meant(lines, lines.lines[missing[0]], folder)} "
                "Paths are relative to data.root, or the list's folder.",
            )
        return files


def _with_endings(files: list[Path]) -> tuple[Path, ...]:
    """Complete names without an ending, such as the ids of a table, by that of the file; unless there are several."""
    bare = [file for file in files if file.suffix.lower() not in EXTENSIONS and not file.exists()]
    named: dict[Path, list[Path]] = {}
    for folder in {file.parent for file in bare if file.parent.is_dir()}:
        for file in folder.iterdir():
            if file.suffix.lower() in EXTENSIONS:
                named.setdefault(file.with_suffix(""), []).append(file)
    return tuple(found[0] if len(found := named.get(file, [])) == 1 else file for file in files)


def _meant(lines: Lines, line: Line, folder: Path) -> str:
    """Return the end of the message that an image is missing: a suggestion for its path."""
    if (slashes := line.path.replace("\\", "/")) != line.path and (folder / slashes).exists():
        return f" Did you mean {folder / slashes}? Folders are separated by /."
    if lines.file.suffix.lower() not in SEPARATORS:
        for count in range(1, len(line.words) + 1):
            longer = " ".join((line.path, *line.words[:count]))
            if (folder / longer).exists():
                return f" Did you mean '{longer}'? A path with blanks is put in quotes."
    for inner in sorted(folder.iterdir()) if folder.is_dir() else ():
        if inner.is_dir() and _with_endings([inner / line.path])[0].exists():
            return f" Did you mean data.root={inner}?"
    return near_file(folder / line.path)
