"""The base classes of sources, and the registry of sources by their names in the `data` section."""

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from augment.data.corrections import pinned
from augment.data.dataset import Dataset, ImageRef
from augment.data.formats.folder import CUT_VAL
from augment.data.images import encoded_ref, name_of, portable_names
from augment.data.targets.class_names import Label, LabeledSplit, TargetOptions, pack, read_names
from augment.data.targets.interpretation import make_dataset
from augment.data.targets.kind import Kind, known_kinds
from augment.params import MATCHES, Choice, Count, Flag, Number, Param, Text, Texts, parse_named, setting, settings
from augment.params.param_types import MAX_CHANNELS, Channels
from augment.support.errors import UserError
from augment.support.files import near_file
from augment.support.formatting import amount
from augment.support.user_code import registering


def groups_by_name(images: Sequence[ImageRef], pattern: str) -> list[str]:
    """Return the text that the only group of a regular expression matches in each image's folder and file name.

    Raises:
        UserError: the expression is invalid, or does not match a name.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"data.group={pattern}: {error}. Allowed: a regular expression, or a column.") from None
    if compiled.groups != 1:
        raise UserError(f"data.group={pattern} has {compiled.groups} groups in ( ). Use exactly one.")
    groups = []
    for name in portable_names(images):
        match = compiled.search(name)
        if match is None or match[1] is None:
            raise UserError(f"data.group={pattern} does not match {name}. Use a pattern that matches all names.")
        groups.append(match[1])
    return groups


@dataclass(frozen=True, kw_only=True)
class Source:
    """Base of all sources, which list images and their targets.

    A source is hashable, and equal sources list the same dataset. Every source has these settings, which
    `augment.data.sources.loading` applies.
    """

    fraction: float = setting(
        Number(default=1, within=(0, 1), above=0, doc="share of each class's training images to use")
    )
    val_fraction: float | None = setting(
        Number(
            optional=True,
            within=(0, 0.9),
            above=0,
            doc="share of each class's training images that becomes the validation split",
        )
    )
    test_fraction: float | None = setting(
        Number(
            optional=True,
            within=(0, 0.9),
            above=0,
            doc="share of each class's training images that becomes the test split, which only `evaluate` reads",
        )
    )
    folds: int | None = setting(
        Count(
            optional=True,
            within=(2, 1000),
            doc="number of cross-validation folds of the training images. One fold replaces the validation split",
        )
    )
    fold: int | None = setting(
        Count(
            optional=True,
            within=(0, 999),
            doc="fold to validate on, from 0. `-m 'data.fold=range(K)'` runs all folds",
        )
    )
    group: str | None = setting(
        Text(
            aliases=("groups", "group_by"),
            optional=True,
            doc="groups, such as patients, that val_fraction, test_fraction and folds never split: a column of "
            "filelist's CSV, or a regular expression whose ( ) matches the group in folder/file",
            reach=MATCHES,
        )
    )
    split_seed: int = setting(
        Count(
            default=0,
            within=(0, 2**31 - 1),
            doc="seed of val_fraction, test_fraction, folds, fraction and balance, independent of seed",
        )
    )
    labels: str | None = setting(
        Text(
            optional=True,
            doc="CSV file of corrections that change the label of training images or drop them, with the columns "
            "`path`, `label` and optionally `action`",
        )
    )
    balance: str = setting(
        Choice(
            default="none",
            options=("none", "oversample", "weights"),
            doc="imbalanced classes: repeat images of small classes in each epoch, or weight classes in the loss",
        )
    )
    channels: int | None = setting(
        Count(
            optional=True,
            within=(1, MAX_CHANNELS),
            doc="channels of 8-bit images: 1 (gray), 3, or 4 (with transparency). Other images, such as 16-bit "
            "TIFFs, keep their channels. Default: 3",
        )
    )
    range: tuple[float, float] | str | None = setting(
        Channels(
            optional=True,
            within=(-1e30, 1e30),
            auto=True,
            count=2,
            doc="values of black and white, [low, high], or percentiles of each channel in training images (auto). "
            "Default: all values of the data type, or 0..1 for floating-point images",
        )
    )
    rgb: tuple[int, int, int] | None = setting(
        Channels(
            optional=True,
            within=(0, MAX_CHANNELS - 1),
            doc="red, green and blue channels for color ops and figures. Default: [0,1,2] for three channels",
        )
    )
    colormap: str | None = setting(
        Text(
            optional=True,
            doc="Matplotlib colormap for images that are shown as a single channel, such as viridis. Default: gray",
        )
    )
    nodata: float | None = setting(
        Number(
            optional=True, within=(-3.4028235e38, 3.4028235e38), doc="value of pixels without data, which become black"
        )
    )
    split_names: tuple[str, str] = ("train", "val")  # what `Dataset.train` and `Dataset.val` hold

    def groups(self, images: Sequence[ImageRef]) -> Sequence[Hashable]:
        """Return the group of each training image, as the setting `group` defines it.

        Raises:
            UserError: the column is missing, or the pattern does not match.
        """
        if self.group is not None and {"(", "\\"} & set(self.group):  # a regular expression
            return groups_by_name(images, self.group)
        known = self.column_of_train(str(self.group))
        if known is None:
            raise UserError(
                f"data.group={self.group}: this dataset has no columns. Use a regular expression with one ( ) that "
                r"matches all folder/file names, such as (video\d+)."
            )
        refs = list(map(encoded_ref, images))
        if missing := next((ref for ref in refs if not known[ref]), None):
            raise UserError(f"data.group={self.group}: no value for {name_of(missing)}. Add a value for each image.")
        return [known[ref] for ref in refs]

    def column_of_train(self, name: str) -> Mapping[ImageRef, Hashable] | None:
        """Return the value of a column for each training image, or None if the dataset has no columns.

        Raises:
            UserError: the column is missing.
        """
        return None

    def downloads(self) -> str:
        """Return the setting that would start a download if this source were loaded now, or an empty string."""
        return ""

    def load(self) -> Dataset:
        """List the images of both splits. With `cuts_val`, only the training split is used.

        Missing files are prepared first. A mistake that prevents training, but not listing, is added to
        `Dataset.problems`.

        Raises:
            UserError: the dataset cannot be used or obtained.
        """
        raise NotImplementedError

    def load_train(self) -> Dataset:
        """List the images if only training images are needed. The validation split may be missing.

        Raises:
            UserError: see `load`.
        """
        return self.load()

    def must_check(self, dataset: Dataset) -> Collection[str]:
        """Return the names of the splits whose images must be decoded and compared before they are used."""
        return ("train", "val") if hasattr(self, "skip_bad") else ()

    @property
    def given_val(self) -> str:
        """The setting or folder of validation data, or an empty string."""
        return ""

    @property
    def without_val(self) -> str:
        """The settings that make the source ignore its validation data."""
        return "data.val=null"

    @property
    def val_missing(self) -> str:
        """The error about missing validation data."""
        if self.split_names[1] == "test":
            return (
                "data: the test split is missing. Set data.test or data.test_dir, or start a new run with "
                "data.test_fraction=0.1, which holds out a test split."
            )
        if hasattr(self, "val"):
            return f"data.val is missing. Set it to the validation data, or set {CUT_VAL}."
        return f"data: the validation split is missing. Add it, or set {CUT_VAL}."

    @property
    def cuts_val(self) -> bool:
        """Whether the validation split, or the test split of `with_test`, is cut from the training images."""
        cuts_test = self.split_names[1] == "test" and self.test_fraction is not None
        return self.folds is not None or self.val_fraction is not None or cuts_test

    @property
    def gives_test(self) -> bool:
        """Whether a setting names the test data."""
        return any(getattr(self, name) is not None for name in _test_settings(self).values())

    def with_test(self) -> Self:
        """Return the source whose validation split is the test split.

        Raises:
            UserError: the source has no test split.
        """
        defaults = {"val_dir": "test"}
        given: dict[str, Any] = {
            name: getattr(self, test) or defaults.get(name) for name, test in _test_settings(self).items()
        }
        made = replace(self, split_names=("train", "test"), val_fraction=None, folds=None, fold=None, **given)
        if not given and self.test_fraction is None:
            raise UserError(made.val_missing)
        return made

    def of_folder(self, folder: Path) -> "Source":
        """Return the source that reads a folder with one split, or a file with its targets, as training images.

        Raises:
            UserError: the folder or file does not exist, or the source cannot read a single split.
        """
        if not folder.exists():
            raise UserError(f"{folder}: no such file or folder.{near_file(folder)}")
        raise UserError(
            f"{folder}: the source of this run cannot read it. Add the format of the data, such as data=coco "
            f"data.train=x.json for boxes, data=masks data.root={folder} for masks or data=filelist data.train=x.csv "
            "for labels."
        )

    @property
    def selection(self) -> str:
        """The selection of images, such as "fold 0 of 5, fraction 0.1", or an empty string for all images."""
        parts = [f"fold {self.fold} of {self.folds}"] if self.folds else []
        shares = {name: getattr(self, name) for name in ("val_fraction", "test_fraction", "fraction")}
        return ", ".join([*parts, *(f"{name} {share:g}" for name, share in shares.items() if share not in (None, 1))])


@dataclass(frozen=True, kw_only=True)
class CheckedSource(Source):
    """Base of the sources whose images are checked."""

    skip_bad: bool = setting(
        Flag(default=False, doc="whether to skip images that cannot be decoded. Default: they cause an error")
    )


@dataclass(frozen=True, kw_only=True)
class PointPairs(Param[tuple[tuple[str, str], ...]]):
    _phrase = "a list of pairs, such as [[left_eye,right_eye]]"

    def _convert(self, value: object) -> tuple[tuple[str, str], ...] | None:
        try:
            return tuple((str(left), str(right)) for left, right in value)  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            return None


FLIP_PAIRS = PointPairs(
    optional=True,
    doc="pairs of keypoints that swap in a mirrored image. Default: names that differ only in left and right. []: none",
)

# The settings of all sources that decide how the pixels of images are read and shown.
PIXEL_SETTINGS = ("channels", "range", "rgb", "colormap", "nodata")

_SOURCES: dict[str, type[Source]] = {}

# Read-only view: name in the configuration -> source.
SOURCES: Mapping[str, type[Source]] = MappingProxyType(_SOURCES)


@dataclass(frozen=True, kw_only=True)
class ListedSource(Source):
    """Base of the sources that have one setting for the data of each split."""

    train: str = setting(Text(required=True, doc="training data", reach=MATCHES))
    val: str | None = setting(
        Text(optional=True, doc="validation data. Not needed with val_fraction or folds", reach=MATCHES)
    )
    test: str | None = setting(Text(optional=True, doc="test data, which only `evaluate` reads", reach=MATCHES))

    @property
    def given_val(self) -> str:
        """The setting of the validation data, or an empty string."""
        return "" if self.val is None else f"data.val={self.val}"

    def split_values(self) -> dict[str, str]:
        """Return the values of data.train and of data.val or data.test by key. Omit a split that is cut from train."""
        if self.cuts_val or self.val is None:
            return {"data.train": self.train}
        return {"data.train": self.train, f"data.{self.split_names[1]}": self.val}

    def of_folder(self, folder: Path) -> Source:
        """Return the source of a file with targets, or of the only file of its format in a folder."""
        ending = Path(self.train).suffix
        is_folder = folder.is_dir() and folder.suffix != ending  # an LMDB is a folder
        files = sorted(folder.glob(f"*{ending}")) if is_folder else [folder]
        if len(files) != 1:
            raise UserError(
                f"{folder} contains {amount(len(files), f'{ending} file')}. Use the file with the targets, or a "
                "pattern in quotes."
            )
        # In a folder, the images are next to the file. Ignore the folders in the run's settings.
        folders: dict[str, Any] = {
            name: None for name in ("root", "images", "train_images") if is_folder and hasattr(self, name)
        }
        return replace(of_single_split(self, folder), train=str(files[0]), val=None, test=None, **folders)


@dataclass(frozen=True, kw_only=True)
class LabeledSource(ListedSource):
    """Base of the sources whose images have classes, several labels, or numbers to predict."""

    classes: str | None = setting(
        Text(optional=True, doc="file with one class name per line. Default: the classes found")
    )
    label_offset: int = setting(Count(default=0, doc="label of the first class: 1 if labels are numbers from 1"))
    multilabel: bool = setting(
        Flag(default=False, doc="any number of labels per image, including none. Short for data.task=multilabel")
    )
    task: str | None = setting(
        Choice(
            optional=True,
            options=tuple(name for name, kind in known_kinds().items() if not kind.follows),
            doc="kind of targets. Default: inferred from them",
        )
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="names of the numbers to predict, or of the labels with data.multilabel=true")
    )

    @property
    def kind(self) -> Kind | None:
        """The kind of targets in the settings, or None if it is inferred from the targets."""
        return known_kinds().get("multilabel" if self.multilabel else self.task or "")

    def load(self) -> Dataset:
        """List the images of `labels` and interpret their labels."""
        options = self.target_options()
        # In an instance, the setting `labels` hides the method of the class.
        read: Any = type(self).labels
        return make_dataset([_labeled(key, read(self, given)) for key, given in self.split_values().items()], options)

    def labels(self, given: str) -> Mapping[ImageRef, Label | list[Label]]:  # type: ignore[misc, override]
        """Return the images that a value of data.train or data.val names, each with one label or number, or a list.

        A subclass defines either this method or `load`.
        """
        raise NotImplementedError

    def target_options(self) -> TargetOptions:
        """Return the settings about targets.

        Raises:
            UserError: data.task and data.multilabel disagree, or data.classes cannot be read.
        """
        if self.multilabel and self.task not in (None, "multilabel"):
            raise UserError(f"data.task={self.task} contradicts data.multilabel=true. Set only one of them.")
        task = self.kind.task if self.kind else ""
        classes = read_names(self.classes) if self.classes else None
        return TargetOptions(task, classes, self.label_offset, self.targets)


def _labeled(key: str, found: Mapping[ImageRef, Label | list[Label]]) -> LabeledSplit:
    images = list(found)

    def name(index: int) -> str:
        return name_of(images[index])

    labels = [label if isinstance(label, list) else [label] for label in found.values()]
    return LabeledSplit(key, images, pack(labels, name), name)


Src = TypeVar("Src", bound=Source)


def source(name: str) -> Callable[[type[Src]], type[Src]]:
    """Register a source under its name in the configuration."""
    return registering(_SOURCES, "source", name)


def parse_data(given: object) -> Source:
    """Check the `data` section, `{source: name, ...settings}`.

    Raises:
        UserError: an unknown source or setting, a missing one, or a value that is not allowed.
    """
    source = parse_named(_SOURCES, given, "data", "source")
    if source.labels is not None:
        source = replace(source, labels=pinned(source.labels))
    if source.folds is None and source.fold is not None:
        raise UserError(f"data.fold={source.fold} needs data.folds. Set data.folds=K, or remove data.fold.")
    if source.folds is not None and (source.fold is None or source.fold >= source.folds):
        what = "data.fold is missing" if source.fold is None else f"data.fold={source.fold} is too large"
        raise UserError(
            f"{what}. Allowed: 0 to {source.folds - 1}, or -m 'data.fold=range({source.folds})' for all folds."
        )
    if source.folds is not None and source.val_fraction is not None:
        raise UserError(
            f"data.val_fraction={source.val_fraction:g} contradicts data.folds={source.folds}. Set only one of them."
        )
    if source.val_fraction is not None and source.given_val:
        raise UserError(
            f"data.val_fraction={source.val_fraction:g} would ignore the images of {source.given_val}. Remove "
            f"data.val_fraction to validate on them, or set {source.without_val}."
        )
    if source.test_fraction is not None and source.gives_test:
        raise UserError(
            f"data.test_fraction={source.test_fraction:g} contradicts data.test or data.test_dir. Set only one of them."
        )
    if (source.test_fraction or 0) + (source.val_fraction or 0) >= 1:
        raise UserError(
            f"data.test_fraction={source.test_fraction:g} and data.val_fraction={source.val_fraction:g} leave no "
            "training images. Use fractions with a sum below 1."
        )
    return source


def without_selection(source: Src) -> Src:
    """Return the source of all images, so that a sweep over folds lists and checks them once."""
    defaults: dict[str, Any] = {
        name: param.default for name, param in settings(Source).items() if name not in PIXEL_SETTINGS
    }
    # The listed images depend on whether splits are cut, not on their shares.
    cut = {"val_fraction": source.cuts_val, "test_fraction": source.test_fraction is not None}
    return replace(source, **defaults | {name: 0.5 if is_cut else None for name, is_cut in cut.items()})


def of_single_split(source: Src, folder: Path) -> Src:
    """Return the source of a folder with one split. It ignores settings that select images or have a `reach`."""
    safe: dict[str, Any] = {name: param.default for name, param in settings(type(source)).items() if param.reach}
    return replace(
        without_selection(source),
        split_names=(folder.resolve().name, "val"),
        **safe | {"val_fraction": None, "test_fraction": None},
    )


def _test_settings(source: Source) -> dict[str, str]:
    """Map the settings of validation data to the settings of test data, such as val_dir to test_dir."""
    known = settings(type(source))
    return {
        name: f"test{name[3:]}"
        for name in known
        if name.startswith("val") and name != "val_fraction" and f"test{name[3:]}" in known
    }
