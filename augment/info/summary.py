"""Figures about a data set, from its targets and from what a pass over its pictures found."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.config import SplitName
from augment.dataset import Dataset, Picture, Split, Target
from augment.info.duplicates import Copies, Tally, find_copies, tally
from augment.info.scan import Scan, scan
from augment.stored import are_paths, name_of

SPLITS: tuple[SplitName, ...] = ("train", "val")
QUANTILES = {"min": 0.0, "1%": 0.01, "10%": 0.1, "median": 0.5, "90%": 0.9, "99%": 0.99, "max": 1.0}

# Modes of Pillow, with an A at the end where something is see-through, as people call them.
_KINDS = {
    "RGB": "RGB", "L": "gray", "1": "black and white", "P": "palette", "CMYK": "CMYK", "RGBA": "RGB with alpha",
    "LA": "gray with alpha", "PA": "palette with alpha", "I": "16 bit gray", "I;16": "16 bit gray",
    "I;16B": "16 bit gray",
}  # fmt: skip
GRAY = ("gray", "gray with alpha", "black and white", "16 bit gray")


@dataclass(frozen=True)
class Spread:
    """A number of each picture of a split: mean, standard deviation, extremes."""

    mean: float
    std: float
    min: float
    max: float


@dataclass(frozen=True)
class Info:
    """All that is known of a data set. Places count train's pictures first, then val's.

    Attributes:
        source: its name in the configuration.
        size: aug.size, the side of what the model is fed, in px.
        data: the pictures and targets, with those that cannot be used.
        found: what a pass over the pictures found.
        copies: pictures that are there twice.
    """

    source: str
    size: int
    data: Dataset
    found: Scan
    copies: Copies

    @cached_property
    def pictures(self) -> tuple[Picture, ...]:
        """All pictures."""
        return self.data.train.files + self.data.val.files

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """All targets."""
        return self.data.train.targets + self.data.val.targets

    @cached_property
    def good(self) -> NDArray[np.bool_]:
        """(N,) whether a picture can be used."""
        good: NDArray[np.bool_] = self.found.facts["good"]
        return good

    @cached_property
    def is_train(self) -> NDArray[np.bool_]:
        """(N,) whether a picture is one of train."""
        return np.arange(len(self.good)) < len(self.data.train)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """(classes, 2) pictures of each class, or with each label, in train and val; without rows for numbers."""
        if self.data.task == "regress":
            return np.zeros((0, 2), np.int64)
        split_counts = [_count(split, len(self.data.classes)) for split in (self.data.train, self.data.val)]
        return np.stack(split_counts, axis=1)

    @cached_property
    def numbers(self) -> dict[str, tuple[Spread, Spread]]:
        """Of each number to predict, its values in train and in val."""
        if self.data.task != "regress":
            return {}
        train, val = (np.array(split.targets, float).T for split in (self.data.train, self.data.val))
        return {name: (_spread(a), _spread(b)) for name, a, b in zip(self.data.classes, train, val, strict=True)}

    @cached_property
    def labels_each(self) -> Counter[int]:
        """Of pictures with labels: how many have so many."""
        if self.data.task != "multilabel":
            return Counter()
        return Counter(dict(sorted(_labels_each(self.targets).items())))

    @cached_property
    def kinds(self) -> NDArray[np.str_]:
        """(N,) gray, RGB and the like."""
        modes, places = np.unique(self.found.facts["mode"], return_inverse=True)
        kinds: NDArray[np.str_] = np.array([_KINDS.get(mode, mode) for mode in modes.tolist()])[places]
        return kinds

    @cached_property
    def short_side(self) -> NDArray[np.int64]:
        """(N,) in px."""
        return np.minimum(self.found.width, self.found.height)

    @cached_property
    def aspect(self) -> NDArray[np.float64]:
        """(N,) width over height, as shown; 1 where the picture cannot be used."""
        return np.where(self.good, self.found.width, 1) / np.where(self.good, self.found.height, 1)

    @cached_property
    def exact(self) -> Tally:
        """Pictures with the same bytes, by split."""
        return tally(self.copies.groups, len(self.data.train), self.targets, compare=True)

    @cached_property
    def near(self) -> Tally:
        """Pictures that look the same, by split. Frames of a film may well have different numbers."""
        return tally(self.copies.pairs, len(self.data.train), self.targets, compare=self.data.task != "regress")

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Pictures that look the same, first those of two splits, then those with different targets."""
        pairs = [(int(a), int(b)) for a, b in self.copies.pairs]
        odd = set(self.near.contradicting)
        return sorted(pairs, key=lambda pair: (self.split_of(pair[0]) == self.split_of(pair[1]), pair not in odd))

    def name(self, place: int) -> str:
        """Return what people call a picture."""
        return name_of(self.pictures[place])

    @cached_property
    def folder(self) -> str:
        """The folder that all pictures lie in which are files of their own; empty if there is none."""
        if not are_paths(self.pictures):
            return ""
        parents = {os.path.dirname(str(picture)) for picture in self.pictures}
        found = os.path.commonpath(map(os.path.abspath, parents))
        return "" if found == os.sep else found

    def short_name(self, place: int) -> str:
        """Return a picture's name below `folder`."""
        return os.path.relpath(self.name(place), self.folder) if self.folder else self.name(place)

    def split_of(self, place: int) -> SplitName:
        """Return the split of a picture."""
        return "train" if place < len(self.data.train) else "val"

    def quantiles(self, values: NDArray[Any], split: SplitName | None = None) -> dict[str, float]:
        """Return `QUANTILES` of a number of each picture, (N,), that can be used; empty if there are none."""
        chosen = self.good if split is None else self.good & (self.is_train == (split == "train"))
        if not chosen.any():
            return {}
        found = np.quantile(values[chosen], list(QUANTILES.values()))
        return dict(zip(QUANTILES, found.tolist(), strict=True))

    def frequent(self, values: NDArray[Any]) -> dict[str, int]:
        """Return how often each value occurs among the pictures that can be used, most frequent first."""
        names, counts = np.unique(values[self.good], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {str(names[i]): int(counts[i]) for i in order}

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values."""
        data, facts = self.data, self.found.facts
        sides = {"width": self.found.width, "height": self.found.height, "short_side": self.short_side,
                 "aspect": self.aspect, "bytes": facts["bytes"]}  # fmt: skip
        return {
            "source": self.source,
            "task": data.task,
            "size": self.size,
            "pictures": {"train": len(data.train), "val": len(data.val)},
            "classes": {
                name: dict(zip(SPLITS, row, strict=True))
                for name, row in zip(data.classes, self.counts.tolist(), strict=False)
            },
            "labels_each": {str(number): count for number, count in self.labels_each.items()},
            "numbers": {
                name: {split: asdict(spread) for split, spread in zip(SPLITS, both, strict=True)}
                for name, both in self.numbers.items()
            },
            **{name: {split: self.quantiles(values, split) for split in SPLITS} for name, values in sides.items()},
            "formats": self.frequent(facts["format"]),
            "modes": self.frequent(self.kinds),
            "turned_by_exif": int((facts["orientation"] > 1).sum()),
            "blank": [self.name(place) for place in np.flatnonzero(facts["blank"]).tolist()],
            "unreadable": [
                {"file": self.name(place), "split": self.split_of(place), "reason": reason}
                for place, reason in sorted(self.found.faults.items())
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
            "contradicting": [[self.name(place) for place in group] for group in counted.contradicting],
            "groups": [[self.name(place) for place in group] for group in groups],
        }


def describe(data: Dataset, source: str, size: int) -> Info:
    """Look at every picture of a data set.

    Args:
        data: with pictures that cannot be used.
        source: its name in the configuration.
        size: aug.size.
    """
    pictures = data.train.files + data.val.files
    found = scan(pictures)
    return Info(source, size, data, found, find_copies(pictures, found))


def _count(split: Split, classes: int) -> NDArray[np.int64]:
    counts = np.zeros(classes, np.int64)
    for target, count in _different(split.targets):
        counts += count * np.array(target, np.int64) if isinstance(target, tuple) else 0
        if isinstance(target, int):
            counts[target] += count
    return counts


def _labels_each(targets: Iterable[Target]) -> Mapping[int, int]:
    found: Counter[int] = Counter()
    for target, count in _different(targets):
        found[int(sum(target)) if isinstance(target, tuple) else 1] += count
    return found


def _different(targets: Iterable[Target]) -> list[tuple[Target, int]]:
    """Return the targets with how often they occur; those of pictures with the same labels are one object."""
    targets = list(targets)
    known = {id(target): target for target in targets}
    return [(known[key], count) for key, count in Counter(map(id, targets)).items()]


def _spread(values: NDArray[np.float64]) -> Spread:
    return Spread(float(values.mean()), float(values.std()), float(values.min()), float(values.max()))
