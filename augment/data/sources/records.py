"""The sources that read files of records: tar shards, TFRecord, RecordIO, LMDB, Parquet."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from augment.data.dataset import DATA_DIR, Dataset, StoredImage
from augment.data.formats.caffe import DatumImage, index_datums
from augment.data.formats.detection import describe_content
from augment.data.formats.index import Build, Index, load_indexes
from augment.data.formats.parquet import class_names, unpack_table
from augment.data.formats.recordio import PADDING, index_records, left_out, unpack
from augment.data.formats.shards import find_shards, is_pattern
from augment.data.formats.spans import RecordFile, Span
from augment.data.formats.tfrecord import IMAGE, LABEL, index_examples
from augment.data.formats.webdataset import image_names, index_shard
from augment.data.sources.notices import MAX_BAD, SKIP_BAD, check_images
from augment.data.sources.registry import LabeledSource, source
from augment.data.targets.interpretation import make_dataset
from augment.data.targets.labels import Label, LabeledSplit, pack
from augment.params import WRITES, Text, Texts, setting
from augment.support.errors import UserError
from augment.support.files import digest, expanded, near_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Records(LabeledSource):
    """Base of the sources that read files of records."""

    typed: ClassVar[bool] = True  # whether the files distinguish floats from whole numbers

    train: str = setting(Text(required=True, doc="the training files, such as DIR/train-* or DIR/train-{000..009}"))
    val: str | None = setting(Text(optional=True, doc="the validation files; null: with val_fraction or folds"))
    classes: str | None = setting(
        Text(optional=True, doc="file with one class name per line; null: the names found, else the labels themselves")
    )
    skip_bad: bool = setting(SKIP_BAD)
    max_bad: int = setting(MAX_BAD)
    dir: str = setting(
        Text(
            default=DATA_DIR,
            doc="folder for the index of the files, and for images that are unpacked",
            reach=WRITES,
        )
    )

    def load(self) -> Dataset:
        """Index new or changed files, check every image once, and give the labels numbers."""
        return check_images(
            self.unchecked(),
            Path(self.train).resolve(),
            skip_bad=self.skip_bad,
            max_bad=self.max_bad,
            folder=self.dir,
            only_val=self.only_val,
        )

    def unchecked(self) -> Dataset:
        """Index new or changed files, and give the labels numbers."""
        options = self.target_options()
        # Both patterns first: a missing file of val should be reported before the files of train are indexed.
        found = {key: self._find(pattern, key) for key, pattern in self.given().items()}
        return make_dataset([self._split(key, paths) for key, paths in found.items()], options, typed=self.typed)

    def _split(self, key: str, paths: Sequence[Path]) -> LabeledSplit:
        images: list[StoredImage] = []
        indexes: list[Index] = []

        def name(index: int) -> str:
            return images[index].name

        try:
            loaded = load_indexes(paths, self._kind(), Path(self.dir), self._build(), self._companion)
            for file, index in loaded:
                images += self._images(file, index)
                indexes.append(index)
            labels = pack([some for index in indexes for some in self._labels(index)], name)
        except UserError as error:
            raise UserError(f"{key}: {error}") from None
        return LabeledSplit(key, images, labels, name, self._names(indexes))

    def _find(self, pattern: str, key: str) -> list[Path]:
        return find_shards(pattern, key)

    def _kind(self) -> str:
        """Return the source's name and the settings that an index depends on."""
        given = [getattr(self, name, None) for name in ("image", "label", "targets")]
        return f"{type(self).__name__} {given}"

    def _build(self) -> Build:
        """Return the function that indexes a file."""
        raise NotImplementedError

    def _images(self, file: RecordFile, index: Index) -> Sequence[StoredImage]:
        return _spans(file, index)

    def _labels(self, index: Index) -> list[list[Label]]:
        return index.labels.lists()

    def _companion(self, file: RecordFile) -> Path | None:
        """Return another file that the index depends on."""
        return None

    def _names(self, indexes: Sequence[Index]) -> tuple[str, ...] | None:
        return None


