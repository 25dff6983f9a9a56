"""What a source is, and the registry by which the `data` section of the configuration names it."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from logging import LogRecord
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_args

from augment.balance import check_balance, oversample
from augment.dataset import Dataset, Task
from augment.errors import UserError
from augment.params import Choice, Count, Flag, Number, Text, Texts, parse_named, setting, settings
from augment.sources.beside import note_names_beside
from augment.sources.notes import kept_notes
from augment.subset import take_fold, take_fraction
from augment.targets.classes import read_names

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Base of all sources. A source is hashable, and two equal ones give the same dataset.

    What it declares every source has. A source need not know of it: `load_dataset` takes care.
    """

    fraction: float = setting(
        Number(default=1, within=(0, 1), above=0, doc="share of the training pictures to learn from, of each class")
    )
    folds: int | None = setting(
        Count(optional=True, within=(2, 1000), doc="cross-validation: cut train into so many; val is left aside")
    )
    fold: int | None = setting(
        Count(
            optional=True,
            within=(0, 999),
            doc="cross-validation: which fold is scored on, from 0; -m 'data.fold=range(K)' runs all",
        )
    )
    split_seed: int = setting(
        Count(default=0, within=(0, 2**31 - 1), doc="seed of what fraction, folds and balance choose; seed has no part")
    )
    balance: str = setting(
        Choice(
            default="none",
            options=("none", "oversample", "weights"),
            doc="classes of unequal size: repeat pictures of small ones in an epoch, or weigh classes in training",
        )
    )

    def load(self) -> Dataset:
        """Prepare what is missing and list the files of both splits, all of them.

        Raises:
            UserError: what is there cannot be used, or cannot be had.
        """
        raise NotImplementedError

    def unchecked(self) -> Dataset:
        """As `load`, but with the pictures that are missing or cannot be decoded, where the source can list these.

        Raises:
            UserError: the lists themselves cannot be used.
        """
        return self.load()

    @property
    def part(self) -> str:
        """What is taken of the pictures, for people: "fold 0 of 5, fraction 0.1"; empty if it is all."""
        parts = [f"fold {self.fold} of {self.folds}"] if self.folds else []
        return ", ".join([*parts, *([f"fraction {self.fraction:g}"] if self.fraction < 1 else [])])


_SOURCES: dict[str, type[Source]] = {}

# Read-only view: name in the configuration -> source.
SOURCES: Mapping[str, type[Source]] = MappingProxyType(_SOURCES)

# Where sources that make or download their pictures put them, below the folder the program is started in.
DATA_DIR = "outputs/data"


# Of several sources.
SKIP_BAD = Flag(default=False, doc="leave out pictures that cannot be decoded, in place of an error")


@dataclass(frozen=True, kw_only=True)
class LabeledSource(Source):
    """Base of the sources whose pictures come with labels or numbers, all by the same rules.

    A setting that a source describes in words of its own keeps its place.
    """

    train: str = setting(Text(required=True, doc="what to learn from"))
    val: str = setting(Text(required=True, doc="what to be scored on"))
    classes: str | None = setting(Text(optional=True, doc="file with a class name a line; null: the labels themselves"))
    label_offset: int = setting(
        Count(default=0, doc="label of the first class: 1 where labels are numbers that begin at 1")
    )
    multilabel: bool = setting(
        Flag(default=False, doc="a picture has any number of labels, also none; short for data.task=multilabel")
    )
    task: str | None = setting(
        Choice(optional=True, options=get_args(Task), doc="what the targets are; null: told from them")
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="names of the numbers to predict, or with data.multilabel=true of the labels")
    )

    def asked(self) -> Task | None:
        """Return the task that data.task and data.multilabel ask for; None: neither does.

        Raises:
            UserError: they ask for two.
        """
        if self.multilabel and self.task not in (None, "multilabel"):
            raise UserError(f"data.task={self.task}: but data.multilabel=true. Allowed: one of the two.")
        return "multilabel" if self.multilabel else cast(Task | None, self.task)

    def class_names(self) -> tuple[str, ...] | None:
        """Return the names in the file data.classes; None if there is none.

        Raises:
            UserError: it cannot be used.
        """
        return read_names(self.classes) if self.classes else None


S = TypeVar("S", bound=type[Source])


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
    source = parse_named(_SOURCES, given, key, "source")
    if source.folds is None and source.fold is not None:
        raise UserError(f"{key}.fold={source.fold}: of how many? Allowed: null, or with {key}.folds=K.")
    if source.folds is not None and (source.fold is None or source.fold >= source.folds):
        wrong = f"{key}.fold={source.fold}: no such one of {source.folds} folds, which count from 0"
        was = f"{key}.fold: missing" if source.fold is None else wrong
        raise UserError(f"{was}. Allowed: 0 to {source.folds - 1}, or -m '{key}.fold=range({source.folds})' for all.")
    return source


def load_dataset(source: Source) -> Dataset:
    """Load a source's dataset, once in a process for each folder that relative paths begin at.

    Of what the source has, the fold is taken first, then the fraction; classes are balanced last.

    Raises:
        UserError: as `Source.load`, or classes that cannot be cut or balanced as asked.
    """
    return _select(source, Path.cwd())


def notes_of(source: Source) -> tuple[LogRecord, ...]:
    """Return what was said in the log while a source's dataset was loaded, which happens now if it is not yet."""
    return _load(_whole(source), Path.cwd())[1]


def _whole(source: Source) -> Source:
    """Return the source of all that there is: the jobs of a sweep over folds share what is listed and checked."""
    whole: dict[str, Any] = {name: param.default for name, param in settings(Source).items()}
    return replace(source, **whole)


@cache
def _select(source: Source, folder: Path) -> Dataset:
    dataset, _ = _load(_whole(source), folder)
    check_balance(dataset, source.balance)
    if source.folds is not None and source.fold is not None:
        dataset = take_fold(dataset, folds=source.folds, fold=source.fold, seed=source.split_seed)
    if source.fraction < 1:
        dataset = take_fraction(dataset, fraction=source.fraction, seed=source.split_seed)
    return oversample(dataset, source.split_seed) if source.balance == "oversample" else dataset


@cache
def _load(source: Source, _: Path) -> tuple[Dataset, tuple[LogRecord, ...]]:
    with kept_notes() as notes:
        dataset = source.load()
        note_names_beside(source, dataset)
        if dataset.task == "classify" and len(dataset.classes) == 1:
            logger.warning("there is one class only, %s: nothing to tell apart", dataset.classes[0])
    return dataset, tuple(notes)
