"""Statistics of targets in the image: how many pixels, objects or points of each class there are, and their sizes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import Dataset, Split
from augment.data.targets.boxes import BOXES
from augment.data.targets.masks import MASKS, NO_MASK
from augment.data.targets.spatial import IGNORE
from augment.recipe.steps import SPLITS
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.process import cores

_PROGRESS_FROM = 500  # masks


@dataclass
class Inside:
    """What is in the images.

    Attributes:
        unit: what is counted: "pixels", "objects" or "images".
        images: (classes, 2) images that have each class, or each point, in train and in val.
        amounts: (classes, 2) pixels, objects or labeled points of each.
        figures: the values of each image or object, by name, of which the spread is shown.
        counts: further counts by name, in train and in val.
    """

    unit: str
    images: NDArray[np.int64]
    amounts: NDArray[np.int64]
    figures: dict[str, NDArray[Any]] = field(default_factory=dict)
    counts: dict[str, list[int]] = field(default_factory=dict)


def count_inside(data: Dataset) -> Inside:
    """Count what the targets of a data set are; masks are read."""
    count = {MASKS.task: _pixels, BOXES.task: _objects}.get(data.kind.task, _points)
    found = [count(getattr(data, name), len(data.classes)) for name in SPLITS]
    unit = {MASKS.task: "pixels", BOXES.task: "objects"}.get(data.kind.task, "images")
    images, amounts = (np.stack([of[part] for of, *_ in found], axis=1) for part in (0, 1))
    figures = {name: np.concatenate([of[name] for _, of, _ in found]) for name in found[0][1]}
    return Inside(unit, images, amounts, figures, {name: [of[name] for *_, of in found] for name in found[0][2]})


# Images and amounts of each class, values of images or objects by name, and counts by name.
_Counted = tuple[tuple[NDArray[np.int64], NDArray[np.int64]], dict[str, NDArray[Any]], dict[str, int]]


def _pixels(split: Split, classes: int) -> _Counted:
    images, amounts = np.zeros((2, classes), np.int64)
    ignored: list[float] = []
    with (
        progress_bar(quiet=len(split) <= _PROGRESS_FROM) as progress,
        in_threads(_histogram, split.targets, cores()) as read,
    ):
        for counts in progress.track(read, len(split), description="Reading masks"):
            images += counts[:classes] > 0
            amounts += counts[:classes]
            ignored += [100 * counts[IGNORE] / counts.sum()] if counts.any() else []
    return (images, amounts), {"ignored, %": np.array(ignored)}, {}


def _histogram(mask: Any) -> NDArray[np.int64]:
    try:
        labels = np.empty(0, np.uint8) if mask == NO_MASK else mask.read()
    except UserError:  # which is among the faults, or will be reported when it is used
        labels = np.empty(0, np.uint8)
    return np.bincount(labels.ravel(), minlength=IGNORE + 1)


def _objects(split: Split, classes: int) -> _Counted:
    images, amounts = np.zeros((2, classes), np.int64)
    for target in split.targets:
        counts = np.bincount(target.labels, minlength=classes)
        images += counts > 0
        amounts += counts
    each = np.array([len(target) for target in split.targets], np.int64)
    boxes = np.concatenate([np.zeros((0, 4), np.float32), *(target.boxes for target in split.targets)])
    counted = {"no objects": int((each == 0).sum())}
    for name in ("crowd", "difficult"):
        counted[name] = sum(int(getattr(target, name).sum()) for target in split.targets)
    sides = np.sqrt(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1))
    return (images[1:], amounts[1:]), {"objects": each, "box, px": sides}, counted


def _points(split: Split, classes: int) -> _Counted:
    labeled = np.array(split.targets, np.float64).reshape(len(split), classes, 3)[..., 2] > 0
    images = labeled.sum(axis=0)
    return (images, images), {"points": labeled.sum(axis=1)}, {"no points": int((~labeled.any(axis=1)).sum())}


def shown(inside: Inside, spread: Callable[[NDArray[Any]], str]) -> dict[str, str]:
    """Return lines of text by name."""
    lines = {name: spread(values) for name, values in inside.figures.items() if len(values)}
    counts = {
        name: f"{train:,} in train, {val:,} in val" for name, (train, val) in inside.counts.items() if train + val
    }
    return lines | counts


def plain(inside: Inside, names: Sequence[str]) -> dict[str, Any]:
    """Return everything as plain values, for JSON."""
    amounts = {
        name: dict(zip(SPLITS, row, strict=True)) for name, row in zip(names, inside.amounts.tolist(), strict=True)
    }
    spread = {
        name: {key: float(getattr(np, key)(values)) for key in ("min", "median", "max")}
        for name, values in inside.figures.items()
        if len(values)
    }
    counts = {name: dict(zip(SPLITS, of, strict=True)) for name, of in inside.counts.items()}
    return {inside.unit: amounts, "spread": spread, "counts": counts}
