"""The sources whose pictures lie in tar shards and in arrays."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from augment.dataset import Dataset, Stored
from augment.errors import UserError
from augment.params import Text, Texts, setting
from augment.records.arrays import read_arrays
from augment.records.checked import check_once
from augment.records.shards import find_shards
from augment.records.webdataset import read_shards
from augment.sources.leak import warn_of_leak
from augment.sources.registry import DATA_DIR, SKIP_BAD, LabeledSource, source
from augment.targets.emptied import note_emptied
from augment.targets.labels import Label, Labeled, pack
from augment.targets.rows import Rows, understand_found, understand_rows


@source("webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(LabeledSource):
    """Tar shards of pairs as cat_1.jpg and cat_1.cls, the number or name of its class, or JSON; read where they lie."""

    train: str = setting(
        Text(required=True, doc="the shards to learn from, as shards/train-*.tar or train-{000..009}.tar")
    )
    val: str = setting(Text(required=True, doc="the shards to be scored on"))
    label: str | None = setting(
        Text(optional=True, doc="where labels are: an ending as cls, or json.FIELD; null: cls, else json.label")
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="fields of .json to predict as numbers; with data.multilabel=true, of 0 and 1 for labels")
    )
    skip_bad: bool = setting(SKIP_BAD)

    def load(self) -> Dataset:
        """List the shards and check every picture, once."""
        dataset = self.unchecked()
        check = partial(check_once, skip_bad=self.skip_bad, folder=Path(DATA_DIR) / "shards")
        train, val = self._shards().values()
        warn_of_leak((file.resolve() for file in train), (file.resolve() for file in val))
        learned, scored = check(dataset.train, "train"), check(dataset.val, "val")
        return note_emptied(dataset, replace(dataset, train=learned, val=scored))

    def unchecked(self) -> Dataset:
        """List the shards."""
        task = self.asked()
        names = self.class_names()
        # Both patterns first: what is missing shall not be found out after the shards of train were listed.
        splits = self._shards()
        folder = Path(DATA_DIR) / "shards"
        train, val = (read_shards(files, self.label, folder, key, self.targets) for key, files in splits.items())
        numbers = task == "regress"
        labeled = (_labeled(key, *split, numbers=numbers) for key, split in zip(splits, (train, val), strict=True))
        found = understand_found(
            *labeled, task=task, classes=names, offset=self.label_offset, targets=self.targets, typed=False
        )
        return found.of(train[0], val[0])

    def _shards(self) -> dict[str, list[Path]]:
        return {key: find_shards(p, key) for key, p in (("data.train", self.train), ("data.val", self.val))}


@source("numpy")
@dataclass(frozen=True, kw_only=True)
class Arrays(LabeledSource):
    """Decoded pictures of one size in .npy files, (N, height, width, 3) uint8, and their targets, (N,) or (N, K)."""

    train: str = setting(Text(required=True, doc="the pictures to learn from, a .npy file"))
    train_targets: str = setting(
        Text(required=True, doc="their targets, a .npy file: classes, or rows of 0 and 1 for labels, or of numbers")
    )
    val: str = setting(Text(required=True, doc="the pictures to be scored on, a .npy file"))
    val_targets: str = setting(Text(required=True, doc="their targets, a .npy file"))

    def load(self) -> Dataset:
        """Map the arrays."""
        task = self.asked()
        names = self.class_names()
        warn_of_leak([Path(self.train).expanduser().resolve()], [Path(self.val).expanduser().resolve()])
        splits = {"train": (self.train, self.train_targets), "val": (self.val, self.val_targets)}
        found = {name: read_arrays(*files, f"data.{name}") for name, files in splits.items()}
        rows = (Rows(f"data.{name}", values, _namer(pictures)) for name, (pictures, values) in found.items())
        targets = understand_rows(*rows, task=task, classes=names, offset=self.label_offset, targets=self.targets)
        return targets.of(found["train"][0], found["val"][0])


def _labeled(key: str, pictures: Sequence[Stored], labels: Sequence[Sequence[Label]], *, numbers: bool) -> Labeled:
    """Return the labels of pictures; text that is to be numbers stays text where it is none."""
    name = _namer(pictures)
    if numbers:
        with suppress(ValueError):
            labels = [[float(label) for label in some] for some in labels]
    try:
        return Labeled(key, pack(labels, name), name)
    except UserError as error:
        raise UserError(f"{key}: {error}") from None


def _namer(pictures: Sequence[Stored]) -> Callable[[int], str]:
    return lambda place: pictures[place].name
