"""Targets in the image, such as masks, boxes and points: they follow its pixels.

Pixel centers are at integers; an image's edges lie at -0.5 and at its width - 0.5. Boxes are given by their edges, as
COCO and torchvision have them: [0, 0, width, height] is a whole image. In pixels, an edge is 0.5 less.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from augment.data.targets.class_names import LabeledSplit, TargetOptions
from augment.data.targets.kind import Kind, Target
from augment.support.errors import UserError

if TYPE_CHECKING:
    from augment.drawing.target_overlays import Drawing
    from augment.pipeline.geometry.motion import BatchMotion

# The label of pixels that no loss and no metric looks at.
IGNORE = 255


@dataclass(frozen=True)
class Rules:
    """What becomes of targets at the edges of the output.

    Attributes:
        min_visible: a box is dropped if less than this share of it is inside.
        min_area: a box is dropped if less of it is inside, in square pixels.
        fill_label: the label of a mask where the image is filled.
    """

    min_visible: float
    min_area: float
    fill_label: int


class StoredMask(Protocol):
    """A mask that is read when it is needed; hashable and picklable. `str` of it is its identity in the data set.

    One that may be another each time has an attribute `kept`, False: it is read again in each pass.
    """

    @property
    def name(self) -> str:
        """The name for messages."""

    def read(self) -> NDArray[np.uint8]:
        """Return the label of each pixel of the image as it is stored, (height, width), `IGNORE` for none.

        Raises:
            UserError: it cannot be read; the message names it.
        """


class Digested:
    """What is equal, hashes and is a string by a digest of its parts."""

    @abstractmethod
    def parts(self) -> Iterator[bytes]:
        """Yield the parts."""

    @cached_property
    def _digest(self) -> str:
        digest = blake2b(digest_size=8)
        for part in self.parts():
            digest.update(part)
        return digest.hexdigest()

    def __str__(self) -> str:
        return self._digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)


class SpatialKind(Kind):
    """A kind of target that follows the pixels of its image.

    Attributes:
        pastes: whether an image may show parts of several samples, as cutmix makes them.
        blends: whether it may show several in one place, as mixup does.
    """

    follows = True
    pastes: ClassVar[bool] = False
    blends: ClassVar[bool] = False

    def read(
        self, splits: Sequence[LabeledSplit], options: TargetOptions
    ) -> tuple[tuple[str, ...], list[tuple[Target, ...]]]:
        """Refuse labels.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"data.task={self.task}: needs {self.units}, and this source has labels or numbers for whole images."
        )

    def load(self, target: Target) -> Any:
        """Return what `follow` needs of a target; files are read here, in threads, ahead of time.

        Raises:
            UserError: a file cannot be read, or does not fit; the message names it.
        """
        return target

    def stored(self, target: Target) -> StoredMask | None:
        """Return the mask that `load` reads, if there is one."""
        return None

    @abstractmethod
    def follow(self, loaded: Sequence[Any], motion: BatchMotion, rules: Rules) -> Any:
        """Return the targets of a batch, of (N,) of what `load` returns, as they are in the outputs."""

    @abstractmethod
    def draw(self, drawing: Drawing, target: Any, names: Sequence[str]) -> None:
        """Draw the targets of an image, as a batch has them, on it."""

    @abstractmethod
    def given(self, targets: Any, count: int) -> list[Any]:
        """Return targets in memory, of `count` images, as `load` returns them.

        Raises:
            UserError: they are of another form.
        """


def check_array(array: object, shape: tuple[int | None, ...], what: str, allowed: str) -> NDArray[Any]:
    """Return numbers as an array of a shape, whose `None` stand for any length; no numbers may come as an empty list.

    Raises:
        UserError: they have another shape, or are no numbers.
    """
    try:
        found = np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
    except (TypeError, ValueError):
        found = np.empty(0, object)
    if found.shape == (0,):
        found = found.reshape(0, *(n or 0 for n in shape[1:]))
    fits = found.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, found.shape, strict=True))
    if found.dtype.kind not in "biuf" or not fits:
        raise UserError(f"{what}: {found.shape} {found.dtype}. Allowed: {allowed}.")
    return found
