"""The source whose pictures come from a user's own code."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augment.dataset import Dataset
from augment.own.named import Named
from augment.params import Count, Options, Text, setting
from augment.sources.leak import warn_of_leak
from augment.sources.registry import (
    SKIP_BAD,
    LabeledSource,
    source,
)

logger = logging.getLogger(__name__)


@source("own")
@dataclass(frozen=True, kw_only=True)
class Own(LabeledSource):
    """Your own code: a function that returns pairs of a picture and its target, or a map-style torch Dataset."""

    train: str = setting(
        Text(required=True, doc="what to learn from: module.name of a function, Dataset class, Dataset or list")
    )
    val: str = setting(Text(required=True, doc="what to be scored on, likewise"))
    options: Mapping[str, Any] | None = setting(Options(optional=True, doc="arguments of both, by name"))
    train_options: Mapping[str, Any] | None = setting(Options(optional=True, doc="further arguments of data.train"))
    val_options: Mapping[str, Any] | None = setting(Options(optional=True, doc="further arguments of data.val"))
    classes: str | None = setting(
        Text(
            optional=True, doc="file with a class name a line; null: the Dataset's classes, else the labels themselves"
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

    # 1 and True are equal, and other arguments.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def load(self) -> Dataset:
        """Call both, and learn the targets: those that a Dataset has beforehand, or else by reading every item once."""
        return self._read(checked=True)

    def unchecked(self) -> Dataset:
        """As `load`, but with the pictures that cannot be decoded."""
        return self._read(checked=False)

    def _read(self, *, checked: bool) -> Dataset:
        # Not at the top: it takes PyTorch, for which a program that reads other pictures should not wait.
        from augment.own.read import read_own

        dataset = read_own(
            self._named("train"),
            self._named("val"),
            task=self.asked(),
            classes=self.class_names(),
            offset=self.label_offset,
            targets=self.targets,
            skip_bad=self.skip_bad,
            checked=checked,
        )
        if self.train == self.val and self._arguments("train") == self._arguments("val"):
            logger.warning(
                "data.val: is made as data.train is, by %s with the same arguments: the model is scored on what it "
                "learns, unless these are drawn at random", self.train,
            )  # fmt: skip
        else:
            learned, scored = (
                [p for p in split.files if isinstance(p, Path)] for split in (dataset.train, dataset.val)
            )
            warn_of_leak(learned, scored, "pictures")
        return dataset

    def _arguments(self, split: str) -> dict[str, Any]:
        return {**(self.options or {}), **(getattr(self, f"{split}_options") or {})}

    def _named(self, split: str) -> Named:
        keys = ("options", f"{split}_options")
        options = {f"data.{key}": getattr(self, key) or {} for key in keys}
        return Named(f"data.{split}", getattr(self, split), json.dumps(options), self.workers)
