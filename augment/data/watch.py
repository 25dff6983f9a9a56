"""Detect files and folders that change, by size and modification time."""

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import ImageRef

logger = logging.getLogger(__name__)

_DEPTH = 2  # the folders of classes, in those of splits


def state_of(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return name, size and time of change of files and folders, and of the folders down to `_DEPTH` below them."""
    found: list[tuple[str, int, int]] = []
    for below in range(_DEPTH + 1):
        inside: list[Path] = []
        for path in paths:
            with suppress(OSError, ValueError):  # not a path, or one that is gone
                stat = os.stat(path)
                is_folder = S_ISDIR(stat.st_mode)
                found.append((str(path), 0 if is_folder else stat.st_size, stat.st_mtime_ns))
                if is_folder and below < _DEPTH:  # the lowest may hold a million images
                    with os.scandir(path) as entries:
                        inside += [Path(entry.path) for entry in entries if entry.is_dir()]
        paths = sorted(inside)
    return found


class Watch:
    """Checks the files of a split from time to time, in the background, and compares them with the first check.

    Args:
        images: the images; only those that are files of their own are watched.
    """

    def __init__(self, images: Sequence[ImageRef]) -> None:
        self._files = [image for image in dict.fromkeys(images) if isinstance(image, Path)]
        self._first: NDArray[np.int64] | None = None
        self._named: set[Path] = set()
        self._thread: Thread | None = None

    def look(self) -> None:
        """Check all files in the background, and log each one that was replaced, once.

        Returns immediately, and does nothing while the previous check is still running.
        """
        if self._files and (self._thread is None or not self._thread.is_alive()):
            self._thread = Thread(target=self._compare, name="watch", daemon=True)
            self._thread.start()

    def ignore(self, image: ImageRef) -> None:
        """Do not log a file from now on."""
        if isinstance(image, Path):
            self._named.add(image)

    def wait(self) -> None:
        """Wait until the check has ended."""
        if self._thread is not None:
            self._thread.join()

    def changed(self) -> list[Path]:
        """Return the files that have changed or disappeared since the first check."""
        if self._first is None:
            return []
        return [self._files[index] for index in np.flatnonzero((self._states() != self._first).any(axis=1))]

    def _compare(self) -> None:
        if self._first is None:
            self._first = self._states()
            return
        for file in self.changed():
            if file not in self._named and file.exists():
                self._named.add(file)
                logger.warning("data: %s was replaced during training; epochs differ from here on", file)

    def _states(self) -> NDArray[np.int64]:
        """Return the size and modification time of each file, (N, 2); 0 if it is gone."""
        states = np.zeros((len(self._files), 2), np.int64)
        for index, file in enumerate(self._files):
            try:
                status = os.stat(file)
            except OSError:
                continue
            states[index] = status.st_size, status.st_mtime_ns
        return states
