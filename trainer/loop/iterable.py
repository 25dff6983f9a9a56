"""Batches from any iterable of `(images, targets)`, such as PyTorch's `DataLoader`."""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from operator import length_hint
from typing import Any

import torch
from torch import Tensor

from augment.pipeline.batch import Batch
from augment.support.errors import UserError

log = logging.getLogger(__name__)


class IterableLoader:
    """Makes batches of an iterable, and moves them to the device.

    A pass ends when the iterable does. Its length is unknown until then, unless the iterable has one. A resumed fit
    starts the iterable again, as nothing can return to a position within it.
    """

    plan = None

    def __init__(self, batches: Iterable[Any], device: torch.device) -> None:
        self._batches, self._device = batches, device
        self._length: int | None = None
        self.classes = tuple(map(str, getattr(getattr(batches, "dataset", None), "classes", ())))

    def __len__(self) -> int:
        try:
            return len(self._batches)  # type: ignore[arg-type]
        except TypeError:
            return sys.maxsize if self._length is None else self._length

    def batches_in(self, epoch: int) -> int:
        """Return the number of batches, which is the same in all epochs; very large if it is unknown."""
        return len(self)

    def images_in(self, epoch: int, first: int, batches: int) -> int:
        """Return the number of images in consecutive batches; without a known batch size, each batch counts as one."""
        size = getattr(self._batches, "batch_size", None) or 1
        try:
            total = len(self._batches.dataset)  # type: ignore[attr-defined]
        except (AttributeError, TypeError):
            total = (first + batches) * size
        return max(1, min((first + batches) * size, total) - first * size)

    def __iter__(self) -> Iterator[Batch]:
        number = 0
        for given in self._batches:
            yield self._batch(given)
            number += 1
        if not number:
            raise UserError("data: the iterable yields no batches. Give one that can be iterated over once per epoch.")
        self._length = number

    def _batch(self, given: Any) -> Batch:
        if isinstance(given, Batch):
            return given
        images = given[0] if isinstance(given, tuple | list) and len(given) == 2 else None
        views = tuple(images) if isinstance(images, tuple | list) else (images,)
        if not views or not all(isinstance(view, Tensor) for view in views):
            raise UserError(
                f"data: the iterable yields {type(given).__name__}, not pairs of images and targets. Yield "
                "`(images, targets)`, with images as a tensor, or as a list of tensors for several views."
            )
        if not views[0].is_floating_point():
            raise UserError(f"data: the iterable yields images of {views[0].dtype}. Convert and normalize them first.")
        moved = tuple(self._move(view) for view in views)
        indices = torch.full((len(moved[0]),), -1, device=self._device)
        return Batch(moved[0], self._move(given[1]), indices, views=moved if len(moved) > 1 else ())

    def _move(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self._device, non_blocking=True)
        if isinstance(value, Mapping):
            return {name: self._move(one) for name, one in value.items()}
        return [self._move(one) for one in value] if isinstance(value, tuple | list) else value

    def prepare(self) -> None:
        """Do nothing: the iterable begins when it is iterated over."""

    end_pass = close = prepare

    def state_dict(self) -> dict[str, Any]:
        """Return no position."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start with the first batch."""


def as_loader(given: Any, name: str, device: torch.device) -> Any:
    """Return a loader of this project as it is, and anything else that can be iterated over as a loader.

    Raises:
        UserError: it cannot be iterated over.
    """
    if given is None or hasattr(given, "batches_in"):
        return given
    if not hasattr(given, "__iter__"):
        allowed = "a loader of augment.make_loader, or an iterable of (images, targets), such as a DataLoader"
        raise UserError(f"{name}: {type(given).__name__} is not allowed. Allowed: {allowed}.")
    if name == "train_loader":
        if length_hint(given, 1) == 0:
            raise UserError("train_loader: it is empty. Give one with at least one batch.")
        log.warning("train_loader: a fit that is resumed within an epoch starts this iterable again.")
    return IterableLoader(given, device)
