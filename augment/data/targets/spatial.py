"""Targets that follow the pixels of the image, such as masks, boxes and keypoints.

Pixel centers have integer coordinates. The edges of an image are at -0.5 and at its width - 0.5. Box edges are defined
as in COCO and torchvision: [0, 0, width, height] is the whole image. Subtract 0.5 to get pixel coordinates.
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

# The label of pixels that losses and metrics ignore.
IGNORE = 255


@dataclass(frozen=True)
class Rules:
    """Rules for targets at the edges of the output.

    Attributes:
        min_visible: minimum visible share of a box. Boxes below it are dropped.
        min_area: minimum visible area of a box in square pixels. Boxes below it are dropped. 0 in validation.
        fill_label: mask label for filled areas.
    """

    min_visible: float
    min_area: float
    fill_label: int


class StoredMask(Protocol):
    """A mask that is read when it is needed. It is hashable and picklable, and its `str` identifies it in the dataset.

    A mask that may change has an attribute `kept = False`. It is read again in each pass.
    """

    @property
    def name(self) -> str:
        """The name for messages."""

    def read(self) -> NDArray[np.uint8]:
        """Return the label of each pixel of the stored image, (height, width). `IGNORE` means no label.

        Raises:
            UserError: the mask cannot be read. The message names it.
        """


class Digested:
    """Base class of objects that are compared, hashed and printed by a digest of their contents."""

    @abstractmethod
    def digested(self) -> Iterator[bytes]:
        """Yield the contents as bytes."""

    @cached_property
    def _digest(self) -> str:
        digest = blake2b(digest_size=8)
        for part in self.digested():
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
        pastes: whether an image may show parts of several samples, as with cutmix.
        blends: whether it may show several samples at the same position, as with mixup.
    """

    follows = True
    pastes: ClassVar[bool] = False
    blends: ClassVar[bool] = False

    def read(
        self, splits: Sequence[LabeledSplit], options: TargetOptions
    ) -> tuple[tuple[str, ...], list[tuple[Target, ...]]]:
        """Reject labels.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"data.task={self.task} needs {self.units}, but this source has image-level labels. Use another "
            "source or task."
        )

    def load(self, target: Target) -> Any:
        """Read what `follow` needs of a target. Threads call this ahead of time.

        Raises:
            UserError: a file cannot be read or is invalid. The message names it.
        """
        return target

    def stored(self, target: Target) -> StoredMask | None:
        """Return the mask that `load` reads, or None."""
        return None

    @abstractmethod
    def follow(self, loaded: Sequence[Any], motion: BatchMotion, rules: Rules) -> Any:
        """Move the targets of a batch like the pixels. `loaded` has the result of `load` for each sample."""

    @abstractmethod
    def draw(self, drawing: Drawing, target: Any, names: Sequence[str]) -> None:
        """Draw the target of one sample, taken from a batch, on its image."""

    @abstractmethod
    def from_memory(self, targets: Any, count: int) -> list[Any]:
        """Convert the targets of `count` images in memory to results of `load`.

        Raises:
            UserError: the targets have the wrong form.
        """


def check_array(array: object, shape: tuple[int | None, ...], what: str, allowed: str) -> NDArray[Any]:
    """Convert numbers to an array and check its shape.

    Args:
        array: an array, a tensor or lists. An empty list stands for an empty array.
        shape: the shape. None stands for any length.
        what: the name of the array, for messages.
        allowed: the form that the message asks for.

    Raises:
        UserError: the array has the wrong shape, or does not hold numbers.
    """
    try:
        found = np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
    except (TypeError, ValueError):
        found = np.empty(0, object)
    if found.shape == (0,):
        found = found.reshape(0, *(n or 0 for n in shape[1:]))
    fits = found.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, found.shape, strict=True))
    if found.dtype.kind not in "biuf" or not fits:
        raise UserError(f"{what}: {found.shape} {found.dtype} is not allowed. Use {allowed}.")
    return found


def fault_of_shares(positions: NDArray[Any], what: str) -> str:
    """Describe coordinates that are probably shares of the image's sides, or return an empty string."""
    if (positions > 1).any() or not ((positions > 0) & (positions < 1)).any():  # NaN may mark missing points
        return ""
    return f"{what} whose coordinates are at most 1, so they are probably shares of the image's sides. Use pixels."
