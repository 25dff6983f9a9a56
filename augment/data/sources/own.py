"""The source whose images come from a user's own code."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from augment.data.dataset import Dataset
from augment.data.own.factory import ObjectName, SequenceFactory, object_name
from augment.data.sources.registry import FLIP_PAIRS, CheckedSource, LabeledSource, source
from augment.data.targets.kind import known_kinds
from augment.params import IMPORTS, PASSES, Choice, Count, Flag, OptionMap, Text, setting
from augment.support.errors import UserError


class Code(Text):
    """The name of something that can be imported; a program may give the object itself."""

    def _convert(self, value: object) -> str | None:
        plain = isinstance(value, str | int | float | Mapping | None)
        return super()._convert(value) if plain else object_name(value)


@source("own")
@dataclass(frozen=True, kw_only=True)
class Own(CheckedSource, LabeledSource):
    """Your own code: a function that returns pairs of an image and its target, or a map-style torch Dataset."""

    train: str = setting(
        Code(required=True, doc="training data: module.name of a function, Dataset, its class, or list", reach=IMPORTS)
    )
    val: str | None = setting(
        Code(optional=True, doc="validation data, likewise; null: with val_fraction or folds", reach=IMPORTS)
    )
    options: Mapping[str, Any] | None = setting(
        OptionMap(optional=True, doc="arguments of both data.train and data.val", reach=PASSES)
    )
    train_options: Mapping[str, Any] | None = setting(
        OptionMap(optional=True, doc="further arguments of data.train", reach=PASSES)
    )
    val_options: Mapping[str, Any] | None = setting(
        OptionMap(optional=True, doc="further arguments of data.val", reach=PASSES)
    )
    task: str | None = setting(
        Choice(optional=True, options=tuple(known_kinds()), doc="what the targets are; null: inferred from labels")
    )
    instances: bool = setting(Flag(default=False, doc="with data.task=detect: targets have masks, (K, height, width)"))
    flip_pairs: tuple[tuple[str, str], ...] | None = setting(FLIP_PAIRS)
    workers: int = setting(
        Count(default=0, within=(0, 1024), doc="processes with a Dataset each that read items of a split; 0: a thread")
    )

    def load(self) -> Dataset:
        """Make both sequences and determine their targets, if necessary by reading every item once."""
        # Not at the top: it imports PyTorch, which other sources do not need.
        from augment.data.own.reader import read_own, read_spatial

        if self.workers and any(isinstance(name, ObjectName) for name in self.given().values()):
            raise UserError(
                f"data.workers={self.workers}: but other processes cannot import the given objects. Allowed: 0; or a "
                "function or class of a module, which makes a Dataset in each process."
            )
        made = []
        for key, name in self.given().items():
            further = {"data.options": self.options, f"{key}_options": getattr(self, f"{key[5:]}_options")}
            given = json.dumps({setting: values or {} for setting, values in further.items()})
            made.append(SequenceFactory(key, name, given, self.workers))
        same = len(made) == 2 and (repr(self.train), self.train_options) == (repr(self.val), self.val_options)
        options = self.target_options()
        follows = self.kind is not None and self.kind.follows
        read = partial(read_spatial, with_masks=self.instances, flip_pairs=self.flip_pairs) if follows else read_own
        return read(made, options).noting(
            f"data.val: is made as data.train is, by {self.train} with the same arguments: the model is validated "
            "on what it learns, unless these are drawn at random"
            if same
            else ""
        )

    def must_check(self, dataset: Dataset) -> Collection[str]:
        """Return the splits of files or lists; images that a Dataset makes are checked when they are read.

        Unless it matters before: bad ones are left out, or copies are kept on one side of a cut.
        """
        early = self.skip_bad or self.cuts_val
        first = {"train": dataset.train.files[:1], "val": dataset.val.files[:1]}
        images = [(name, image) for name, files in first.items() for image in files]
        return [name for name, i in images if early or isinstance(i, Path) or getattr(i, "is_listed", False)]

    # Distinguish 1 and True, which are equal but different arguments; and objects of the same name.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))
