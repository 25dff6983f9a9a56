"""The base classes of sources, and the registry that maps names in the `data` section to sources."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from logging import LogRecord
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from augment.data.balance import balanced, check_balance
from augment.data.copies import warn_of_copies
from augment.data.dataset import TASKS, Dataset, check_dataset
from augment.data.formats.folder import CUT
from augment.data.own.factory import ObjectName
from augment.data.selection import as_left_out, cut_val, take_fraction
from augment.data.sources.notices import recorded_notices, warn_of_foreign, warn_of_missing, warn_of_unused_names
from augment.data.targets.classes import read_names
from augment.data.targets.interpretation import TargetOptions
from augment.data.watch import state_of
from augment.params import Choice, Count, Flag, Number, Text, Texts, parse_named, setting, settings
from augment.support.errors import UserError
from augment.support.files import expanded

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Base of all sources. A source is hashable, and two equal ones give the same dataset.

    Every source has these settings; `load_dataset` applies them.
    """

    fraction: float = setting(
        Number(default=1, within=(0, 1), above=0, doc="share of the training images to use, of each class")
    )
    val_fraction: float | None = setting(
        Number(
            optional=True,
            within=(0, 0.9),
            above=0,
            doc="share of the training images, of each class, to validate on; without a val of its own",
        )
    )
    folds: int | None = setting(
        Count(
            optional=True,
            within=(2, 1000),
            doc="cross-validation: number of folds that train is split into; val is not used",
        )
    )
    fold: int | None = setting(
        Count(
            optional=True,
            within=(0, 999),
            doc="cross-validation: the fold to validate on, from 0; -m 'data.fold=range(K)' runs all",
        )
    )
    split_seed: int = setting(
        Count(
            default=0,
            within=(0, 2**31 - 1),
            doc="seed for val_fraction, folds, fraction and balance, independent of seed",
        )
    )
    balance: str = setting(
        Choice(
            default="none",
            options=("none", "oversample", "weights"),
            doc="imbalanced classes: repeat images of small ones in each epoch, or weight classes in the loss",
        )
    )

    # Whether val is read alone and as train, for a loader of val where there is no train. No setting.
    only_val: bool = False

    def downloads(self) -> str:
        """Return the setting by which loading would download something now; empty if it would not."""
        return ""

    def load(self) -> Dataset:
        """Prepare missing files and list all images of both splits; with `cuts_val`, only those of train are used.

        Raises:
            UserError: the data cannot be used or obtained.
        """
        raise NotImplementedError

    def load_train(self) -> Dataset:
        """Load for training alone: val may be missing.

        Raises:
            UserError: see `load`.
        """
        return self.load()

    def unchecked(self) -> Dataset:
        """Load without checking images: missing or broken ones are kept if they can be listed.

        What training would refuse is reported as `Dataset.problems`, as far as the rest can be listed.

        Raises:
            UserError: the lists themselves cannot be used.
        """
        return self.load()

    def for_conversion(self) -> Dataset:
        """List all images, including those that only other programs than DALI decode.

        Raises:
            UserError: the lists cannot be used.
        """
        return self.unchecked()

    def own_code(self) -> tuple[object, ...]:
        """Return the functions or objects of the user that it loads from, as far as they are imported."""
        return ()

    @property
    def lacks_train(self) -> bool:
        """Whether there is val, but no train."""
        return False

    @property
    def given_val(self) -> tuple[str, str] | None:
        """The validation data that the settings name, and the setting that leaves them aside; None: there are none."""
        return None

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


_SOURCES: dict[str, type[Source]] = {}

# Read-only view: name in the configuration -> source.
SOURCES: Mapping[str, type[Source]] = MappingProxyType(_SOURCES)

VAL_MISSING = f"data.val: missing. Allowed: validation data; or {CUT}."


