"""Images that could be read when a run began, but no longer can: find them, and let others stand in for them."""

import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import numpy as np

from augment.data.check import check_files
from augment.data.dataset import Split
from augment.data.image_refs import ImageRef, known_of
from augment.data.images import name_of, portable_name
from augment.support.errors import UserError
from augment.support.formatting import amount, list_some
from augment.support.seeds import derive_seed
from augment.support.user_code import refuse_in_op


class UnreadableImageError(UserError):
    """An image that can no longer be read, by an error of the system or of a user's own code."""

    def __init__(self, image: ImageRef, error: OSError | UserError) -> None:
        reason = f"fails: {str(error).rstrip('.')}"
        if isinstance(error, OSError):
            where = f" ({error.filename})" if error.filename else ""
            reason = f"cannot be read any more: {error.strerror or error}{where}"
        self.faults = {image: reason}
        super().__init__(f"data: {name_of(image)} {reason}." if isinstance(error, OSError) else str(error))


class BadImages:
    """The images of a split that turn out bad while it is read."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self.restore({})

    def restore(self, stand_ins: Mapping[int, int]) -> None:
        """Restore saved `stand_ins`; let others stand in for the images that were bad from the beginning, too.

        Raises:
            UserError: `Split.max_bad` does not allow it.
        """
        # The index of each bad image, and that of the good one with the same target that replaces it.
        self.stand_ins: dict[int, int] = dict(stand_ins)
        bad = known_of(self._split.files, {image.file: image.reason for image in self._split.bad})
        if bad:
            self._add({self._split.files[index]: reason for index, reason in bad.items()})

    def replace(self, error: RuntimeError | UnreadableImageError) -> None:
        """Let good images stand in for those that an error of a pipeline that reads or decodes is about.

        Raises:
            UserError: `Split.max_bad` does not allow it.
            OwnCodeError: the error is that of a user's op, whose message DALI puts between its own.
            RuntimeError: the error, if it is not about images.
        """
        refuse_in_op(error)
        files = self._split.files
        if isinstance(error, UnreadableImageError):
            faults = error.faults
        else:
            known = {files[index] for index in self.stand_ins}
            faults = find_bad(error, [file for file in files if file not in known])
        if not faults:
            raise error
        if not self._split.max_bad and isinstance(error, UnreadableImageError):
            raise UserError(str(error)) from error
        count = self._add(faults, error)
        for file, fault in faults.items():
            logging.getLogger(__name__).warning(
                "data.skip_bad=true: %s %s; from now on %s stands in for it (%d of data.max_bad=%d)",
                name_of(file), fault, name_of(files[self.stand_ins[files.index(file)]]), count, self._split.max_bad,
            )  # fmt: skip

    def _add(self, faults: Mapping[ImageRef, str], error: Exception | None = None) -> int:
        """Let good images stand in for bad ones, if `Split.max_bad` allows it; return the number of all bad images.

        The choice depends on which images are bad, not on the order in which they are found.
        """
        files, most = self._split.files, self._split.max_bad
        shown = list_some((f"{name_of(file)} {fault}" for file, fault in faults.items()), separator="; ")
        bad = faults.keys() | {files[index] for index in self.stand_ins}
        if bad and not most:
            raise UserError(f"data: an image turned out bad: {shown}. Repair or remove it.") from error
        if len(bad) > most:
            raise UserError(
                f"data.max_bad={most}: {amount(len(bad), 'image')} turned out bad during training, last {shown}. "
                "Repair them, or allow more."
            ) from error
        good = np.ones(len(files), np.bool_)
        good[list(known_of(files, dict.fromkeys(bad)))] = False
        if not good.any():
            raise UserError(f"data: no image is left that can be read: {shown}.") from error
        targets = self._split.targets
        for index in np.flatnonzero(~good).tolist():
            if index in self.stand_ins and good[self.stand_ins[index]]:
                continue
            same = np.array([target == targets[index] for target in targets])
            candidates = np.flatnonzero(same) if (good & same).any() else np.arange(len(files))
            key = derive_seed("stand-in", portable_name(files[index]), index)
            order = np.random.Generator(np.random.Philox(key=key)).permutation(candidates)
            self.stand_ins[index] = int(order[good[order]][0])
        return len(bad)


def find_bad(error: RuntimeError, images: Sequence[ImageRef]) -> dict[ImageRef, str]:
    """Find the images that an error of DALI is about, by checking all; return none if all are good."""
    text = str(error)  # DALI names the operator that failed, but seldom the file
    if not re.search(r"fn\.(readers\.file|decoders\.)", text) or re.search(r"out of memory|bad_alloc|\bCUDA\b", text):
        return {}
    return check_files(images)


_PATIENCE_S = 5.0

# The images of the loaders that wait for a batch, and since when, by the number of the wait.
_waiting: dict[object, tuple[float, Sequence[ImageRef]]] = {}
_watching: set[int] = set()  # processes with a thread that watches them


@contextmanager
def no_pipes(images: Sequence[ImageRef]) -> Iterator[None]:
    """Keep DALI from waiting for a named pipe that replaced an image. DALI then reads an empty file and fails."""
    if os.getpid() not in _watching:
        _watching.add(os.getpid())
        Thread(target=_watch, daemon=True).start()
    wait = object()
    _waiting[wait] = monotonic(), images
    try:
        yield
    finally:
        del _waiting[wait]


def _watch() -> None:
    while True:
        sleep(_PATIENCE_S)
        for since, images in list(_waiting.values()):
            for image in images if monotonic() - since > _PATIENCE_S else ():
                with suppress(OSError):
                    if isinstance(image, Path) and stat.S_ISFIFO(image.stat().st_mode):
                        os.open(image, os.O_RDWR | os.O_NONBLOCK)  # stays open, so that nobody waits for it again
