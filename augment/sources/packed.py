"""The sources whose pictures lie in tar shards and in arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from augment.arrays import read_arrays
from augment.dataset import Dataset, Stored, Task
from augment.errors import UserError
from augment.labels import Label, Labeled, Labels, pack, read_names, understand_labels
from augment.params import Text, setting
from augment.shards import find_shards
from augment.sources.leak import warn_of_leak
from augment.sources.registry import CLASSES, DATA_DIR, LABEL_OFFSET, MULTILABEL, SKIP_BAD, Source, source
from augment.webdataset import check_shards, read_shards


@source("webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(Source):
    """Tar shards of pairs as cat_1.jpg and cat_1.cls, the number or name of its class, or JSON; read where they lie."""

    train: str = setting(
        Text(required=True, doc="the shards to learn from, as shards/train-*.tar or train-{000..009}.tar")
    )
    val: str = setting(Text(required=True, doc="the shards to be scored on"))
    label: str | None = setting(
        Text(optional=True, doc="where labels are: an ending as cls, or json.FIELD; null: cls, else json.label")
    )
    classes: str | None = setting(CLASSES)
    label_offset: int = setting(LABEL_OFFSET)
    multilabel: bool = setting(MULTILABEL)
    skip_bad: bool = setting(SKIP_BAD)

    def load(self) -> Dataset:
        """List the shards and check every picture, once."""
        dataset = self.unchecked()
        check = partial(check_shards, skip_bad=self.skip_bad, folder=Path(DATA_DIR) / "shards")
        train, val = self._shards().values()
        warn_of_leak((file.resolve() for file in train), (file.resolve() for file in val))
        return replace(dataset, train=check(dataset.train, "train", train), val=check(dataset.val, "val", val))

    def unchecked(self) -> Dataset:
        """List the shards."""
        names = read_names(self.classes) if self.classes else None
        # Both patterns first: what is missing shall not be found out after the shards of train were listed.
        splits = self._shards()
        train, val = (read_shards(files, self.label, Path(DATA_DIR) / "shards", key) for key, files in splits.items())
        labeled = (_labeled(key, *split) for key, split in zip(splits, (train, val), strict=True))
        task: Task | None = "multilabel" if self.multilabel else None
        targets = understand_labels(*labeled, classes=names, offset=self.label_offset, task=task)
        return targets.of(train[0], val[0])

    def _shards(self) -> dict[str, list[Path]]:
        return {key: find_shards(p, key) for key, p in (("data.train", self.train), ("data.val", self.val))}


@source("numpy")
@dataclass(frozen=True, kw_only=True)
class Arrays(Source):
    """Decoded pictures of one size in .npy files, (N, height, width, 3) uint8, and their labels, (N,)."""

    train: str = setting(Text(required=True, doc="the pictures to learn from, a .npy file"))
    train_targets: str = setting(Text(required=True, doc="their labels, a .npy file of whole numbers"))
    val: str = setting(Text(required=True, doc="the pictures to be scored on, a .npy file"))
    val_targets: str = setting(Text(required=True, doc="their labels, a .npy file"))
    classes: str | None = setting(CLASSES)
    label_offset: int = setting(LABEL_OFFSET)

    def load(self) -> Dataset:
        """Map the arrays."""
        names = read_names(self.classes) if self.classes else None
        warn_of_leak([Path(self.train).expanduser().resolve()], [Path(self.val).expanduser().resolve()])
        train, labels = read_arrays(self.train, self.train_targets, "data.train")
        val, val_labels = read_arrays(self.val, self.val_targets, "data.val")
        both = (_labeled("data.train", train, labels), _labeled("data.val", val, val_labels))
        return understand_labels(*both, classes=names, offset=self.label_offset).of(train, val)


def _labeled(key: str, pictures: Sequence[Stored], labels: Sequence[Sequence[Label]] | NDArray[np.int64]) -> Labeled:
    """Return the labels of pictures: some of each, or (N,) one of each."""

    def name(place: int) -> str:
        return pictures[place].name

    if isinstance(labels, np.ndarray):
        return Labeled(key, Labels(labels, np.ones(len(labels), np.int64)), name)
    try:
        return Labeled(key, pack(labels, name), name)
    except UserError as error:
        raise UserError(f"{key}: {error}") from None
