"""Statistics of targets in the image: how many pixels, objects or points of each class there are, and their sizes."""

from collections.abc import Sequence
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
    """What is in the images."""

    unit: str  # pixels, objects or images
    images: NDArray[np.int64]  # (classes, 2) images that have each class, or each point, in train and in val
    amounts: NDArray[np.int64]  # (classes, 2) pixels, objects or labeled points of each
    figures: dict[str, NDArray[Any]] = field(default_factory=dict)  # of images or objects, by name
    counts: dict[str, list[int]] = field(default_factory=dict)  # further counts by name, in train and in val

    def spreads(self) -> dict[str, dict[str, float]]:
        """Return the spread of each figure, by name."""
        return {name: spread_of(values) for name, values in self.figures.items() if len(values)}


def spread_of(values: NDArray[Any]) -> dict[str, float]:
    """Return the extremes and the median of values; nothing if there are none."""
    return {name: float(getattr(np, name)(values)) for name in ("min", "median", "max") if len(values)}


def count_inside(data: Dataset) -> Inside:
    """Count what the targets of a data set are; masks are read."""
    kinds = {MASKS.task: (_pixels, "pixels"), BOXES.task: (_objects, "objects")}
    count, unit = kinds.get(data.kind.task, (_points, "images"))
    found = [count(getattr(data, name), len(data.classes)) for name in SPLITS]
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
    marked = {n: sum(int(getattr(target, n).sum()) for target in split.targets) for n in ("crowd", "difficult")}
    sides = np.sqrt(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1))
    counted = {"no objects": int((each == 0).sum())} | marked
    return (images[1:], amounts[1:]), {"objects": each, "box, px": sides}, counted


def _points(split: Split, classes: int) -> _Counted:
    labeled = np.array(split.targets, np.float64).reshape(len(split), classes, 3)[..., 2] > 0
    images = labeled.sum(axis=0)
    return (images, images), {"points": labeled.sum(axis=1)}, {"no points": int((~labeled.any(axis=1)).sum())}


def plain(inside: Inside, names: Sequence[str]) -> dict[str, Any]:
    """Return everything as plain values, for JSON."""
    amounts = {
        name: dict(zip(SPLITS, row, strict=True)) for name, row in zip(names, inside.amounts.tolist(), strict=True)
    }
    counts = {name: dict(zip(SPLITS, of, strict=True)) for name, of in inside.counts.items()}
    return {inside.unit: amounts, "spread": inside.spreads(), "counts": counts}
