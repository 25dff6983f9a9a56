"""Detect random transforms in the user's Dataset.

An image and its target are read at different times, so each item must be the same whenever it is read.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from augment.data.own.prefetch import Items, convert_image
from augment.support.errors import UserError

_REREAD_ITEMS = 8  # number of items that are read twice

_ARRAYS = ("", "boxes", "labels", "masks", "keypoints")  # whole targets, or entries of a dict

# The arrays of an image or a target by name.
Copied = Mapping[str, NDArray[Any]]


def check_repeatable(items: Items) -> str:
    """Read some items twice. Return a notice if their images differ, or else an empty string.

    Raises:
        UserError: the targets differ.
    """
    if isinstance(items.sequence, list | tuple):
        return ""
    changed: list[int] = []
    for index in np.unique(np.linspace(0, len(items) - 1, _REREAD_ITEMS).astype(np.int64)).tolist():
        try:
            (image, target), (image_again, target_again) = (items.read(index, _copied) for _ in range(2))
        except (UserError, ValueError, TypeError):  # bad items are reported, or skipped, later
            continue
        if not _same(target, target_again):
            raise items.error(
                index,
                "has a different target when it is read again, but images and targets are read at different times. "
                "Return the same target each time. Move random crops and flips to aug.train, which also transforms "
                "targets.",
            )
        if not _same(image, image_again):
            changed.append(index)
    if not changed:
        return ""
    return (
        f"{items.factory.key}: item {changed[0]} of {items.factory.name} has a different image when it is read again. "
        "Random transforms inside a Dataset ignore seed, so this run cannot be reproduced or resumed exactly. Use ops "
        "instead"
    )


def _copied(image: object, target: object) -> tuple[Copied, Copied]:
    """Return copies of an image and its target as arrays, because the next item may use the same memory."""

    def copied(part: Any) -> NDArray[Any]:
        return np.array(part.detach().cpu().numpy() if isinstance(part, torch.Tensor) else part)

    parts = target if isinstance(target, dict) else {"": target}
    given = convert_image(image)
    pixels = given if isinstance(given, np.ndarray) else np.array(given, object)
    return {"": pixels}, {name: copied(parts[name]) for name in _ARRAYS if name in parts}


def _same(one: Copied, other: Copied) -> bool:
    pairs = [(part, other.get(name)) for name, part in one.items()]
    return all(b is not None and np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)
