"""The sources whose pictures lie in files of records."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar

import numpy as np

from augment.dataset import Dataset, Stored
from augment.errors import UserError
from augment.files import near_file
from augment.params import Text, Texts, setting
from augment.records.caffe import DatumPicture, index_datums
from augment.records.checked import check_once
from augment.records.index import Build, Index, load_indexes
from augment.records.kinds import told_by_content
from augment.records.parquet import class_names, is_kept, unpack_table
from augment.records.recordio import PADDING, index_records, is_current, left_out, unpack
from augment.records.shards import find_shards, is_pattern
from augment.records.spans import RecordFile, Span
from augment.records.tfrecord import IMAGE, LABEL, index_examples
from augment.sources.leak import warn_of_leak
from augment.sources.registry import DATA_DIR, SKIP_BAD, LabeledSource, source
from augment.targets.emptied import note_emptied
from augment.targets.labels import Labeled, Labels, join
from augment.targets.rows import understand_found

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Records(LabeledSource):
    """Base of the sources whose pictures lie in files of records."""

    typed: ClassVar[bool] = True  # whether the files tell floats from whole numbers

    train: str = setting(Text(required=True, doc="the files to learn from, as DIR/train-* or DIR/train-{000..009}"))
    val: str = setting(Text(required=True, doc="the files to be scored on"))
    classes: str | None = setting(
        Text(optional=True, doc="file with a class name a line; null: the names there are, else the labels themselves")
    )
    skip_bad: bool = setting(SKIP_BAD)
    dir: str = setting(
        Text(default=DATA_DIR, doc="folder for the index of the files, and for pictures that are unpacked")
    )

    def load(self) -> Dataset:
        """Index what is not indexed yet, check every picture once, and give the labels numbers."""
        dataset = self.unchecked()
        check = partial(check_once, skip_bad=self.skip_bad, folder=Path(self.dir) / "index")
        train, val = check(dataset.train, "train"), check(dataset.val, "val")
        return note_emptied(dataset, replace(dataset, train=train, val=val))

    def unchecked(self) -> Dataset:
        """Index what is not indexed yet, and give the labels numbers."""
        task = self.asked()
        names = self.class_names()
        # Both patterns first: what is missing shall not be found out after the files of train were indexed.
        found = {key: self._find(pattern, key) for key, pattern in (("data.train", self.train), ("data.val", self.val))}
        learned, scored = ([path.resolve() for path in paths] for paths in found.values())
        warn_of_leak(learned, scored)
        (train, train_labels), (val, val_labels) = (self._split(key, paths) for key, paths in found.items())
        targets = understand_found(
            train_labels, val_labels, task=task, classes=names, offset=self.label_offset, targets=self.targets,
            typed=self.typed,
        )  # fmt: skip
        return targets.of(train, val)

    def _split(self, given: str, paths: Sequence[Path]) -> tuple[list[Stored], Labeled]:
        files: list[Stored] = []
        indexes: list[Index] = []
        try:
            for file, index in load_indexes(
                paths, self._kind(), Path(self.dir), self._build(), is_whole=self._is_whole
            ):
                files += self._pictures(file, index)
                indexes.append(index)

            def name(place: int) -> str:
                return files[place].name

            parts = [self._labels(index) for index in indexes]
            return files, Labeled(given, join(parts, name), name, self._names(indexes))
        except UserError as error:
            raise UserError(f"{given}: {error}") from None

    def _find(self, pattern: str, key: str) -> list[Path]:
        return find_shards(pattern, key)

    def _kind(self) -> str:
        """Return what an index depends on besides its file."""
        return type(self).__name__

    def _build(self) -> Build:
        raise NotImplementedError

    def _pictures(self, file: RecordFile, index: Index) -> list[Stored]:
        return _spans(file, index)

    def _labels(self, index: Index) -> Labels:
        return Labels(index.labels, index.counts, tuple(index.words.tolist()))

    def _is_whole(self, file: RecordFile, index: Index) -> bool:
        return True

    def _names(self, indexes: Sequence[Index]) -> tuple[str, ...] | None:
        return None


def _spans(file: RecordFile, index: Index, unpack: Callable[[bytes], bytes | memoryview] | None = None) -> list[Stored]:
    return [
        Span(file, str(number), offset, length, unpack) for number, (offset, length) in enumerate(index.spans.tolist())
    ]


@source("tfrecord")
@dataclass(frozen=True, kw_only=True)
class TFRecord(Records):
    """TFRecord files of tf.train.Example, with or without TensorFlow."""

    image: str = setting(Text(default=IMAGE, doc="feature that holds the encoded picture"))
    label: str = setting(
        Text(default=LABEL, doc="feature that holds the classes: numbers, or bytes for names; floats are predicted")
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="features to predict as numbers; with data.multilabel=true, of 0 and 1 for labels")
    )

    def _kind(self) -> str:
        return f"tfrecord {self.image} {list(self.targets) or self.label}"

    def _build(self) -> Build:
        return partial(index_examples, image=self.image, label=self.label, targets=self.targets)


@source("recordio")
@dataclass(frozen=True, kw_only=True)
class RecordIO(Records):
    """MXNet's .rec files; the .idx beside one says which of its records count, and is done without if missing."""

    typed: ClassVar[bool] = False  # all are floats

    def _build(self) -> Build:
        return index_records

    def _pictures(self, file: RecordFile, index: Index) -> list[Stored]:
        if count := left_out(index):
            logger.warning(
                "%s: its index %s lists %d of %d records; without it, all are taken",
                file.path, file.path.with_suffix(".idx").name, len(index.spans), len(index.spans) + count,
            )  # fmt: skip
        return _spans(file, index, unpack)

    def _labels(self, index: Index) -> Labels:
        labels = super()._labels(index)
        if self.asked() != "multilabel" or self.targets:
            return labels
        told = labels.values != PADDING
        owners = np.repeat(np.arange(len(labels.counts)), labels.counts)[told]
        return Labels(labels.values[told], np.bincount(owners, minlength=len(labels.counts)).astype(np.int64))

    def _is_whole(self, file: RecordFile, index: Index) -> bool:
        return is_current(file.path, index)


