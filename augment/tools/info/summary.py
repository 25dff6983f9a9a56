"""Statistics of a data set, from its targets and from a scan of its images."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import Dataset, ImageRef, Target
from augment.data.images import are_paths, name_of
from augment.recipe.steps import SPLITS, SplitName
from augment.tools.info.duplicates import Copies, Tally, tally
from augment.tools.info.scan import Scan

QUANTILES = {"min": 0.0, "1%": 0.01, "10%": 0.1, "median": 0.5, "90%": 0.9, "99%": 0.99, "max": 1.0}

# Readable names of Pillow's modes; a trailing A stands for transparency.
_MODES = {
    "RGB": "RGB", "L": "gray", "1": "black and white", "P": "palette", "CMYK": "CMYK", "RGBA": "RGB with alpha",
    "LA": "gray with alpha", "PA": "palette with alpha", "I": "16 bit gray", "I;16": "16 bit gray",
    "I;16B": "16 bit gray",
}  # fmt: skip
GRAY = ("gray", "gray with alpha", "black and white", "16 bit gray")


@dataclass(frozen=True)
class Info:
    """Everything known about a data set. Indices count the images of train first, then those of val; N is their number.

    Attributes:
        source: name of the source in the configuration.
        size: aug.size, the side of the model input, in px.
        data: images and targets, including those that cannot be used.
        scan: the result of scanning the images.
        copies: duplicate images.
    """

    source: str
    size: int
    data: Dataset
    scan: Scan
    copies: Copies

    @cached_property
    def images(self) -> tuple[ImageRef, ...]:
        """All images."""
        return self.data.train.files + self.data.val.files

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """All targets."""
        return self.data.train.targets + self.data.val.targets

    @cached_property
    def good(self) -> NDArray[np.bool_]:
        """(N,) whether an image can be used."""
        good: NDArray[np.bool_] = self.scan.facts["good"]
        return good

    @cached_property
    def is_train(self) -> NDArray[np.bool_]:
        """(N,) whether an image is in train."""
        return np.arange(len(self.good)) < len(self.data.train)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """(classes, 2) images of each class, or with each label, in train and val; (0, 2) for regression."""
        if self.data.task == "regress":
            return np.zeros((0, 2), np.int64)
        counts = np.zeros((len(self.data.classes), 2), np.int64)
        for column, split in enumerate((self.data.train, self.data.val)):
            for target, count in _distinct(split.targets):
                counts[list(self.data.kind.present(target)), column] += count
        return counts

    @cached_property
    def numbers(self) -> dict[str, dict[SplitName, dict[str, float]]]:
        """Mean, standard deviation and extremes of each number to predict, in train and in val."""
        found: dict[str, dict[SplitName, dict[str, float]]] = {}
        for index, name in enumerate(self.data.classes if self.data.task == "regress" else ()):
            columns = {
                split: np.array(of.targets, float)[:, index]
                for split, of in zip(SPLITS, (self.data.train, self.data.val), strict=True)
                if len(of)
            }
            found[name] = {
                split: {key: float(getattr(column, key)()) for key in ("mean", "std", "min", "max")}
                for split, column in columns.items()
            }
        return found

    @cached_property
    def labels_each(self) -> dict[int, int]:
        """How many images have 0, 1, 2, ... labels; empty unless the task is multilabel."""
        counts: Counter[int] = Counter()
        for target, count in _distinct(self.targets) if self.data.task == "multilabel" else ():
            counts[int(np.count_nonzero(target))] += count
        return dict(sorted(counts.items()))

    @cached_property
    def modes(self) -> NDArray[np.str_]:
        """(N,) gray, RGB and the like."""
        modes, which = np.unique(self.scan.facts["mode"], return_inverse=True)
        names: NDArray[np.str_] = np.array([_MODES.get(mode, mode) for mode in modes.tolist()])[which]
        return names

    @cached_property
    def short_side(self) -> NDArray[Any]:
        """(N,) in px."""
        return np.asarray(np.minimum(self.scan.facts["width"].astype(np.int64), self.scan.facts["height"]))

    @cached_property
    def aspect(self) -> NDArray[np.float64]:
        """(N,) width / height when upright; 1 where the image cannot be used."""
        width, height = (np.where(self.good, self.scan.facts[side], 1) for side in ("width", "height"))
        return width / height

    @cached_property
    def exact(self) -> Tally:
        """Counts of images with the same bytes."""
        return tally(self.copies.groups, len(self.data.train), self.targets, compare=True)

    @cached_property
    def near(self) -> Tally:
        """Counts of images that look the same. In regression their targets may differ, as for video frames."""
        return tally(self.copies.pairs, len(self.data.train), self.targets, compare=self.data.task != "regress")

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of images that look the same: first those across splits, then those with different targets."""
        pairs = [(int(a), int(b)) for a, b in self.copies.pairs]
        odd = set(self.near.contradicting)
        return sorted(pairs, key=lambda pair: (self.split_of(pair[0]) == self.split_of(pair[1]), pair not in odd))

    def name(self, index: int) -> str:
        """Return an image's name."""
        return name_of(self.images[index])

    @cached_property
    def folder(self) -> str:
        """The common folder of all images; empty if there is none, or if images are not separate files."""
        if not are_paths(self.images):
            return ""
        parents = {os.path.dirname(str(image)) for image in self.images}
        found = os.path.commonpath(map(os.path.abspath, parents))
        return "" if found == os.sep else found

    def short_name(self, index: int) -> str:
        """Return an image's name relative to `folder`."""
        return os.path.relpath(self.name(index), self.folder) if self.folder else self.name(index)

    def split_of(self, index: int) -> SplitName:
        """Return the split of an image."""
        return "train" if index < len(self.data.train) else "val"

    def label(self, index: int) -> str:
        """Return the name of an image's class; empty for other tasks."""
        target = self.targets[index]
        return self.data.classes[target] if isinstance(target, int) else ""

    def shape(self, index: int) -> str:
        """Return width x height of an image when upright."""
        return f"{self.scan.facts['width'][index]} x {self.scan.facts['height'][index]}"

    def quantiles(self, values: NDArray[Any], split: SplitName | None = None) -> dict[str, float]:
        """Return `QUANTILES` of `values`, (N,), over usable images, of one split if given; empty if there are none."""
        chosen = self.good if split is None else self.good & (self.is_train == (split == "train"))
        if not chosen.any():
            return {}
        found = np.quantile(values[chosen], list(QUANTILES.values()))
        return dict(zip(QUANTILES, found.tolist(), strict=True))

    def frequent(self, values: NDArray[Any]) -> dict[str, int]:
        """Return how often each of `values`, (N,), occurs among usable images, most frequent first."""
        return dict(Counter(sorted(values[self.good].tolist())).most_common())

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        data, facts = self.data, self.scan.facts
        sides = {"short_side": self.short_side, "aspect": self.aspect}
        sides |= {name: facts[name] for name in ("width", "height", "bytes")}
        return {
            "source": self.source,
            "task": data.task,
            "size": self.size,
            "images": {"train": len(data.train), "val": len(data.val)},
            "classes": {
                name: dict(zip(SPLITS, row, strict=True))
                for name, row in zip(data.classes, self.counts.tolist(), strict=False)
            },
            "labels_each": {str(number): count for number, count in self.labels_each.items()},
            "numbers": self.numbers,
            **{name: {split: self.quantiles(values, split) for split in SPLITS} for name, values in sides.items()},
            "formats": self.frequent(facts["format"]),
            "other_formats": {split: [str(file) for file, _ in getattr(data, split).foreign] for split in SPLITS},
            "modes": self.frequent(self.modes),
            "turned_by_exif": int((facts["orientation"] > 1).sum()),
            "blank": [self.name(index) for index in np.flatnonzero(facts["blank"]).tolist()],
            "unreadable": [
                {"file": self.name(index), "split": self.split_of(index), "reason": reason}
                for index, reason in sorted(self.scan.faults.items())
            ],
            "duplicates": self._plain_copies(self.exact, self.copies.groups),
            "near_duplicates": self._plain_copies(self.near, self.copies.pairs.tolist())
            | {"all_compared": self.copies.all_compared},
        }

    def _plain_copies(self, counted: Tally, groups: Iterable[Iterable[int]]) -> dict[str, Any]:
        return {
            "within_train": counted.train,
            "within_val": counted.val,
            "val_in_train": counted.leaked,
            "contradicting": [[self.name(index) for index in group] for group in counted.contradicting],
            "groups": [[self.name(index) for index in group] for group in groups],
        }


def _distinct(targets: Iterable[Target]) -> list[tuple[Target, int]]:
    """Return each distinct target with its count; images with the same labels share one target object."""
    targets = list(targets)
    known = {id(target): target for target in targets}
    return [(known[key], count) for key, count in Counter(map(id, targets)).items()]
