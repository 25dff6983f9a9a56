"""Kinds of targets, such as classes and boxes. Each kind is a module of this folder and registers itself."""

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
from augment.support.errors import UserError
from augment.support.lazy_torch import Tensor

# The target of an image. Its kind defines the type, which is hashable.
Target = Any


@dataclass(frozen=True)
class Kind(ABC):
    """A kind of targets. All instances of one class are equal.

    Attributes:
        noun: the meaning of a name in `Dataset.classes`, such as "class".
        units: the plural noun for targets, such as "classes".
        task: the value of data.task. This task trains on the kind unless a source chooses another task.
        follows: whether targets follow the pixels of the image, see `augment.data.targets.spatial`.
        cuts_each: whether each class with several images has images in both splits. If false, all images of a small
            stratum (see `strata`) may be in one split.
        many_strata: whether most strata have only one or two images. Then `take_fraction` takes a share of all images
            together, not of each stratum.
        unrepeated: targets that a repeating border leaves out, such as "boxes". Empty: all are repeated.
        balances: the allowed values of data.balance.
    """

    noun: ClassVar[str]
    units: ClassVar[str]
    task: ClassVar[str]
    follows: ClassVar[bool] = False
    cuts_each: ClassVar[bool] = False
    many_strata: ClassVar[bool] = False
    unrepeated: ClassVar[str] = ""
    balances: ClassVar[tuple[str, ...]] = ("none",)

    @property
    def learned(self) -> Kind:
        """The kind for targets that go to a loss."""
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
            UserError: a label is invalid. The message names it.
        """

    @abstractmethod
    def fault(self, targets: Sequence[object], names: int) -> str:
        """Describe the first target that is not of this kind, or return "". `names` is the number of names."""

    def collate(self, targets: Sequence[Target]) -> Tensor:
        """Return targets of whole images as a tensor, (N, ...)."""
        raise NotImplementedError

    def shares(self, targets: Tensor, names: int) -> Tensor:
        """Return a batch of targets of whole images as float32 rows, (N, K), which can be mixed."""
        raise NotImplementedError

    def caption(self, target: Any, names: Sequence[str]) -> str:
        """Return a target, or a row of mixed targets, in words.

        Args:
            target: a number, or a list of numbers.
            names: names of the classes, labels or numbers. They may be empty.
        """
        raise NotImplementedError

    def blank(self, names: int) -> Target:
        """Return a target for images without a target."""
        raise NotImplementedError

    def is_empty(self, target: Target) -> bool:
        """Whether the target is known to hold no object."""
        return False

    def target_of(self, text: str, names: Sequence[str], where: str) -> Target:
        """Return the target that a label in a corrections file names. `where` is the row, for messages.

        Raises:
            UserError: the text names no target.
        """
        raise UserError(f"{where}: {self.units} cannot be changed. Allowed: action drop or keep.")

    def present(self, target: Target) -> Sequence[int]:
        """Return the indices of an image's classes or labels."""
        return ()

    def strata(self, targets: Sequence[Target]) -> NDArray[np.int64]:
        """Return the stratum of each image, (N,). Folds and fractions have about the same share of every stratum."""
        return np.zeros(len(targets), np.int64)

    def loss_weights(self, targets: Sequence[Target], names: int) -> NDArray[np.float64]:
        """Return the weights of classes or labels in the loss, (K,), for data.balance=weights."""
        return np.ones(names)


K = TypeVar("K", bound=Kind)

_KINDS: dict[str, Kind] = {}


def register(kind: K) -> K:
    _KINDS[kind.task] = kind
    return kind


@cache
def known_kinds() -> Mapping[str, Kind]:
    """Import the modules of this folder and return the kinds by their tasks."""
    for file in sorted(Path(__file__).parent.glob("[!_]*.py")):
        import_module(f"{__package__}.{file.stem}")
    # Sorted, so that the order does not depend on which module was imported first.
    return MappingProxyType(dict(sorted(_KINDS.items())))
