"""The source whose images come from a user's own code."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augment.data.dataset import Dataset
from augment.data.own.factory import ObjectName, SequenceFactory, find_imported, object_name
from augment.data.sources.notices import MAX_BAD, SKIP_BAD, check_images
from augment.data.sources.registry import LabeledSource, source
from augment.params import IMPORTS, Count, OptionMap, Text, setting
from augment.support.errors import UserError

logger = logging.getLogger(__name__)


class Code(Text):
    """The name of something that can be imported; a program may give the object itself."""

    def _convert(self, value: object) -> str | None:
        plain = isinstance(value, str | int | float | Mapping | None)
        return super()._convert(value if plain else object_name(value))


@source("own")
@dataclass(frozen=True, kw_only=True)
class Own(LabeledSource):
    """Your own code: a function that returns pairs of an image and its target, or a map-style torch Dataset."""

    train: str = setting(
        Code(
            required=True,
            doc="training data: module.name of a function, Dataset class, Dataset or list",
            reach=IMPORTS,
        )
    )
    val: str | None = setting(
        Code(optional=True, doc="validation data, likewise; null: with val_fraction or folds", reach=IMPORTS)
    )
    options: Mapping[str, Any] | None = setting(
        OptionMap(optional=True, doc="arguments of both data.train and data.val")
    )
    train_options: Mapping[str, Any] | None = setting(OptionMap(optional=True, doc="further arguments of data.train"))
    val_options: Mapping[str, Any] | None = setting(OptionMap(optional=True, doc="further arguments of data.val"))
    classes: str | None = setting(
        Text(
            optional=True,
            doc="file with one class name per line; null: the Dataset's classes, else the labels themselves",
        )
    )
    workers: int = setting(
        Count(
            default=0,
            within=(0, 1024),
            doc="processes that read items of each split, each with a Dataset of its own; 0: a thread",
        )
    )
    skip_bad: bool = setting(SKIP_BAD)
    max_bad: int = setting(MAX_BAD)

    # Distinguish 1 and True, which are equal but different arguments; and objects of the same name.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and repr(self) == repr(other) and self.objects() == other.objects()

    def __hash__(self) -> int:
        return hash(repr(self))

    def load(self) -> Dataset:
        """Make both sequences and determine their targets, if necessary by reading every item once."""
        dataset = self.unchecked()
        # Images that a Dataset makes are checked when they are read, unless it matters before.
        only = [
            name
            for name, split in (("train", dataset.train), ("val", dataset.val))
            if len(split)
            # Copies must be known before val is cut from train.
            and (
                self.skip_bad
                or self.cuts_val
                or isinstance(split.files[0], Path)
                or getattr(split.files[0], "is_listed", False)
            )
        ]
        return check_images(
            dataset,
            f"{Path.cwd()} {self}",
            skip_bad=self.skip_bad,
            max_bad=self.max_bad,
            only=only,
            only_val=self.only_val,
        )

    def unchecked(self) -> Dataset:
        """Load without leaving out images that cannot be decoded."""
        # Not at the top: it imports PyTorch, which other sources do not need.
        from augment.data.own.reader import read_own

        if self.workers and any(self.objects()):
            raise UserError(
                f"data.workers={self.workers}: but other processes cannot import the given objects. Allowed: 0; or a "
                "function or class of a module, which makes a Dataset in each process."
            )
        factories = [self._factory(key.removeprefix("data."), name) for key, name in self.given().items()]
        dataset = read_own(factories, self.target_options())
        same = self.train == self.val and len(set(self.objects())) == 1
        if len(self.given()) == 2 and same and self._arguments("train") == self._arguments("val"):
            logger.warning(
                "data.val: is made as data.train is, by %s with the same arguments: the model is validated "
                "on what it learns, unless these are drawn at random", self.train,
            )  # fmt: skip
        return dataset

    def own_code(self) -> tuple[object, ...]:
        """Return what data.train and data.val name now: a cell that was run again, or `reload`, may have changed it."""
        return tuple(map(find_imported, self.given().values()))

    def objects(self) -> list[int | None]:
        """Return what distinguishes the objects that were given in place of names for data.train and data.val."""
        return [id(name.found) if isinstance(name, ObjectName) else None for name in (self.train, self.val)]

    def _arguments(self, split: str) -> dict[str, Any]:
        return {**(self.options or {}), **(getattr(self, f"{split}_options") or {})}

    def _factory(self, split: str, name: str) -> SequenceFactory:
        keys = ("options", f"{split}_options")
        options = {f"data.{key}": getattr(self, key) or {} for key in keys}
        return SequenceFactory(f"data.{split}", name, json.dumps(options), self.workers)
