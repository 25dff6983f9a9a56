"""What the targets of images are. A kind of target is one module of this folder, with one registration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from augment.data.targets.class_names import LabeledSplit, TargetOptions
from augment.support.lazy_torch import Tensor

# The target of an image, as its kind has it; hashable.
Target = Any


@dataclass(frozen=True)
class Kind(ABC):
    """A kind of target. All objects of a kind are equal.

    Attributes:
        noun: what a name in `Dataset.classes` stands for, as "class".
        units: what the targets of images are, in the plural.
        task: the task that trains on it, unless a source names another one; the value of data.task.
        follows: whether it follows the pixels of the image, see `augment.data.targets.spatial`.
        cuts_each: whether a class with several images has some on either side of a cut; else groups are cut together.
        many_groups: whether most groups have an image or two, so that a share is one of all, not of each.
        unrepeated: what is missing where a border repeats parts of the image, as "boxes"; empty: nothing.
        balances: the values of data.balance that it allows.
    """

    noun: ClassVar[str]
    units: ClassVar[str]
    task: ClassVar[str]
    follows: ClassVar[bool] = False
    cuts_each: ClassVar[bool] = False
    many_groups: ClassVar[bool] = False
    unrepeated: ClassVar[str] = ""
    balances: ClassVar[tuple[str, ...]] = ("none",)

    @property
    def learned(self) -> Kind:
        """The kind as a loss takes its targets."""
        return self

    @abstractmethod
    def read(
        self, splits: Sequence[LabeledSplit], options: TargetOptions
    ) -> tuple[tuple[str, ...], list[tuple[Target, ...]]]:
        """Return the names of classes, labels or numbers, and the targets of each split.

        Args:
            splits: train with its labels, and val if there is one.
            options: the settings about targets.

        Raises:
            UserError: a label does not fit; the message names it and says why.
        """

    @abstractmethod
    def fault(self, targets: Sequence[object], names: int) -> str:
        """Return what is wrong if one of the targets is not of this kind, given the number of names; else nothing."""

    def collate(self, targets: Sequence[Target]) -> Tensor:
        """Return targets of whole images as a tensor whose first dimension is theirs."""
        raise NotImplementedError

    def shares(self, targets: Tensor, names: int) -> Tensor:
        """Return a batch of targets of whole images as rows of float32, (N, K), which can be mixed."""
        raise NotImplementedError

    def caption(self, target: Any, names: Sequence[str]) -> str:
        """Return a target, or a row of mixed ones, in words.

        Args:
            target: a number, or a list of numbers.
            names: names of the classes, labels or numbers; may be empty.
        """
        raise NotImplementedError

    def blank(self, names: int) -> Target:
        """Return a target for images without one."""
        raise NotImplementedError

    def is_empty(self, target: Target) -> bool:
        """Whether an image is known to have nothing to learn from."""
        return False

    def present(self, target: Target) -> Sequence[int]:
        """Return the classes or labels that an image has, as indices."""
        return ()

    def strata(self, targets: Sequence[Target]) -> NDArray[np.int64]:
        """Return the number of the group of each image; folds and shares have as much of each, as far as possible."""
        return np.zeros(len(targets), np.int64)

    def loss_weights(self, targets: Sequence[Target], names: int) -> NDArray[np.float64]:
        """Return the weights of classes or labels in the loss, (K,), with data.balance=weights."""
        return np.ones(names)


K = TypeVar("K", bound=Kind)

_KINDS: dict[str, Kind] = {}


def register(kind: K) -> K:
    """Register a kind under its task."""
    _KINDS[kind.task] = kind
    return kind


@cache
def known_kinds() -> Mapping[str, Kind]:
    """Return a read-only view of the registry, task -> kind, with what the modules of this folder register."""
    for file in sorted(Path(__file__).parent.glob("[!_]*.py")):
        import_module(f"{__package__}.{file.stem}")
    return MappingProxyType(_KINDS)