@dataclass(frozen=True, kw_only=True)
class LabeledSource(Source):
    """Base of the sources whose images come with labels or numbers, with common rules."""

    train: str = setting(Text(required=True, doc="training data"))
    val: str | None = setting(Text(optional=True, doc="validation data; null: with val_fraction or folds"))
    classes: str | None = setting(
        Text(optional=True, doc="file with one class name per line; null: the labels themselves")
    )
    label_offset: int = setting(
        Count(default=0, doc="label of the first class: 1 if labels are numbers that start at 1")
    )
    multilabel: bool = setting(
        Flag(default=False, doc="images have any number of labels, including none; short for data.task=multilabel")
    )
    task: str | None = setting(
        Choice(optional=True, options=TASKS, doc="what the targets are; null: inferred from them")
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="names of the numbers to predict, or of the labels with data.multilabel=true")
    )

    @property
    def given_val(self) -> tuple[str, str] | None:
        """What data.val names."""
        return None if self.val is None else (f"data.val={self.val}", "data.val=null")

    def given(self) -> dict[str, str]:
        """Return what is to be read, by its key: data.train and, unless val is cut from it, data.val."""
        if self.only_val:
            return {"data.val": self.train}
        val = {} if self.cuts_val or self.val is None else {"data.val": self.val}
        return {"data.train": self.train} | val

    def target_options(self) -> TargetOptions:
        """Return the settings about targets.

        Raises:
            UserError: data.task and data.multilabel disagree, or data.classes cannot be read.
        """
        if self.multilabel and self.task not in (None, "multilabel"):
            raise UserError(f"data.task={self.task}: but data.multilabel=true. Allowed: one of the two.")
        task = "multilabel" if self.multilabel else self.task
        return TargetOptions(task, read_names(self.classes) if self.classes else None, self.label_offset, self.targets)


S = TypeVar("S", bound=type[Source])

# The settings that say what is read for train and for val.
_SPLITS = {"train", "val", "val_fraction", "folds"}


def source(name: str) -> Callable[[S], S]:
    """Register a source under its name in the configuration."""

    def decorate(cls: S) -> S:
        _SOURCES[name] = cls
        return cls

    return decorate


def parse_data(given: object, *, needs_train: bool = True) -> Source:
    """Check the `data` section, `{source: name, ...settings}`.

    Args:
        given: the section.
        needs_train: whether train may not be missing; if it is, the source has `only_val`.

    Raises:
        UserError: an unknown source or setting, a missing one, or a value that is not allowed.
    """
    alone = False
    if not needs_train and isinstance(given, Mapping):
        alone = [key for key in _SPLITS if given.get(key) is not None] == ["val"]
        as_train = {"train": "val", "train_targets": "val_targets"} if alone else {}
        given = {**given, **{train: given[val] for train, val in as_train.items() if val in given}}
    source = parse_named(_SOURCES, given, "data", "source")
    if alone or (not needs_train and source.lacks_train and not source.cuts_val):
        return replace(_whole(source), only_val=True)
    if source.folds is None and source.fold is not None:
        raise UserError(f"data.fold={source.fold}: of how many? Allowed: null, or with data.folds=K.")
    if source.folds is not None and (source.fold is None or source.fold >= source.folds):
        wrong = f"data.fold={source.fold}: no such one of {source.folds} folds, which count from 0"
        was = "data.fold: missing" if source.fold is None else wrong
        raise UserError(f"{was}. Allowed: 0 to {source.folds - 1}, or -m 'data.fold=range({source.folds})' for all.")
    if source.folds is not None and source.val_fraction is not None:
        raise UserError(f"data.val_fraction={source.val_fraction:g}: but data.folds={source.folds}. Allowed: either.")
    if source.val_fraction is not None and source.given_val:
        val, without = source.given_val
        raise UserError(
            f"data.val_fraction={source.val_fraction:g}: but there is {val}, whose images would not be used. Allowed: "
            f"null, which validates on them; or {without}, which leaves them aside."
        )
    return source


# Names of images that are left out of train and of val, see `augment.data.selection.as_left_out`.
LeftOut = tuple[frozenset[str], frozenset[str]]


