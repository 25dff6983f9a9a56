"""The base classes of sources, and the registry that maps names in the `data` section to sources."""

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from augment.data.dataset import Dataset, ImageRef
from augment.data.formats.folder import CUT
from augment.data.images import name_of, portable_names
from augment.data.targets.class_names import Label, LabeledSplit, TargetOptions, pack, read_names
from augment.data.targets.interpretation import make_dataset
from augment.data.targets.kind import Kind, known_kinds
from augment.params import MATCHES, Choice, Count, Flag, Number, Param, Text, Texts, parse_named, setting, settings
from augment.support.errors import UserError
from augment.support.user_code import refuse_second


def groups_by_name(images: Sequence[ImageRef], pattern: str) -> list[str]:
    """Return what the only group of a regular expression is in each image's folder and file name.

    Raises:
        UserError: it is no such expression, or not found in a name.
    """
    counts = len(re.findall(r"[*+{]", pattern)), len(re.findall(r"[?|]", pattern))
    if len(pattern) > 200 or counts[0] > 3 or counts[1] > 10 or re.search(r"\)[*+{]|\\\d|\(\?[^:Pi]|\(\?P=", pattern):
        raise UserError(
            f"data.group={pattern[:200]}: may take too long. Use at most three of * + {{}} and ten of ? |, repeat "
            "no group, and refer to none. Or use a column."
        )
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"data.group={pattern}: {error}. Allowed: a regular expression, or a column.") from None
    if compiled.groups != 1:
        raise UserError(f"data.group={pattern}: has {compiled.groups} groups in ( ). Allowed: one.")
    groups = []
    for name in portable_names(images):
        match = compiled.search(name)
        if match is None or match[1] is None:
            raise UserError(f"data.group={pattern}: is not found in {name}. Allowed: what all names have.")
        groups.append(match[1])
    return groups


@dataclass(frozen=True, kw_only=True)
class Source:
    """Base of all sources, which list images and their targets. A source is hashable; equal ones list the same.

    Every source has these settings; `augment.data.sources.loading` applies them.
    """

    fraction: float = setting(
        Number(default=1, within=(0, 1), above=0, doc="share of the training images to use, of each class")
    )
    val_fraction: float | None = setting(
        Number(optional=True, within=(0, 0.9), above=0, doc="share of train, of each class, that becomes val")
    )
    folds: int | None = setting(
        Count(optional=True, within=(2, 1000), doc="cross-validation: folds that train is split into, in place of val")
    )
    fold: int | None = setting(
        Count(optional=True, within=(0, 999), doc="the fold to validate on, from 0; -m 'data.fold=range(K)' runs all")
    )
    group: str | None = setting(
        Text(
            aliases=("groups", "group_by"),
            optional=True,
            doc="val_fraction, folds: images to keep on one side, as of a patient: those with the same value in this "
            "column (CSV of filelist), or the same text in the ( ) of this regular expression, searched in "
            "folder/file",
            reach=MATCHES,
        )
    )
    split_seed: int = setting(
        Count(default=0, within=(0, 2**31 - 1), doc="seed of val_fraction, folds, fraction and balance, beside seed")
    )
    balance: str = setting(
        Choice(
            default="none",
            options=("none", "oversample", "weights"),
            doc="imbalanced classes: repeat images of small ones in each epoch, or weight classes in the loss",
        )
    )

    def groups(self, images: Sequence[ImageRef]) -> Sequence[Hashable]:
        """Return the group of each of some train images, (N,), by `group`.

        Raises:
            UserError: there is no such column, or the pattern does not fit.
        """
        if self.group is not None and {"(", "\\"} & set(self.group):  # a pattern of names
            return groups_by_name(images, self.group)
        known = self.column_of_train(str(self.group))
        if known is None:
            raise UserError(
                f"data.group={self.group}: these data have no columns. Allowed: a regular expression with one ( ) that "
                r"is found in all folder/file names, such as (video\d+)."
            )
        if missing := next((image for image in images if not known[image]), None):
            raise UserError(f"data.group={self.group}: no value for {name_of(missing)}. Allowed: one for each image.")
        return [known[image] for image in images]

    def column_of_train(self, name: str) -> Mapping[ImageRef, Hashable] | None:
        """Return what a column says of each image of train; None: there are no columns.

        Raises:
            UserError: there is no such column.
        """
        return None

    def downloads(self) -> str:
        """Return the setting by which loading would download something now; empty if it would not."""
        return ""

    def load(self) -> Dataset:
        """List the images of both splits, after preparing missing files; with `cuts_val`, only train is used.

        What training would refuse becomes `Dataset.problems`, as far as the rest can be listed.

        Raises:
            UserError: the data cannot be used or obtained.
        """
        raise NotImplementedError

    def load_train(self) -> Dataset:
        """List them for training alone: val may be missing.

        Raises:
            UserError: see `load`.
        """
        return self.load()

    def must_check(self, dataset: Dataset) -> Collection[str]:
        """Return the names of the splits whose images have to be decoded and compared before they are used."""
        return ("train", "val") if hasattr(self, "skip_bad") else ()

    @property
    def given_val(self) -> str:
        """The validation data that the settings name; empty: there are none."""
        return ""

    @property
    def without_val(self) -> str:
        """The setting without which there are no `given_val`."""
        return "data.val=null"

    @property
    def val_missing(self) -> str:
        """Why training would refuse data without validation data."""
        if hasattr(self, "val"):
            return f"data.val: missing. Allowed: validation data; or {CUT}."
        return f"data: there are no validation images. Add some, or use {CUT}."

    @property
    def cuts_val(self) -> bool:
        """Whether val is cut from train."""
        return self.folds is not None or self.val_fraction is not None

    @property
    def part(self) -> str:
        """The selected part of the images, for messages: "fold 0 of 5, fraction 0.1"; empty if it is all."""
        parts = [f"fold {self.fold} of {self.folds}"] if self.folds else []
        parts += [f"val_fraction {self.val_fraction:g}"] if self.val_fraction else []
        return ", ".join([*parts, *([f"fraction {self.fraction:g}"] if self.fraction < 1 else [])])


