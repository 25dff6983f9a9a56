"""Batches from any iterable of `(images, targets)`, such as PyTorch's `DataLoader`."""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Reads batches from an iterable, and moves them to the device.

    A pass ends when the iterable ends. The length of an iterable without `len` is unknown until then. If an iterable
    has fewer batches than its `len`, later passes expect this smaller number. A resumed fit starts the iterable again,
    because it cannot restore a position within it.

    Args:
        batches: the iterable.
        device: the device of images and targets.
        accumulate: training batches per step. The weight of each batch is its share of the step's images. So all
            batches of a step are read before the first is used.
    """

    plan = None

    def __init__(self, batches: Iterable[Any], device: torch.device, accumulate: int = 1) -> None:
        self._batches, self._device = batches, device
        self._length: int | None = None
        self.classes = tuple(map(str, getattr(getattr(batches, "dataset", None), "classes", ())))
        self._read_ahead = accumulate
        self._start_epoch()

    def _start_epoch(self) -> None:
        self._first = self._images_before = 0  # index of the current step's first batch, and images before it
        self._sizes: list[int] = []  # images in the batches of the current step
        self._taken = 0  # batches of the epoch that were handed out
        self._resumes = False

    def __len__(self) -> int:
        try:
            length = len(self._batches)  # type: ignore[arg-type]
        except TypeError:
            length = sys.maxsize
        return length if self._length is None else min(length, self._length)

    def batches_in(self, epoch: int) -> int:
        """Return the number of batches, which is the same in all epochs. If it is unknown, return `sys.maxsize`."""
        return len(self)

    def images_in(self, epoch: int, first: int, batches: int) -> int:
        """Return the number of images in consecutive batches of the current epoch.

        `first` must be 0 or in the current step, and the last batch must be in the current step.
        """
        return max(1, self._images_until(first + batches) - self._images_until(first))

    def _images_until(self, batch: int) -> int:
        return self._images_before + sum(self._sizes[: batch - self._first]) if batch else 0

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self._batches)
        if not self._resumes:
            self._start_epoch()
        elif self._length is not None:
            batches = islice(batches, self._length - self._taken)
        self._resumes = False
        while True:
            if len(self._sizes) == self._read_ahead:
                self._first += len(self._sizes)
                self._images_before += sum(self._sizes)
                self._sizes = []
            step_batches = list(islice(batches, self._read_ahead - len(self._sizes)))
            if not step_batches:
                break
            self._sizes += map(_size_of, step_batches)
            if len(self._sizes) < self._read_ahead:  # the iterable has ended within this step
                self._length = self._first + len(self._sizes)
            for given in step_batches:
                self._taken += 1
                yield self._batch(given)
        self._length = self._taken
        if not self._taken:
            raise UserError(
                "data: the iterable yields no batches. Pass an iterable that starts again each epoch, not a generator."
            )

    def _batch(self, given: Any) -> Batch:
        if isinstance(given, Batch):
            return given
        moved = tuple(self._move(view) for view in _views_of(given))
        indices = torch.full((len(moved[0]),), -1, device=self._device)
        # Each rank has its own iterable. The batch sizes of other ranks are unknown, so all ranks get the same share.
        share = 1 / current().size
        return Batch(moved[0], self._move(given[1]), indices, share=share, views=moved if len(moved) > 1 else ())

    def _move(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self._device, non_blocking=True)
        if isinstance(value, Mapping):
            return {name: self._move(one) for name, one in value.items()}
        return [self._move(one) for one in value] if isinstance(value, tuple | list) else value

    def prepare(self) -> None:
        """Do nothing. The iterable starts when the pass starts."""

    def end_pass(self) -> None:
        """Make the next pass a new epoch."""
        self._resumes = False

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of this epoch and the length, without a position in the iterable."""
        sizes = self._sizes[: self._taken - self._first]
        return {"first": self._first, "images_before": self._images_before, "sizes": sizes, "length": self._length}

    def load_state_dict(self, state: Mapping[str, Any], of_ranks: Sequence[Mapping[str, Any]] = ()) -> None:
        """Restore the counts. The next pass counts as the rest of the saved epoch, but starts the iterable again."""
        self._first, self._images_before = state.get("first", 0), state.get("images_before", 0)
        self._sizes, self._length = list(state.get("sizes", ())), state.get("length")
        self._taken = self._first + len(self._sizes)
        self._resumes = True


def _size_of(given: Any) -> int:
    return len(given) if isinstance(given, Batch) else len(_views_of(given)[0])


def _views_of(given: Any) -> tuple[Tensor, ...]:
    """Return the views of the images in a batch.

    Raises:
        UserError: the batch is not a pair of float images and targets.
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
    """Return a loader: the given one, or one that reads the given iterable.

    Raises:
        UserError: the given object cannot be iterated over.
    """
    if given is None or hasattr(given, "batches_in"):
        return given
    if not hasattr(given, "__iter__"):
        allowed = "a loader from augment.make_loader, or an iterable of (images, targets), such as a DataLoader"
        raise UserError(f"{name}: {type(given).__name__} is not allowed. Pass {allowed}.")
    if name == "train_loader":
        if length_hint(given, 1) == 0:
            raise UserError("train_loader: the iterable is empty. Pass at least one batch.")
        log.warning("train_loader: a fit that resumes within an epoch starts this iterable from its first batch.")
    return IterableLoader(given, device, accumulate)