def load_dataset(source: Source, left_out: LeftOut | None = None, *, needs_val: bool = True) -> Dataset:
    """Load a source's dataset, once per process and current folder.

    Val is cut from train first, then the fraction is taken; classes are balanced last.

    Args:
        source: the source.
        left_out: what the check left out in the run to resume; None: what it leaves out now.
        needs_val: whether val may not be missing; if it is, the dataset's is empty.

    Raises:
        UserError: see `Source.load`; or the classes cannot be cut or balanced as requested.
    """
    return _select(source, Path.cwd(), left_out, needs_val)[0]


def forget_changed(wanted: Source | None = None) -> None:
    """Forget the datasets if files, folders or code that their sources name have changed: a notebook lives long.

    So are those of objects in memory, unless they are the source that is wanted next. Files in a folder that come or go
    are noticed, those that are overwritten are not: they are read again anyway.
    """
    kept = wanted and _whole(wanted)
    if any(
        (source != kept and ObjectName in map(type, vars(source).values()))
        or _state(source, folder) != state
        or list(map(id, source.own_code())) != list(map(id, code))
        for (source, folder), (state, code) in list(_STATES.items())  # other threads may load meanwhile
    ):
        for loaded in (_select, _load):
            loaded.cache_clear()
        _STATES.clear()


def notices_of(source: Source, left_out: LeftOut | None = None) -> tuple[LogRecord, ...]:
    """Return the log entries of `load_dataset` with the same arguments; load it if necessary."""
    return _load(_whole(source), Path.cwd(), True)[1] + _select(source, Path.cwd(), left_out, True)[1]


def select(source: Source, dataset: Dataset) -> Dataset:
    """Return the part of a source's dataset that its settings choose, and warn of what is strange about it.

    Raises:
        UserError: there are too few images.
    """
    dataset = cut_val(source, dataset)
    if source.cuts_val and dataset.task == "classify":
        warn_of_missing(dataset)
    if source.fraction < 1:
        dataset = take_fraction(dataset, fraction=source.fraction, seed=source.split_seed)
    warn_of_copies(dataset)
    return dataset


def _whole(source: Source) -> Source:
    """Return the source of all images, so that the jobs of a sweep over folds list and check them once."""
    whole: dict[str, Any] = {name: param.default for name, param in settings(Source).items()}
    # Whether val is cut is all that loading depends on; the share is any.
    return replace(source, **whole | {"val_fraction": 0.5 if source.cuts_val else None})


@cache
def _select(
    source: Source, folder: Path, left_out: LeftOut | None, needs_val: bool
) -> tuple[Dataset, tuple[LogRecord, ...]]:
    dataset, _ = _load(_whole(source), folder, needs_val)
    if left_out is not None:
        train, val = map(as_left_out, (dataset.train, dataset.val), left_out)
        dataset = replace(dataset, train=train, val=val)
    check_balance(dataset, source.balance)
    with recorded_notices() as notices:
        dataset = select(source, dataset)
    return balanced(dataset, source.balance, source.split_seed), tuple(notices)


# The files and folders of the sources that were loaded, and the user's code, as they were then.
_STATES: dict[tuple[Source, Path], tuple[list[tuple[str, int, int]], tuple[object, ...]]] = {}


def _state(source: Source, folder: Path) -> list[tuple[str, int, int]]:
    """Return the state of what a source's settings name, as far as these are paths."""
    return state_of(folder / expanded(value) for value in vars(source).values() if isinstance(value, str))


@cache
def _load(source: Source, folder: Path, needs_val: bool) -> tuple[Dataset, tuple[LogRecord, ...]]:
    listed = needs_val and not source.cuts_val
    with recorded_notices() as notices:
        if listed and isinstance(source, LabeledSource) and source.val is None:
            raise UserError(VAL_MISSING)
        name = next((name for name, cls in _SOURCES.items() if cls is type(source)), type(source).__name__)
        dataset = check_dataset(source.load() if needs_val else source.load_train(), f"data.source={name}")
        if listed and not len(dataset.val):
            raise UserError(VAL_MISSING)
        warn_of_unused_names(source, dataset)
        warn_of_foreign(dataset)
    _STATES[source, folder] = _state(source, folder), source.own_code()
    return dataset, tuple(notices)