@dataclass(frozen=True, kw_only=True)
class CheckedSource(Source):
    """Base of the sources whose images are checked."""

    skip_bad: bool = setting(Flag(default=False, doc="leave out images that cannot be decoded, instead of an error"))
    max_bad: int = setting(
        Count(
            default=100,
            within=(0, 10**9),
            doc="with skip_bad: how many that turn bad during training others may stand in for",
        )
    )


@dataclass(frozen=True, kw_only=True)
class Pairs(Param[tuple[tuple[str, str], ...]]):
    """A list of pairs of names."""

    _phrase = "a list of pairs, such as [[left_eye,right_eye]]"

    def _convert(self, value: object) -> tuple[tuple[str, str], ...] | None:
        try:
            return tuple((str(left), str(right)) for left, right in value)  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            return None


FLIP_PAIRS = Pairs(
    optional=True,
    doc="points that change places in a mirrored image; []: none; null: those whose names differ in left and right",
)

_SOURCES: dict[str, type[Source]] = {}

# Read-only view: name in the configuration -> source.
SOURCES: Mapping[str, type[Source]] = MappingProxyType(_SOURCES)


@dataclass(frozen=True, kw_only=True)
class ListedSource(Source):
    """Base of the sources that have a setting for the data of either split."""

    train: str = setting(Text(required=True, doc="training data", reach=MATCHES))
    val: str | None = setting(
        Text(optional=True, doc="validation data; null: with val_fraction or folds", reach=MATCHES)
    )

    @property
    def given_val(self) -> str:
        """What data.val names."""
        return "" if self.val is None else f"data.val={self.val}"

    def given(self) -> dict[str, str]:
        """Return what is to be read, by its key: data.train and, unless val is cut from it, data.val."""
        return {"data.train": self.train} | ({} if self.cuts_val or self.val is None else {"data.val": self.val})


