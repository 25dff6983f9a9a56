"""Prefetch the items of the user's sequence of images with targets.

The user's code runs in a background thread, or in processes, each with its own sequence. Calls never overlap, because a
Dataset need not be thread-safe. A thread is enough for Pillow's decoding, which releases the GIL. Other Python code in
a thread delays the training loop.

These readers outlive a loader. PyTorch's DataLoader would start its processes again for each validation pass.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from os import PathLike
from pathlib import Path
from threading import Lock, RLock
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from augment.data.formats.raster_files import is_channels_first
from augment.data.image_faults import DECODER_ERRORS, find_fault
from augment.data.images import ImageError, as_ppm, to_rgb
from augment.data.own.factory import SequenceFactory, describe, errors_of
from augment.params.param_types import MAX_CHANNELS
from augment.params.pixel_format import DTYPES
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.files import expanded, read_file
from augment.support.nested import chunks
from augment.support.signals import ignore_in_worker, shield_children

T = TypeVar("T")

Loaded = NDArray[Any] | bytes

ALLOWED_IMAGES = (
    "a path, encoded bytes, a Pillow image, an array (height, width, channels) or a tensor (channels, height, width)"
)


# An image from the user: its file, its encoded bytes, or its pixels, (height, width, channels).
UserImage = Path | bytes | NDArray[Any]


def convert_image(value: object) -> UserImage:
    """Convert the user's image to one of three types.

    Raises:
        ValueError: the value is not an image. The message describes it.
    """
    if isinstance(value, np.ndarray):  # checked first, because it is the most frequent type
        return _of_array(value, describe(value), channels=2)
    if path := as_path(value):
        return path
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Image.Image):
        if value.mode.startswith(("I", "F")) or 0 in value.size:
            raise ValueError(
                f"a Pillow image of mode {value.mode}, {value.width} x {value.height} pixels, instead of 8 bits per "
                "channel"
            )
        try:
            return np.asarray(to_rgb(value))
        except DECODER_ERRORS as error:  # Pillow reads pixels only when they are needed
            raise ValueError(f"a Pillow image that cannot be read: {error or type(error).__name__}") from error
    if isinstance(value, torch.Tensor):
        # torchvision's images have their channels first.
        return _of_array(value.detach().cpu().numpy(), f"a tensor {tuple(value.shape)}", channels=0)
    raise ValueError(describe(value))


def as_path(value: object) -> Path | None:
    return expanded(value) if isinstance(value, str | PathLike) else None


def _of_array(value: NDArray[Any], shown: str, *, channels: int) -> UserImage:
    """Convert an array. `channels` is its axis of channels, if it has three axes."""
    if value.dtype == np.uint8 and value.ndim == 1 and len(value):
        return value.tobytes()
    pixels = value
    if value.ndim == 2:
        pixels = value[..., None]
    elif value.ndim == 3:
        pixels = np.moveaxis(value, channels, 2)
    is_normalized = value.dtype.kind == "f" and channels == 0 and pixels.shape[-1] in (1, 3)
    if value.dtype.name not in DTYPES or pixels.ndim != 3 or is_normalized:
        why = ". Remove ToTensor and Normalize, which the `aug` section replaces" if value.dtype.kind == "f" else ""
        raise ValueError(f"{shown} of {value.dtype}{why}")
    if not (pixels.size and pixels.shape[2] <= MAX_CHANNELS) or is_channels_first(pixels.shape):
        raise ValueError(f"{shown} of {value.dtype}")
    if value.dtype == np.uint8 and pixels.shape[2] == 1:
        pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    return np.array(pixels, order="C")  # a copy, because the next item may be written to the same memory


class Items:
    """The items of the user's sequence, pairs of an image and its target.

    A process that unpickles this object creates its own sequence with the same factory.

    Raises:
        UserError: the factory fails.
    """

    def __init__(self, factory: SequenceFactory) -> None:
        self.factory = factory
        self.sequence = factory.make()
        self.stored_as: tuple[int, str] | None = None  # channels and data type of decoded images
        self._lock = RLock()
        self._starting = Lock()  # the next pass may begin in another thread
        self._readers: Executor | None = None

    def __len__(self) -> int:
        return len(self.sequence)

    def __reduce__(self) -> tuple[object, ...]:
        return items_of, (self.factory,)

    def pair(self, index: int) -> tuple[object, object]:
        """Return the image and the target of an item.

        Raises:
            UserError: the item cannot be read, or is not a pair.
        """
        with errors_of(self.factory.what, lambda: f"item {index}: "), self._lock:
            item = self.sequence[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise self.error(index, f"is {describe(item)}. Return a pair, (image, target).")
        return item[0], item[1]

    def pairs(self) -> Iterator[tuple[int, object, object]]:
        """Yield the index, image and target of each item, with a progress bar."""
        with progress_bar(quiet=len(self) <= 1000) as progress:
            for index in progress.track(range(len(self)), description=f"Reading {self.factory.name}"):
                yield index, *self.pair(index)

    def read(self, index: int, read: Callable[[object, object], T]) -> T:
        """Call a function with an image and its target, before another item may overwrite their memory."""
        with self._lock:
            return read(*self.pair(index))

    def image_at(self, index: int, *, decoded: bool) -> UserImage:
        """Return an image.

        Raises:
            UserError: the item is not an image, or is not stored as `decoded` states.
        """
        with self._lock:
            found = self.as_image(self.pair(index)[0], index)
        if isinstance(found, np.ndarray) != decoded:
            this, first = ("an encoded", "a decoded") if decoded else ("a decoded", "an encoded")
            raise self.error(index, f"has {this} image, but item 0 has {first} one. Encode all images, or none.")
        return found

    def as_image(self, image: object, index: int) -> UserImage:
        """Convert the image of an item, see `convert_image`."""
        try:
            return convert_image(image)
        except ValueError as error:
            raise self.error(index, f"has {error} as its image. Allowed: {ALLOWED_IMAGES}.") from None

    def image_class(self, first: object) -> "type[ItemImage]":
        """Return the class of the images, given the first image. Set `stored_as`."""
        found = self.as_image(first, 0)
        if not isinstance(found, np.ndarray):
            return ItemImage
        self.stored_as = found.shape[2], found.dtype.name
        return DecodedItem

    def load(self, index: int, *, decoded: bool) -> Loaded:
        """Return an image's pixels, (height, width, channels), or its checked bytes.

        Raises:
            UserError: the image is missing, or cannot be decoded.
        """
        found = self.image_at(index, decoded=decoded)
        if isinstance(found, np.ndarray):
            return found
        try:
            encoded = read_file(found) if isinstance(found, Path) else found
        except OSError as error:
            raise self.error(index, f"cannot be read: {error.strerror or error}: {error.filename}.") from None
        if fault := find_fault(BytesIO(encoded)):
            raise self.error(index, f"has an image{f' ({found})' if isinstance(found, Path) else ''} that {fault}.")
        return encoded

    def end(self) -> None:
        """End the thread or the processes that read in the background. They start again when needed."""
        with self._starting:
            if self._readers is not None:
                self._readers.shutdown(cancel_futures=True)
            self._readers = None

    def error(self, index: int, text: str) -> UserError:
        return UserError(f"{self.factory.key}: item {index} of {self.factory.name} {text}")

    def submit(self, indices: Mapping[int, int], *, decoded: bool) -> "Future[dict[int, Loaded]]":
        """Load images in the background, see `load`. `indices` maps keys of the result to items."""
        workers = self.factory.workers
        with self._starting, shield_children():  # submitting starts the processes
            if self._readers is None and workers:
                # Spawned: a fork could inherit a lock that another thread holds.
                context = multiprocessing.get_context("spawn")
                self._readers = ProcessPoolExecutor(workers, context, initializer=ignore_in_worker)
            elif self._readers is None:
                self._readers = ThreadPoolExecutor(1, "items")
            _WITH_READERS.add(self)
            return self._readers.submit(_load, self.factory if workers else self, indices, decoded)


# All items that have started readers.
_WITH_READERS: WeakSet[Items] = WeakSet()


def end_readers() -> None:
    """End all threads and processes that read items in the background. No caller may be waiting for their results."""
    for items in list(_WITH_READERS):
        items.end()


@dataclass(frozen=True, slots=True)
class ItemImage:
    """An encoded image of the user's sequence."""

    items: Items
    index: int

    @property
    def name(self) -> str:
        """The name of the factory and the index, such as "my_data.train[17]"."""
        return f"{self.items.factory.name}[{self.index}]"

    @property
    def stored_as(self) -> tuple[int, str] | None:
        """The channels and the data type of decoded images, without reading one again."""
        return self.items.stored_as

    @property
    def is_listed(self) -> bool:
        """Whether the items are a list in memory."""
        return isinstance(self.items.sequence, list | tuple)

    def read(self) -> bytes:
        """Return the encoded image.

        Raises:
            OSError: the image's file cannot be read.
        """
        found = self.items.image_at(self.index, decoded=False)
        return read_file(found) if isinstance(found, Path) else bytes(found)

    @classmethod
    def begin(cls, images: "Mapping[int, ItemImage]") -> "list[Future[dict[int, Loaded]]]":
        """Read images of one sequence in the background. The results have the same keys."""
        items, decoded = next(iter(images.values())).items, issubclass(cls, DecodedItem)
        # A request takes as long as reading a small image, so a request reads up to 32 images.
        most = min(32, -(-len(images) // max(1, items.factory.workers)))
        indices = [(key, image.index) for key, image in images.items()]
        return [items.submit(dict(chunk), decoded=decoded) for chunk in chunks(indices, most)]


@dataclass(frozen=True, slots=True)
class DecodedItem(ItemImage):
    """A decoded image of the user's sequence."""

    def read_pixels(self) -> NDArray[Any]:
        """Return (height, width, channels)."""
        return np.asarray(self.items.image_at(self.index, decoded=True))

    def read(self) -> bytes:
        """Return the image as PPM."""
        return as_ppm(self.read_pixels())


@cache
def items_of(factory: SequenceFactory) -> Items:
    """Return the items of a sequence, which is created once per process."""
    return Items(factory)


def _load(whose: Items | SequenceFactory, indices: Mapping[int, int], decoded: bool) -> dict[int, Loaded]:
    items = whose if isinstance(whose, Items) else items_of(whose)
    loaded: dict[int, Loaded] = {}
    for key, index in indices.items():
        try:
            loaded[key] = items.load(index, decoded=decoded)
        except UserError as error:
            raise ImageError(key, str(error)) from error
    return loaded
