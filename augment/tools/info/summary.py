"""Statistics of a dataset, from its targets and from a scan of its images.

To add a kind of target, add its statistics here, its table and likely problems to `text`, and its chart to `figure`.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import NO_VAL, Dataset, ImageRef, Split, Target
from augment.data.format_detection import sample_values
from augment.data.images import name_of
from augment.data.targets.boxes import BOXES
from augment.data.targets.masks import MASKS, NO_MASK
from augment.data.targets.spatial import IGNORE
from augment.params import Size
from augment.recipe.steps import SPLITS, SplitName
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.formatting import amount
from augment.support.process import cores
from augment.tools.info.scan import Copies, Facts, Pairs, tally


@dataclass
class SpatialStats:
    """Statistics of masks, boxes or keypoints."""

    unit: str  # pixels, objects or images
    images: NDArray[np.int64]  # (classes, 2) images with each class or keypoint, in train and in val
    amounts: NDArray[np.int64]  # (classes, 2) pixels or objects of each class, or images with each keypoint
    distributions: dict[str, NDArray[Any]] = field(default_factory=dict)  # a value per image or object, by name
    counts: dict[str, list[int]] = field(default_factory=dict)  # further counts by name, in train and in val


def spatial_stats(data: Dataset) -> SpatialStats:
    """Count the pixels, objects or keypoints in the targets of a dataset. This reads all masks."""
    kinds = {MASKS.task: (_pixels, "pixels"), BOXES.task: (_objects, "objects")}
    count, unit = kinds.get(data.kind.task, (_points, "images"))
    train, val = (count(split, len(data.classes)) for split in (data.train, data.val))
    return SpatialStats(
        unit,
        images=np.stack([train.images, val.images], axis=1),
        amounts=np.stack([train.amounts, val.amounts], axis=1),
        distributions={
            name: np.concatenate([values, val.distributions[name]]) for name, values in train.distributions.items()
        },
        counts={name: [number, val.counts[name]] for name, number in train.counts.items()},
    )


class _SplitStats(NamedTuple):
    """Statistics of one split, see `SpatialStats`."""

    images: NDArray[np.int64]  # (classes,)
    amounts: NDArray[np.int64]  # (classes,)
    distributions: dict[str, NDArray[Any]]
    counts: dict[str, int]


def _pixels(split: Split, classes: int) -> _SplitStats:
    images, amounts = np.zeros((2, classes), np.int64)
    ignored: list[float] = []
    with (
        progress_bar(quiet=len(split) <= 500) as progress,
        in_threads(_histogram, split.targets, cores()) as read,
    ):
        for counts in progress.track(read, len(split), description="Reading masks"):
            images += counts[:classes] > 0
            amounts += counts[:classes]
            ignored += [100 * counts[IGNORE] / counts.sum()] if counts.any() else []
    return _SplitStats(images, amounts, {"ignored, %": np.array(ignored)}, {})


def _histogram(mask: Any) -> NDArray[np.int64]:
    try:
        labels = np.empty(0, np.uint8) if mask == NO_MASK else mask.read()
    except UserError:  # the fault is known, or is reported when the mask is used
        labels = np.empty(0, np.uint8)
    return np.bincount(labels.ravel(), minlength=IGNORE + 1)


def _objects(split: Split, classes: int) -> _SplitStats:
    images, amounts = np.zeros((2, classes), np.int64)
    for target in split.targets:
        counts = np.bincount(target.labels, minlength=classes)
        images += counts > 0
        amounts += counts
    each = np.array([len(target) for target in split.targets], np.int64)
    boxes = np.concatenate([np.zeros((0, 4), np.float32), *(target.boxes for target in split.targets)])
    sides = np.sqrt(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1))
    further = {
        "no objects": int((each == 0).sum()),
        "crowd": sum(int(target.crowd.sum()) for target in split.targets),
        "difficult": sum(int(target.difficult.sum()) for target in split.targets),
    }
    return _SplitStats(images[1:], amounts[1:], {"objects": each, "box, px": sides}, further)


def _points(split: Split, classes: int) -> _SplitStats:
    labeled = np.array(split.targets, np.float64).reshape(len(split), classes, 3)[..., 2] > 0
    images = labeled.sum(axis=0)
    without = int((~labeled.any(axis=1)).sum())
    return _SplitStats(images, images, {"points": labeled.sum(axis=1)}, {"no points": without})


LISTED = 24  # maximum number of listed classes: the 12 largest and the 12 smallest if there are more


@dataclass(frozen=True)
class Info:
    """All facts about a dataset. Indices count the N images: first the images of train, then the images of val."""

    source: str  # its name in the configuration
    size: Size  # aug.size, the size of the model input, in px
    data: Dataset  # images and targets, including those that cannot be used
    facts: Facts  # (N,) the `FACTS` of each image
    copies: Copies
    test: Split = NO_VAL  # only `leaks` also counts its images
    leaks: Copies | None = None  # duplicates among all images. Indices count test images after val images

    @cached_property
    def images(self) -> tuple[ImageRef, ...]:
        return self.data.train.files + self.data.val.files

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        return self.data.train.targets + self.data.val.targets

    @property
    def headline(self) -> str:
        train, val = len(self.data.train), len(self.data.val)
        parts = f"{train:,} in train and {val:,} in val ({val / (train + val):.0%})"
        parts += f", {len(self.test):,} more in test" if len(self.test) else ""
        parts += f"; {amount(len(self.names), self.data.kind.noun)}"
        parts += "" if self.data.pixels.is_rgb else f"; {self.data.pixels}"
        return f"{self.source}: {amount(train + val, 'image')}, {parts}"

    # --- targets ---

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes, labels, keypoints or regression targets. Boxes have no background class."""
        return self.data.classes[1:] if self.data.kind == BOXES else self.data.classes

    @cached_property
    def spatial(self) -> SpatialStats | None:
        """Statistics of masks, boxes or keypoints, or None for other targets."""
        return spatial_stats(self.data) if self.data.kind.follows else None

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """(classes, 2) images of each class or label, in train and val. (0, 2) for regression."""
        if self.spatial is not None:
            return self.spatial.images
        if self.data.task == "regress":
            return np.zeros((0, 2), np.int64)
        counts = np.zeros((len(self.data.classes), 2), np.int64)
        for column, split in enumerate((self.data.train, self.data.val)):
            for target, count in Counter(split.targets).items():
                labels = np.flatnonzero(target) if isinstance(target, tuple) else int(target)
                counts[labels, column] += count
        return counts

    @cached_property
    def listed(self) -> list[int]:
        """Indices of the classes to list: all, or, if there are many, the largest and then the smallest classes."""
        if len(self.counts) <= LISTED:
            return list(range(len(self.counts)))
        order = np.argsort(-self.counts.sum(axis=1), kind="stable").tolist()
        return [*order[: LISTED // 2], *order[-LISTED // 2 :]]

    @cached_property
    def target_stats(self) -> dict[str, dict[SplitName, dict[str, float]]]:
        """Mean, standard deviation, minimum and maximum of each regression target, in train and in val."""
        if self.data.task != "regress":
            return {}
        numbers: dict[str, dict[SplitName, dict[str, float]]] = {name: {} for name in self.data.classes}
        for split in SPLITS:
            targets = np.array(getattr(self.data, split).targets, float)
            for name, column in zip(self.data.classes, targets.T, strict=False):  # without images, there are no columns
                numbers[name][split] = {key: float(getattr(column, key)()) for key in ("mean", "std", "min", "max")}
        return numbers

    # --- images ---

    @cached_property
    def usable(self) -> NDArray[np.bool_]:
        """(N,) whether an image can be used."""
        return np.asarray(self.facts["fault"] == "", np.bool_)

    @cached_property
    def faults(self) -> list[tuple[int, str]]:
        """The index of each unusable image, and the reason."""
        return [(index, self.facts["fault"][index]) for index in np.flatnonzero(~self.usable).tolist()]

    @cached_property
    def sizes(self) -> dict[str, NDArray[Any]]:
        """Width, height and short side in px, aspect (width / height), and bytes of upright images, (N,) each."""
        width, height = (np.maximum(self.facts[side].astype(np.int64), 1) for side in ("width", "height"))
        return {
            "width": width,
            "height": height,
            "short_side": np.minimum(width, height),
            "aspect": width / height,
            "bytes": self.facts["bytes"],
        }

    def frequent(self, name: str) -> dict[str, int]:
        """Count each value of a fact among usable images, the most frequent first."""
        return dict(Counter(sorted(self.facts[name][self.usable].tolist())).most_common())

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """Stored values of M pixels of train, (M, channels). Missing values are NaN, and channels without values 0."""
        pixels = self.data.pixels
        samples = [sample.values for sample in sample_values(self.data.train.files, pixels)]
        values = np.concatenate([np.full((1, pixels.channels), np.nan), *samples])
        return np.where(np.isnan(values).all(axis=0), 0, values)

    @property
    def ends(self) -> NDArray[np.float64]:
        """The stored values that become black and white, (2, channels)."""
        pixels = self.data.pixels
        return np.array([pixels.low or [0] * pixels.channels, pixels.high or [255] * pixels.channels], np.float64)

    @cached_property
    def channels(self) -> dict[str, NDArray[np.float64]]:
        """Statistics of the values of each channel, (channels,). "clipped" is the share beyond the ends."""
        percentiles = np.nanpercentile(self.values, (0, 1, 50, 99, 100), axis=0)
        low, high = self.ends
        return {
            **dict(zip(("min", "1%", "50%", "99%", "max"), percentiles, strict=True)),
            "mean": np.nanmean(self.values, axis=0),
            "std": np.nanstd(self.values, axis=0),
            "clipped": ((self.values < low) | (self.values > high)).mean(axis=0),
        }

    @cached_property
    def same(self) -> dict[str, int]:
        """Counts of images with the same bytes as an earlier image. See `tally`."""
        return tally(self.copies.same, len(self.data.train))

    @cached_property
    def alike(self) -> dict[str, int]:
        """Counts of images that look like an earlier image. See `tally`."""
        return tally(self.copies.alike, len(self.data.train))

    @property
    def contradicting(self) -> list[tuple[int, int]]:
        """Pairs of images with the same bytes and different targets."""
        pairs = [] if self.data.kind.follows else self.copies.same.tolist()
        return [(a, b) for a, b in pairs if self.targets[a] != self.targets[b]]

    def ordered(self, pairs: Pairs) -> list[tuple[int, int]]:
        """Return pairs of duplicates. Pairs across splits come first."""
        train = len(self.data.train)
        return sorted(((a, b) for a, b in pairs.tolist()), key=lambda pair: (pair[0] < train) == (pair[1] < train))

    def describe(self, index: int) -> str:
        """Return the name of an image with its split, and its class if it has one."""
        target, split = self.targets[index], SPLITS[index >= len(self.data.train)]
        label = f", {self.data.classes[target]}" if isinstance(target, int) else ""
        return f"{name_of(self.images[index])} ({split}{label})"
