"""Prefetches files that hold many images, such as remote shards, before their batches are read."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from augment.data.formats.records import Opened, RecordFile, close_files

_MAX_DOWNLOADS = 4  # number of parallel downloads, each in a process of 70 MB or more

_Asked = SimpleQueue[tuple[RecordFile, Future[Opened]] | None]


class EpochFiles(NamedTuple):
    """The files that an epoch reads, in the order of their first images."""

    files: NDArray[np.int32]  # the numbers of the files
    first: NDArray[np.int64]  # the position of each file's first image in the epoch
    last: NDArray[np.int64]  # the position of each file's last image in the epoch


class Stream:
    """Downloads the files of the next window. Holds the files of upcoming batches open, so that they stay on the disk.

    Args:
        images: the images of a split, each with its `file`.
        window: number of files that are shuffled together.

    Attributes:
        numbers: the number of each image's file, (N,). Files are numbered in the order of their first images.
    """

    def __init__(self, images: Sequence[Any], window: int) -> None:
        known: dict[int, int] = {}
        self.numbers = np.array([known.setdefault(id(image.file), len(known)) for image in images], np.int32)
        self._files = [images[index].file for index in np.unique(self.numbers, return_index=True)[1].tolist()]
        self.window = window
        self._stay = all(file.stays for file in self._files)
        self._held: dict[int, Future[Opened]] = {}
        self._stopped, self._asked = Event(), _Asked()
        # Use daemon threads. When Python exits, it would wait for the threads of an executor, and for their downloads.
        for _ in range(0 if self._stay else _MAX_DOWNLOADS):
            Thread(target=_open, args=(self._asked, self._stopped), name="shards", daemon=True).start()
        finalize(self, _stop, self._asked, self._stopped)

    def epoch_files(self, order_of: Callable[[int], NDArray[np.int32]], epoch: int) -> EpochFiles:
        """Return the files that an epoch uses. `order_of` returns the indices of an epoch's images, (N,), in order."""
        files = self.numbers[order_of(epoch)]
        found, first = np.unique(files, return_index=True)
        last = len(files) - 1 - np.unique(files[::-1], return_index=True)[1]
        by_use = np.argsort(first)
        return EpochFiles(found[by_use], first[by_use], last[by_use])

    def move(self, files_of: Callable[[int], EpochFiles], epoch: int, start: int, stop: int) -> None:
        """Wait for the files of images `start` to `stop` of an epoch. Request the next files, and free other files.

        Raises:
            UserError: a file cannot be downloaded.
        """
        if self._stay:
            return
        files, first, last = files_of(epoch)
        begun = int(np.searchsorted(first, stop))
        ended = int(np.count_nonzero(last[:begun] < start))
        ahead = min(begun, ended + self.window) + self.window  # at most two windows, unless a batch needs more
        now = files[:begun][last[:begun] >= start].tolist()
        wanted = now + files[begun:ahead].tolist()
        if ahead > len(files):
            wanted += files_of(epoch + 1).files[: ahead - len(files)].tolist()
        if gone := self._held.keys() - set(wanted):
            for number in gone:
                self._held.pop(number).cancel()
            close_files()
        for number in wanted:
            if number not in self._held:
                self._held[number] = Future()
                self._asked.put((self._files[number], self._held[number]))
        for number in now:
            self._held[number].result()

    def release(self) -> None:
        while self._held:
            self._held.popitem()[1].cancel()


def _open(asked: _Asked, stopped: Event) -> None:
    """Open requested files in a thread. A request of None ends the thread."""
    while (found := asked.get()) is not None:
        file, future = found
        if not stopped.is_set() and future.set_running_or_notify_cancel():
            try:
                future.set_result(Opened(file, stopped))
            except BaseException as error:
                future.set_exception(error)
        del found, file, future  # a reference would keep the file open while the thread waits


def _stop(asked: _Asked, stopped: Event) -> None:
    stopped.set()
    for _ in range(_MAX_DOWNLOADS):
        asked.put(None)
