"""Detect files that are replaced while a run reads them, by size and modification time."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import ImageRef

logger = logging.getLogger(__name__)


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
