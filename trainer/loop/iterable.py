"""Batches from any iterable of `(images, targets)`, such as PyTorch's `DataLoader`."""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import length_hint
from typing import Any

import torch
from torch import Tensor

from augment.pipeline.batch import Batch
from augment.support.errors import UserError
from trainer.loop.ranks import current

log = logging.getLogger(__name__)


class IterableLoader:
    """Makes batches from an iterable, and moves them to the device.

    A pass ends when the iterable ends. An iterable without `len` has an unknown length until then. A resumed fit starts
    the iterable again, because a position within it cannot be restored.

    Args:
        batches: the iterable.
        device: where to put images and targets.
        accumulate: training batches per step. Unless a `DataLoader` tells their sizes, all batches of a step are read
            before the first one is used, because each batch counts by its share of their images.
    """

    plan = None

    def __init__(self, batches: Iterable[Any], device: torch.device, accumulate: int = 1) -> None:
        self._batches, self._device = batches, device
        self._length: int | None = None
        self._sizes: list[int] = []  # images in the batches of this pass
        self._resumes = False
        self.classes = tuple(map(str, getattr(getattr(batches, "dataset", None), "classes", ())))
        self._batch_size: Any = getattr(batches, "batch_size", None)
        self._sampler: Any = getattr(batches, "sampler", None)
        self._sizes_are_known = self._batch_size is not None and hasattr(self._sampler, "__len__")
        self._read_ahead = 1 if self._sizes_are_known else accumulate

    def __len__(self) -> int:
        try:
            return len(self._batches)  # type: ignore[arg-type]
        except TypeError:
            return sys.maxsize if self._length is None else self._length

    def batches_in(self, epoch: int) -> int:
        """Return the number of batches, which is the same in all epochs; very large if it is unknown."""
        return len(self)

    def images_in(self, epoch: int, first: int, batches: int) -> int:
        """Return the number of images in consecutive batches of the current epoch, up to those of the current step."""
        if not self._sizes_are_known:
            return sum(self._sizes[first : first + batches])
        size: int = self._batch_size
        return min((first + batches) * size, len(self._sampler)) - first * size

    def __iter__(self) -> Iterator[Batch]:
        if not self._resumes:
            self._sizes = []
        self._resumes = False
        batches = iter(self._batches)
        while True:
            missing = self._read_ahead - len(self._sizes) % self._read_ahead
            of_step = list(islice(batches, missing))
            self._sizes += map(_size_of, of_step)
            is_over = len(of_step) < missing
            if is_over:
                self._length = len(self._sizes)
            yield from map(self._batch, of_step)
            if is_over:
                break
        if not self._sizes:
            raise UserError("data: the iterable yields no batches. Give one that can be iterated over once per epoch.")

    def _batch(self, given: Any) -> Batch:
        if isinstance(given, Batch):
            return given
        moved = tuple(self._move(view) for view in _views_of(given))
        indices = torch.full((len(moved[0]),), -1, device=self._device)
        # Each rank has its own iterable. Without the sizes of the others, all of them count alike.
        share = 1 / current().size
        return Batch(moved[0], self._move(given[1]), indices, share=share, views=moved if len(moved) > 1 else ())

    def _move(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self._device, non_blocking=True)
        if isinstance(value, Mapping):
            return {name: self._move(one) for name, one in value.items()}
        return [self._move(one) for one in value] if isinstance(value, tuple | list) else value

    def prepare(self) -> None:
        """Do nothing: the iterable begins when it is iterated over."""

    close = prepare

    def end_pass(self) -> None:
        """Start the next pass as a new epoch."""
        self._resumes = False

    def state_dict(self) -> dict[str, Any]:
        """Return the sizes of the batches that were read in this epoch, but no position in the iterable."""
        return {"sizes": list(self._sizes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start with the first batch, as the rest of the saved epoch."""
        self._sizes, self._resumes = list(state.get("sizes", ())), True


def _size_of(given: Any) -> int:
    return len(given) if isinstance(given, Batch) else len(_views_of(given)[0])


def _views_of(given: Any) -> tuple[Tensor, ...]:
    """Return the views of a batch's images.

    Raises:
        UserError: it is not a pair of images and targets.
    """
    images = given[0] if isinstance(given, tuple | list) and len(given) == 2 else None
    views = tuple(images) if isinstance(images, tuple | list) else (images,)
    if not views or not all(isinstance(view, Tensor) for view in views):
        raise UserError(
            f"data: the iterable yields {type(given).__name__}, not pairs of images and targets. Yield "
            "`(images, targets)`, with images as a tensor, or as a list of tensors for several views."
        )
    if not views[0].is_floating_point():
        raise UserError(f"data: the iterable yields images of {views[0].dtype}. Convert and normalize them first.")
    return views


def as_loader(given: Any, name: str, device: torch.device, accumulate: int = 1) -> Any:
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
    return IterableLoader(given, device, accumulate)
