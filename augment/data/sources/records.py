"""The sources that read files of many records: tar shards, TFRecord, RecordIO, LMDB and Parquet."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from augment.data.dataset import DATA_DIR, Dataset, StoredImage
from augment.data.formats.messages import IMAGE, LABEL, DatumImage, read_datums, read_examples
from augment.data.formats.parquet import class_names, read_table
from augment.data.formats.recordio import read_records, unpack
from augment.data.formats.records import Index, Reader, RecordFile, Span, find_shards, is_pattern, load_indexes
from augment.data.formats.webdataset import read_shard
from augment.data.sources.registry import CheckedSource, LabeledSource, source
from augment.data.sources.remote import fetch_shards, is_new, is_url
from augment.data.targets.interpretation import make_dataset
from augment.data.targets.labels import LABELS
from augment.data.targets.names import Label, LabeledSplit, pack
from augment.data.targets.numbers import NUMBERS
from augment.params import WRITES, Number, Text, Texts, setting
from augment.support.errors import UserError
from augment.support.files import digest, expanded, near_file


@dataclass(frozen=True, kw_only=True)
class Records(CheckedSource, LabeledSource):
    """Base of the sources that read files of records."""

    typed: ClassVar[bool] = True  # whether the files distinguish floats from whole numbers

    train: str = setting(Text(required=True, doc="the training files: DIR/train-*, s3://bucket/train-{000..009}.tar"))
    dir: str = setting(Text(default=DATA_DIR, doc="folder for indexes, fetched shards, unpacked images", reach=WRITES))
    cache_gb: float | None = setting(
        Number(optional=True, above=0, unit="GB", doc="most that fetched shards take in dir; null: what its disk holds")
    )

    def load(self) -> Dataset:
        """Index new or changed files, and give the labels numbers."""
        options = self.target_options()
        given = self.given()
        # Both patterns first: a missing file of val should be reported before the files of train are indexed.
        found = {key: self._find(pattern, key) for key, pattern in given.items() if not is_url(pattern)}
        found |= fetch_shards(given, Path(self.dir, "remote"), self.cache_gb)
        return make_dataset([self._split(key, found[key]) for key in given], options, typed=self.typed)

    def downloads(self) -> str:
        """Return the setting of shards that are elsewhere and were never fetched."""
        given = (("train", self.train), ("val", self.val or ""))
        return next((key for key, pattern in given if is_new(pattern, Path(self.dir, "remote"))), "")

    def _split(self, key: str, paths: Sequence[Path]) -> LabeledSplit:
        images: list[StoredImage] = []
        labels: list[list[Label]] = []

        def name(index: int) -> str:
            return images[index].name

        try:
            given = [getattr(self, name, None) for name in ("image", "label", "targets", "kind")]
            for file, index in load_indexes(
                paths, f"{type(self).__name__} {given}", Path(self.dir), self._reader(), self._companion
            ):
                images += self._images(file, index)
                labels += index.labels.lists()
            return LabeledSplit(key, images, pack(labels, name), name, self._names(paths[0]))
        except UserError as error:
            raise UserError(f"{key}: {error}") from None

    def _find(self, pattern: str, key: str) -> list[Path]:
        return find_shards(pattern, key)

    def _reader(self) -> Reader:
        raise NotImplementedError

    def _images(self, file: RecordFile, index: Index) -> Sequence[StoredImage]:
        return _spans(file, index)

    def _companion(self, file: RecordFile) -> Path | None:
        """Return another file that the index depends on."""
        return None

    def _names(self, path: Path) -> tuple[str, ...] | None:
        """Return the names of classes that come with the first file."""
        return None


def _spans(file: RecordFile, index: Index, **more: Any) -> list[Span]:
    """Return the images of a file, named by their keys or numbers."""
    spans = zip(index.names, index.spans.tolist(), strict=True)
    return [Span(file, name, offset, length, **more) for name, (offset, length) in spans]


@source("webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(Records):
    """Tar shards of pairs such as cat_1.jpg and cat_1.cls (number or name of a class) or cat_1.json, read in place."""

    typed: ClassVar[bool] = False  # a .cls file is text

    label: str | None = setting(
        Text(optional=True, doc="where labels are: an extension such as cls, or json.FIELD; null: cls, else json.label")
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="fields of .json to predict as numbers; with data.multilabel=true, of 0 and 1 for labels")
    )

    def _reader(self) -> Reader:
        return partial(read_shard, label=self.label, targets=self.targets, numbers=self.kind == NUMBERS)


@source("tfrecord")
@dataclass(frozen=True, kw_only=True)
class TFRecord(Records):
    """TFRecord files of tf.train.Example, with or without TensorFlow."""

    image: str = setting(Text(default=IMAGE, doc="feature that holds the encoded image"))
    label: str = setting(
        Text(default=LABEL, doc="feature that holds the classes: numbers, or bytes for names; floats are predicted")
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="features to predict as numbers; with data.multilabel=true, of 0 and 1 for labels")
    )

    def _reader(self) -> Reader:
        return partial(read_examples, image=self.image, label=self.label, targets=self.targets)


@source("recordio")
@dataclass(frozen=True, kw_only=True)
class RecordIO(Records):
    """MXNet's .rec files; their .idx files are not needed."""

    typed: ClassVar[bool] = False  # all are floats

    def _reader(self) -> Reader:
        return partial(read_records, padded=not self.targets and self.kind == LABELS)

    def _images(self, file: RecordFile, index: Index) -> Sequence[StoredImage]:
        return _spans(file, index, unpack=unpack)


@source("lmdb")
@dataclass(frozen=True, kw_only=True)
class Lmdb(Records):
    """Caffe's LMDB folders of Datum: encoded images, or pixels in BGR order."""

    def _find(self, pattern: str, key: str) -> list[Path]:
        if pattern.endswith(".mdb"):
            return find_shards(pattern, key)
        folder = expanded(pattern)
        if not is_pattern(pattern) and not (folder / "data.mdb").exists():
            near = "" if folder.exists() else near_file(folder, folder=True)
            raise UserError(f"{key}={pattern}: is no LMDB database, which is a folder with data.mdb in it.{near}")
        return find_shards(f"{pattern}/data.mdb", key)

    def _reader(self) -> Reader:
        return read_datums

    def _images(self, file: RecordFile, index: Index) -> Sequence[StoredImage]:
        return [DatumImage(file, bytes.fromhex(name)) for name in index.names]


@source("parquet")
@dataclass(frozen=True, kw_only=True)
class Parquet(Records):
    """Parquet files, as on the Hugging Face hub; each image is unpacked once, into a file of its own."""

    image: str = setting(Text(default="image", doc="column of the encoded images: binary, or a struct with bytes"))
    label: str = setting(
        Text(default="label", doc="column of the classes: numbers, names, or lists of these; floats are predicted")
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="columns to predict as numbers; with data.multilabel=true, of 0 and 1 for labels")
    )

    def _reader(self) -> Reader:
        return partial(
            read_table, image=self.image, label=self.label, targets=self.targets, destination=self._companion
        )

    def _companion(self, file: RecordFile) -> Path:
        name = digest((self.image, self.label, self.targets), file.path)
        return Path(self.dir) / "parquet" / f"{name}.images"

    def _images(self, file: RecordFile, index: Index) -> Sequence[StoredImage]:
        unpacked = RecordFile.of(self._companion(file).resolve())
        # Messages name the file that the user gave, not the unpacked one.
        return _spans(unpacked, index, label=file.path.name)

    def _names(self, path: Path) -> tuple[str, ...] | None:
        return None if self.targets else class_names(path, self.label)
