"""A user's own sequence of pictures with targets: its items, read one at a time and ahead of their use.

Their code is never called twice at a time: a Dataset need not be safe against threads. It runs in a thread beside the
one that trains, which Pillow's decoding does not hold up, for it lets go of the interpreter's lock, while Python of
their own does; or in processes, each with a sequence of its own.
"""

import multiprocessing
import os
import signal
from collections.abc import Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from itertools import islice
from threading import Lock, Thread
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from augment.check import find_fault
from augment.errors import UserError
from augment.own.named import Named, describe, described
from augment.own.pixels import ALLOWED, Given, take
from augment.stored import as_ppm

# Items that a thread or process is asked for at a time: asking takes as long as reading a small picture.
_TOGETHER = 32

Loaded = NDArray[np.uint8] | bytes


class Items:
    """The items of a user's sequence, pairs of a picture and its target.

    In another process it is the sequence that is made there by the same name.

    Args:
        named: what makes it.

    Raises:
        UserError: nothing of that name does, or it fails.
    """

    def __init__(self, named: Named) -> None:
        self.named = named
        self.sequence = named.make()
        self._lock = Lock()
        self._starting = Lock()  # the next pass may be prepared while one goes on
        self._readers: Executor | None = None

    def __len__(self) -> int:
        return len(self.sequence)

    def __reduce__(self) -> tuple[object, ...]:
        return made, (self.named,)

    def pair(self, index: int) -> tuple[object, object]:
        """Return an item.

        Raises:
            UserError: it cannot be read, or is no pair.
        """
        try:
            with self._lock:
                item = self.sequence[index]
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{self.named.what}: item {index}: {described(error)}") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise self.error(index, f"is {describe(item)}. Allowed: a pair, (picture, target).")
        return item[0], item[1]

    def given(self, index: int, *, decoded: bool | None = None) -> Given:
        """Return a picture.

        Args:
            index: of the item.
            decoded: whether it is to be; None: as it is.

        Raises:
            UserError: it is none, or of the other kind.
        """
        return self.given_of(self.pair(index)[0], index, decoded=decoded)

    def given_of(self, picture: object, index: int, *, decoded: bool | None = None) -> Given:
        """Return the picture that an item has; see `given`."""
        found = take(picture)
        if isinstance(found, str):
            raise self.error(index, f"has for a picture {found}. Allowed: {ALLOWED}.")
        if decoded is not None and found.decoded != decoded:
            kinds = ("decoded", "encoded") if decoded else ("encoded", "decoded")
            raise self.error(
                index, f"has a picture that is {kinds[1]}; that of item 0 is {kinds[0]}. Allowed: all alike."
            )
        return found

    def load(self, index: int, *, decoded: bool) -> Loaded:
        """Return a picture's pixels, (height, width, 3), or its bytes, which were looked at.

        Raises:
            UserError: there is no such picture, or it cannot be decoded.
        """
        found = self.given(index, decoded=decoded)
        if found.pixels is not None:
            return found.pixels
        try:
            encoded = found.read()
        except OSError as error:
            raise self.error(index, f"cannot be read: {error.strerror or error}: {found.path}.") from None
        if fault := find_fault(BytesIO(encoded)):
            where = f" ({found.path})" if found.path else ""
            raise self.error(index, f"has a picture{where} that {fault}.")
        return encoded

    def begin(self, indices: Mapping[int, int], *, decoded: bool) -> "list[Future[dict[int, Loaded]]]":
        """Have pictures loaded in the background, see `load`; each is found by the key of its index."""
        together = min(_TOGETHER, -(-len(indices) // max(1, self.named.workers)))
        left = iter(indices.items())
        return [self._submit(some, decoded) for some in iter(lambda: dict(islice(left, together)), {})]

    def end(self) -> None:
        """End the thread or the processes that read in the background; they are begun anew where they are needed."""
        with self._starting:
            if self._readers is not None:
                self._readers.shutdown(cancel_futures=True)
            self._readers = None

    def error(self, index: int, text: str) -> UserError:
        """Return an error about an item."""
        return UserError(f"{self.named.key}: item {index} of {self.named.name} {text}")

    def _submit(self, indices: Mapping[int, int], decoded: bool) -> "Future[dict[int, Loaded]]":
        whose = self.named if self.named.workers else self
        with self._starting:
            if self._readers is not None:
                with suppress(BrokenExecutor):  # one was killed, in a run before this one
                    return self._readers.submit(_load, whose, indices, decoded)
            self._readers = self._make_readers()
            _READING.add(self)
            return self._readers.submit(_load, whose, indices, decoded)

    def _make_readers(self) -> Executor:
        if not self.named.workers:
            return ThreadPoolExecutor(1, "items")
        # Processes of their own making: a copy of this one could hold a lock of a thread that it has not.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.named.workers, context, initializer=_start_worker)


# Those that have, or had, a thread or processes that read.
_READING: WeakSet[Items] = WeakSet()


def end_readers() -> None:
    """End all threads and processes that read items in the background, see `Items.end`; nobody may wait for one."""
    for items in list(_READING):
        items.end()


@dataclass(frozen=True, slots=True)
class ItemPicture:
    """An encoded picture of a user's sequence.

    Attributes:
        items: the sequence.
        index: the item's place in it.
    """

    items: Items
    index: int

    @property
    def name(self) -> str:
        """Name of what makes the sequence and place, "my_data.train[17]"."""
        return f"{self.items.named.name}[{self.index}]"

    def read(self) -> bytes:
        """Return the encoded picture.

        Raises:
            OSError: its file cannot be read.
        """
        return self.items.given(self.index, decoded=False).read()

    @classmethod
    def begin(cls, pictures: "Mapping[int, ItemPicture]") -> "list[Future[dict[int, Loaded]]]":
        """Have pictures read in the background; each is found by its key."""
        indices: dict[Items, dict[int, int]] = {}
        for key, picture in pictures.items():
            indices.setdefault(picture.items, {})[key] = picture.index
        decoded = issubclass(cls, DecodedItem)
        return [future for items, some in indices.items() for future in items.begin(some, decoded=decoded)]


@dataclass(frozen=True, slots=True)
class DecodedItem(ItemPicture):
    """A picture of a user's sequence that comes decoded."""

    def read_pixels(self) -> NDArray[np.uint8]:
        """Return (height, width, 3)."""
        pixels = self.items.given(self.index, decoded=True).pixels
        assert pixels is not None
        return pixels

    def read(self) -> bytes:
        """Return the picture as PPM."""
        return as_ppm(self.read_pixels())

    def prove(self) -> None:
        """Read it.

        Raises:
            UserError: there is no such picture.
        """
        self.read_pixels()


@cache
def made(named: Named) -> Items:
    """Return the items of a sequence, made once in a process."""
    return Items(named)


def _load(whose: Items | Named, indices: Mapping[int, int], decoded: bool) -> dict[int, Loaded]:
    items = whose if isinstance(whose, Items) else made(whose)
    return {key: items.load(index, decoded=decoded) for key, index in indices.items()}


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that trains
    # One that was killed does not say good-bye, and its workers would wait for ever.
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