def _spans(file: RecordFile, index: Index, keys: Iterable[str] = (), **more: Any) -> list[Span]:
    """Return the images of a file, named by their keys or numbers."""
    keys = keys or map(str, range(len(index.spans)))
    return [Span(file, key, *span, **more) for key, span in zip(keys, index.spans.tolist(), strict=True)]


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

    def _kind(self) -> str:
        return f"{super()._kind()} {self.task}"

    def _build(self) -> Build:
        return partial(index_shard, label=self.label, targets=self.targets, numbers=self.task == "regress")

    def _images(self, file: RecordFile, index: Index) -> Sequence[StoredImage]:
        return _spans(file, index, image_names(index))


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

    def _build(self) -> Build:
        return partial(index_examples, image=self.image, label=self.label, targets=self.targets)


@source("recordio")
@dataclass(frozen=True, kw_only=True)
class RecordIO(Records):
    """MXNet's .rec files; an optional .idx file next to each lists the records to use."""

    typed: ClassVar[bool] = False  # all are floats

    def _build(self) -> Build:
        return index_records

    def _images(self, file: RecordFile, index: Index) -> Sequence[StoredImage]:
        if count := left_out(index):
            logger.warning(
                "%s: its index %s lists %d of %d records; without it, all are used",
                file.path, file.path.with_suffix(".idx").name, len(index.spans), len(index.spans) + count,
            )  # fmt: skip
        return _spans(file, index, unpack=unpack)

    def _labels(self, index: Index) -> list[list[Label]]:
        labels = super()._labels(index)
        if self.targets or not (self.multilabel or self.task == "multilabel"):
            return labels
        return [[label for label in some if label != PADDING] for some in labels]

    def _companion(self, file: RecordFile) -> Path:
        return file.path.with_suffix(".idx")


@source("lmdb")
@dataclass(frozen=True, kw_only=True)
class Lmdb(Records):
    """Caffe's LMDB folders of Datum: encoded images, or pixels in BGR order."""

    def _find(self, pattern: str, key: str) -> list[Path]:
        if pattern.endswith(".mdb"):
            return find_shards(pattern, key)
        folder = expanded(pattern)
        if not is_pattern(pattern):
            given = f"{key}={pattern}"
            if not folder.exists():
                raise UserError(f"{given}: there is no folder {folder}.{near_file(folder, folder=True)}")
            if not folder.is_dir():
                raise UserError(
                    f"{given}: is a file. Allowed: a folder with data.mdb in it.{describe_content(folder, 'lmdb')}"
                )
            if not (folder / "data.mdb").exists():
                others = sorted(str(file.parent) for file in folder.glob("*/data.mdb"))
                hint = f" Did you mean {folder}/* or one of these: {', '.join(others[:5])}?" if others else ""
                raise UserError(f"{given}: there is no data.mdb in it, so it is not an LMDB database.{hint}")
        return find_shards(f"{pattern}/data.mdb", key)

    def _build(self) -> Build:
        return index_datums

    def _images(self, file: RecordFile, index: Index) -> Sequence[StoredImage]:
        return [DatumImage(file, index.keys[start : start + length]) for start, length in index.spans.tolist()]


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

    def _build(self) -> Build:
        return partial(
            unpack_table, image=self.image, label=self.label, targets=self.targets, destination=self._companion
        )

    def _companion(self, file: RecordFile) -> Path:
        return Path(self.dir) / "parquet" / f"{digest(self._kind(), file.path)}.images"

    def _images(self, file: RecordFile, index: Index) -> Sequence[StoredImage]:
        unpacked = RecordFile.of(self._companion(file).resolve())
        # Messages name the file that the user gave, not the unpacked one.
        return _spans(unpacked, index, label=file.path.name)

    def _names(self, indexes: Sequence[Index]) -> tuple[str, ...] | None:
        return class_names(indexes[0])