@source("lmdb")
@dataclass(frozen=True, kw_only=True)
class Lmdb(Records):
    """Caffe's LMDB folders of Datum: encoded pictures, or pixels in blue, green, red."""

    def _find(self, pattern: str, key: str) -> list[Path]:
        if pattern.endswith(".mdb"):
            return find_shards(pattern, key)
        folder = Path(pattern).expanduser()
        if not is_pattern(pattern):
            self._require_database(folder, f"{key}={pattern}")
        return find_shards(f"{pattern}/data.mdb", key)

    def _require_database(self, folder: Path, given: str) -> None:
        """Raise, with what is probably meant, unless there is a database in a folder."""
        if not folder.exists():
            raise UserError(f"{given}: there is no folder {folder}.{near_file(folder)}")
        if not folder.is_dir():
            raise UserError(
                f"{given}: is a file. Allowed: a folder with data.mdb in it.{told_by_content(folder, 'lmdb')}"
            )
        if not (folder / "data.mdb").exists():
            others = sorted(str(file.parent) for file in folder.glob("*/data.mdb"))
            hint = f" Did you mean {folder}/* or one of these: {', '.join(others[:5])}?" if others else ""
            raise UserError(f"{given}: there is no data.mdb in it, so it is no LMDB database.{hint}")

    def _build(self) -> Build:
        return index_datums

    def _pictures(self, file: RecordFile, index: Index) -> list[Stored]:
        keys = index.keys.tobytes()
        return [DatumPicture(file, keys[start : start + length]) for start, length in index.spans.tolist()]


@source("parquet")
@dataclass(frozen=True, kw_only=True)
class Parquet(Records):
    """Parquet files, as of the Hugging Face hub; their pictures are unpacked into one plain file each, once."""

    image: str = setting(Text(default="image", doc="column of the encoded pictures: binary, or a struct with bytes"))
    label: str = setting(
        Text(default="label", doc="column of the classes: numbers, names, or lists of these; floats are predicted")
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="columns to predict as numbers; with data.multilabel=true, of 0 and 1 for labels")
    )

    def _kind(self) -> str:
        return f"parquet {self.image} {list(self.targets) or self.label}"

    def _build(self) -> Build:
        return partial(unpack_table, image=self.image, label=self.label, targets=self.targets, place=self._place)

    def _place(self, file: RecordFile) -> Path:
        digest = blake2b(f"{self._kind()} {file.path}".encode(), digest_size=12).hexdigest()
        return Path(self.dir) / "parquet" / f"{digest}.pictures"

    def _pictures(self, file: RecordFile, index: Index) -> list[Stored]:
        place = self._place(file)
        unpacked = RecordFile.of(place.resolve())
        # People know the file that they gave, not the one that is read.
        return [
            Span(unpacked, str(row), offset, length, label=file.path.name)
            for row, (offset, length) in enumerate(index.spans.tolist())
        ]

    def _is_whole(self, file: RecordFile, index: Index) -> bool:
        return is_kept(index, self._place(file))

    def _names(self, indexes: Sequence[Index]) -> tuple[str, ...] | None:
        return class_names(indexes[0])
