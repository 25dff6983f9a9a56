"""Find images that become unreadable during a run, and replace them by readable ones."""

import logging
import re
from collections.abc import Mapping, Sequence

import numpy as np

from augment.data.check import check_files
from augment.data.dataset import Split
from augment.data.image_refs import ImageRef, known_of
from augment.data.images import name_of, portable_name
from augment.support.errors import UserError
from augment.support.formatting import amount, list_some
from augment.support.seeds import derive_seed
from augment.support.user_code import reject_in_op


class UnreadableImageError(UserError):
    """Raised when an image or its target becomes unreadable.

    The cause is a system error, or an error in a user's own code.
    """

    def __init__(self, image: ImageRef, error: OSError | UserError) -> None:
        if isinstance(error, OSError):
            where = f" ({error.filename})" if error.filename else ""
            reason = f"cannot be read any more: {error.strerror or error}{where}"
            message = f"data: {name_of(image)} {reason}."
        else:
            reason = f"fails: {str(error).rstrip('.')}"
            message = str(error)
        super().__init__(message)
        self.faults = {image: reason}


class BadImages:
    """Tracks the unreadable images of a split, and chooses the images that replace them.

    Attributes:
        stand_ins: for the index of each unreadable image, the index of its replacement.
    """

    def __init__(self, split: Split) -> None:
        self._split = split
        self.restore({})

    def restore(self, stand_ins: Mapping[int, int]) -> None:
        """Restore saved `stand_ins`, and replace the images that the split lists as unreadable.

        Raises:
            UserError: there are more unreadable images than `Split.max_bad` allows.
        """
        self.stand_ins: dict[int, int] = dict(stand_ins)
        bad = known_of(self._split.files, {image.file: image.reason for image in self._split.bad})
        if bad:
            self._add({self._split.files[index]: reason for index, reason in bad.items()})

    def replace(self, error: RuntimeError | UnreadableImageError) -> None:
        """Find the unreadable images that caused a pipeline's error, and replace them.

        Raises:
            UserError: there are more unreadable images than `Split.max_bad` allows.
            OwnCodeError: the error comes from a user's op.
            RuntimeError: the given error, if no image caused it.
        """
        reject_in_op(error)
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
                "data.skip_bad=true: %s %s. From now on, %s replaces it (%d of data.max_bad=%d).",
                name_of(file), fault, name_of(files[self.stand_ins[files.index(file)]]), count, self._split.max_bad,
            )  # fmt: skip

    def _add(self, faults: Mapping[ImageRef, str], error: Exception | None = None) -> int:
        """Choose a replacement for each unreadable image. Return the number of unreadable images.

        The choice depends on which images are unreadable, but not on the order in which they are found.
        """
        files, targets = self._split.files, self._split.targets
        shown = list_some((f"{name_of(file)} {fault}" for file, fault in faults.items()), separator="; ")
        bad = faults.keys() | {files[index] for index in self.stand_ins}
        if bad and not self._split.max_bad:
            raise UserError(f"data: an image became unreadable: {shown}. Repair or remove it.") from error
        if len(bad) > self._split.max_bad:
            raise UserError(
                f"data.max_bad={self._split.max_bad}: {amount(len(bad), 'image')} became unreadable during training, "
                f"last {shown}. Repair them, or increase data.max_bad."
            ) from error
        good = np.ones(len(files), np.bool_)
        good[list(known_of(files, dict.fromkeys(bad)))] = False
        if not good.any():
            raise UserError(f"data: no readable image is left: {shown}. Repair the images.") from error
        for index in np.flatnonzero(~good).tolist():
            if index in self.stand_ins and good[self.stand_ins[index]]:
                continue
            same_target = np.array([target == targets[index] for target in targets])
            candidates = np.flatnonzero(same_target) if (good & same_target).any() else np.arange(len(files))
            key = derive_seed("stand-in", portable_name(files[index]), index)
            order = np.random.Generator(np.random.Philox(key=key)).permutation(candidates)
            self.stand_ins[index] = int(order[good[order]][0])
        return len(bad)


def find_bad(error: RuntimeError, images: Sequence[ImageRef]) -> dict[ImageRef, str]:
    """Return the fault of each unreadable image, if DALI's error is about reading or decoding an image."""
    text = str(error)
    is_of_images = re.search(r"fn\.(readers\.file|io\.file|decoders\.)", text)
    is_of_memory = re.search(r"out of memory|bad_alloc|\bCUDA\b", text)
    # DALI's message names the operator, but rarely the file, so check all images.
    return check_files(images) if is_of_images and not is_of_memory else {}
