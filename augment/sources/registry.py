"""What a source is, and the registry by which the `data` section of the configuration names it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, cast, get_args

from augment.dataset import Dataset, Task
from augment.errors import UserError
from augment.params import Choice, Count, Flag, Text, Texts, parse_named


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
SKIP_BAD = Flag(default=False, doc="leave out pictures that cannot be decoded, in place of an error")
LABEL_OFFSET = Count(default=0, doc="label of the first class: 1 where labels are numbers that begin at 1")
MULTILABEL = Flag(default=False, doc="a picture has any number of labels, also none; false: so if one has several")
CLASSES = Text(optional=True, doc="file with a class name a line; null: the labels themselves")
TASK = Choice(optional=True, options=get_args(Task), doc="what the targets are; null: told from them")
TARGETS = Texts(default=(), doc="names of the numbers to predict, or with data.multilabel=true of the labels")


def task_given(task: str | None, *, multilabel: bool) -> Task | None:
    """Return the task that data.task and data.multilabel ask for; None: neither does.

    Raises:
        UserError: they ask for two.
    """
    if multilabel and task not in (None, "multilabel"):
        raise UserError(f"data.task={task}: but data.multilabel=true. Allowed: one of the two.")
    return "multilabel" if multilabel else cast(Task | None, task)


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
