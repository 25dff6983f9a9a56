"""The source `own`, whose images come from the user's code."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augment.data.dataset import Dataset
from augment.data.images import encoded_ref
from augment.data.own.factory import ObjectName, SequenceFactory, object_name
from augment.data.sources.registry import FLIP_PAIRS, CheckedSource, LabeledSource, Source, source
from augment.data.targets.kind import known_kinds
from augment.params import IMPORTS, PASSES, Choice, Count, Flag, OptionMap, Text, setting
from augment.support.errors import UserError


class Code(Text):
    """The name of an object to import, or in Python the object itself."""

    def _convert(self, value: object) -> str | None:
        plain = isinstance(value, str | int | float | Mapping | None)
        return super()._convert(value) if plain else object_name(value)


@source("own")
@dataclass(frozen=True, kw_only=True)
class Own(CheckedSource, LabeledSource):
    """Your own code: a function that returns pairs of an image and its target, or a map-style PyTorch Dataset."""

    train: str = setting(
        Code(
            required=True,
            doc="training data: `module.name` of a function, a Dataset, a Dataset class or a list",
            reach=IMPORTS,
        )
    )
    val: str | None = setting(
        Code(optional=True, doc="validation data, as for train. Not needed with val_fraction or folds", reach=IMPORTS)
    )
    options: Mapping[str, Any] | None = setting(
        OptionMap(optional=True, doc="arguments of data.train, data.val and data.test", reach=PASSES)
    )
    train_options: Mapping[str, Any] | None = setting(
        OptionMap(optional=True, doc="further arguments of data.train", reach=PASSES)
    )
    val_options: Mapping[str, Any] | None = setting(
        OptionMap(optional=True, doc="further arguments of data.val", reach=PASSES)
    )
    test: str | None = setting(Code(optional=True, doc="test data, as for train", reach=IMPORTS))
    test_options: Mapping[str, Any] | None = setting(
        OptionMap(optional=True, doc="further arguments of data.test", reach=PASSES)
    )
    task: str | None = setting(
        Choice(optional=True, options=tuple(known_kinds()), doc="kind of targets. Default: inferred from labels")
    )
    instances: bool = setting(Flag(default=False, doc="with data.task=detect: targets have masks, (K, height, width)"))
    flip_pairs: tuple[tuple[str, str], ...] | None = setting(FLIP_PAIRS)
    workers: int = setting(
        Count(
            default=0,
            within=(0, 1024),
            doc="processes that read items of a split, each with its own Dataset. 0: a thread of the training process",
        )
    )

    def load(self) -> Dataset:
        """Create the sequence of each split, and determine its targets, if necessary by reading every item once."""
        from augment.data.own.reader import read_own, read_spatial  # imports PyTorch, which other sources do not need

        if self.workers and any(isinstance(name, ObjectName) for name in self.split_values().values()):
            raise UserError(
                f"data.workers={self.workers}: worker processes cannot import the given objects. Set data.workers=0, "
                "or name a function or class of a module, which each process can call."
            )
        factories = []
        for key, name in self.split_values().items():
            arguments = {"data.options": self.options, f"{key}_options": getattr(self, f"{key[5:]}_options")}
            as_json = json.dumps({setting: values or {} for setting, values in arguments.items()})
            factories.append(SequenceFactory(key, name, as_json, self.workers))
        options = self.target_options()
        if self.kind is not None and self.kind.follows:
            dataset = read_spatial(factories, options, with_masks=self.instances, flip_pairs=self.flip_pairs)
        else:
            dataset = read_own(factories, options)
        if len(factories) == 2 and (repr(self.train), self.train_options) == (repr(self.val), self.val_options):
            dataset = dataset.noting(
                f"data.val is {self.train} with the same arguments as data.train. Unless {self.train} is random, "
                "the model is validated on its training images"
            )
        return dataset

    def must_check(self, dataset: Dataset) -> Collection[str]:
        """Return the splits of files or lists. The images of a Dataset are checked when they are read.

        They are checked earlier if bad images are skipped, or if copies must stay in one split.
        """
        early = self.skip_bad or self.cuts_val or self.test_fraction is not None
        files = {"train": dataset.train.files, "val": dataset.val.files}
        first = {name: encoded_ref(images[0]) for name, images in files.items() if len(images)}
        return [
            name for name, ref in first.items() if early or isinstance(ref, Path) or getattr(ref, "is_listed", False)
        ]

    of_folder = Source.of_folder

    # Compare by repr, because 1 and True are equal but different arguments, and objects may share a name.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))
