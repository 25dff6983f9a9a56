"""Pictures that are learned from and scored on at once, which makes every score look better than it is."""

import logging
from collections.abc import Iterable

from augment.dataset import Picture

logger = logging.getLogger(__name__)


def warn_of_leak(train: Iterable[Picture], val: Iterable[Picture], what: str = "files") -> None:
    """Say in the log that some of val are in train too.

    Args:
        train: pictures, or the files or folders that they lie in, to learn from; links are to be resolved before.
        val: those to be scored on.
        what: what they are called.
    """
    learned, scored = set(train), list(dict.fromkeys(val))
    both = [path for path in scored if path in learned]
    if both:
        logger.warning(
            "data.val: %d of %d %s are in train too, as %s: the model is scored on what it learns",
            len(both), len(scored), what, both[0],
        )  # fmt: skip