@dataclass(frozen=True, kw_only=True)
class LabeledSource(ListedSource):
    """Base of the sources whose images come with labels or numbers, with common rules."""

    classes: str | None = setting(Text(optional=True, doc="file with one class name per line; null: those found"))
    label_offset: int = setting(Count(default=0, doc="label of the first class: 1 if labels are numbers from 1"))
    multilabel: bool = setting(
        Flag(default=False, doc="images have any number of labels, including none; short for data.task=multilabel")
    )
    task: str | None = setting(
        Choice(
            optional=True,
            options=tuple(name for name, kind in known_kinds().items() if not kind.follows),
            doc="what the targets are; null: inferred from them",
        )
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="names of the numbers to predict, or of the labels with data.multilabel=true")
    )

    @property
    def kind(self) -> Kind | None:
        """The kind of targets that the settings ask for; None: it is inferred."""
        return known_kinds().get("multilabel" if self.multilabel else self.task or "")

    def load(self) -> Dataset:
        """List the images of `labels` and interpret their labels."""
        options = self.target_options()
        return make_dataset([_labeled(key, self.labels(given)) for key, given in self.given().items()], options)

    def labels(self, given: str) -> Mapping[ImageRef, Label | list[Label]]:
        """Return the images of what data.train or data.val gives, each with its class, number, or a list of them.

        A source that has none of its own for `load` has this.
        """
        raise NotImplementedError

    def target_options(self) -> TargetOptions:
        """Return the settings about targets.

        Raises:
            UserError: data.task and data.multilabel disagree, or data.classes cannot be read.
        """
        if self.multilabel and self.task not in (None, "multilabel"):
            raise UserError(f"data.task={self.task}: but data.multilabel=true. Allowed: one of the two.")
        task = self.kind.task if self.kind else ""
        classes = read_names(self.classes) if self.classes else None
        return TargetOptions(task, classes, self.label_offset, self.targets)


def _labeled(key: str, found: Mapping[ImageRef, Label | list[Label]]) -> LabeledSplit:
    images = list(found)

    def name(index: int) -> str:
        return name_of(images[index])

    labels = [label if isinstance(label, list) else [label] for label in found.values()]
    return LabeledSplit(key, images, pack(labels, name), name)


S = TypeVar("S", bound=type[Source])


def source(name: str) -> Callable[[S], S]:
    """Register a source under its name in the configuration."""

    def decorate(cls: S) -> S:
        refuse_second("source", name, _SOURCES.get(name), cls)
        _SOURCES[name] = cls
        return cls

    return decorate


def parse_data(given: object) -> Source:
    """Check the `data` section, `{source: name, ...settings}`.

    Raises:
        UserError: an unknown source or setting, a missing one, or a value that is not allowed.
    """
    source = parse_named(_SOURCES, given, "data", "source")
    if source.folds is None and source.fold is not None:
        raise UserError(f"data.fold={source.fold}: of how many? Allowed: null, or with data.folds=K.")
    if source.folds is not None and (source.fold is None or source.fold >= source.folds):
        allowed = f"0 to {source.folds - 1}, or -m 'data.fold=range({source.folds})' for all"
        raise UserError(f"data.fold: {'missing' if source.fold is None else source.fold}. Allowed: {allowed}.")
    if source.folds is not None and source.val_fraction is not None:
        raise UserError(f"data.val_fraction={source.val_fraction:g}: but data.folds={source.folds}. Allowed: either.")
    if source.val_fraction is not None and source.given_val:
        raise UserError(
            f"data.val_fraction={source.val_fraction:g}: but there is {source.given_val}, whose images would not be "
            f"used. Allowed: null, which validates on them; or {source.without_val}, without them."
        )
    return source


def whole(source: Source) -> Source:
    """Return the source of all images, so that the jobs of a sweep over folds list and check them once."""
    every: dict[str, Any] = {name: param.default for name, param in settings(Source).items()}
    # Whether val is cut is all that loading depends on; the share is any.
    return replace(source, **every | {"val_fraction": 0.5 if source.cuts_val else None})
