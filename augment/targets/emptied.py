"""Classes and labels whose last picture was left out, because it cannot be decoded."""

import logging

import numpy as np

from augment.dataset import Dataset, Split
from augment.errors import UserError

logger = logging.getLogger(__name__)

_SHOWN = 5


def note_emptied(before: Dataset, after: Dataset) -> Dataset:
    """Say in the log which classes or labels have lost all their pictures of a split; return the second dataset.

    Args:
        before: with all pictures.
        after: without those that were left out.

    Raises:
        UserError: no class of val is in train any more.
    """
    if after.task == "regress":
        return after
    for name, all_of_it, rest in (("train", before.train, after.train), ("val", before.val, after.val)):
        lost = sorted(_there(all_of_it) - _there(rest)) if len(rest) < len(all_of_it) else []
        if lost:
            listed = ", ".join(after.classes[place] for place in lost[:_SHOWN])
            more = f" and {len(lost) - _SHOWN:,} more" if len(lost) > _SHOWN else ""
            logger.warning(
                "data.skip_bad=true: %d of %d %s have no picture left in %s: %s%s.",
                len(lost), len(after.classes), "classes" if after.task == "classify" else "labels", name, listed, more,
            )  # fmt: skip
    if after.task == "classify" and not _there(after.train) & _there(after.val):
        raise UserError("data.skip_bad=true: of what is left, no class of val is in train. Repair the pictures.")
    return after


def _there(split: Split) -> set[int]:
    """Return the classes or labels that pictures have."""
    different = set(split.targets)
    rows = [target for target in different if isinstance(target, tuple)]
    if rows:
        return set(np.flatnonzero(np.any(np.array(rows) > 0, axis=0)).tolist())
    return {target for target in different if isinstance(target, int)}
