"""The sources that read files of many images: tar shards, TFRecord, RecordIO, LMDB and Parquet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from augment.data.check import check_cache_of, examine_files
from augment.data.dataset import DATA_DIR, Dataset
from augment.data.formats.parquet import read_parquet, schema_class_names
from augment.data.formats.recordio import read_records, unpack
from augment.data.formats.records import Index, Reader, RecordFile, Span, find_shards, load_indexes
from augment.data.formats.webdataset import read_shard
from augment.data.images import StoredImage
from augment.data.sources.registry import CheckedSource, LabeledSource, source
from augment.data.sources.remote import KEPT, WINDOW, fetch_shards, is_url, list_files
from augment.data.targets.class_names import Label, LabeledSplit, pack
from augment.data.targets.interpretation import make_dataset
from augment.data.targets.multilabel import LABELS
from augment.data.targets.regression import NUMBERS
from augment.params import MATCHES, WRITES, Count, Number, Text, Texts, setting
from augment.support.errors import UserError
from augment.support.files import digest
from augment.support.formatting import list_some

IMAGE, LABEL = "image/encoded", "image/class/label"  # of TFRecord files


@dataclass(frozen=True, kw_only=True)
class Records(CheckedSource, LabeledSource):
    """Base of the sources that read record files."""

    has_number_types: ClassVar[bool] = True  # whether the files distinguish floats from integers

    train: str = setting(
        Text(required=True, doc="training files: `DIR/train-*`, `s3://bucket/train-{000..009}.tar`", reach=MATCHES)
    )
    dir: str = setting(
        Text(default=DATA_DIR, doc="folder for indexes, downloaded shards and unpacked images", reach=WRITES)
    )
    cache_gb: float | None = setting(
        Number(
            optional=True,
            above=0,
            unit="GB",
            doc="maximum disk space of downloaded shards in dir. Default: the free disk space minus 1 GB",
        )
    )
    window: int | None = setting(
        Count(
            optional=True,
            within=(1, 10**6),
            doc="number of shards that are shuffled together. Two windows of remote shards are kept. Default: all",
        )
    )

    def load(self) -> Dataset:
        """Index new or changed files, and map the labels to class numbers."""
        options = self.target_options()
        given = self.split_values()
        urls = {key: pattern for key, pattern in given.items() if is_url(pattern)}
        # Find the files of both splits first, so that a missing validation file is reported before indexing.
        files = {key: _record_files(self._find(pattern, key)) for key, pattern in given.items() if key not in urls}
        if self.window and "data.train" in urls:
            train = urls.pop("data.train")
            files["data.train"] = list_files("data.train", train, Path(self.dir, WINDOW), self.cache_gb)
        for key, paths in fetch_shards(urls, Path(self.dir, KEPT), self.cache_gb).items():
            files[key] = _record_files(paths)
        splits = [self._split(key, files[key]) for key in given]
        dataset = make_dataset(splits, options, has_number_types=self.has_number_types)
        return replace(dataset, train=replace(dataset.train, window=self.window or 0))

    def _split(self, key: str, files: Mapping[str, RecordFile]) -> LabeledSplit:
        try:
            images, labels, names = self._read(files)

            def name(index: int) -> str:
                return images[index].name

            return LabeledSplit(key, images, pack(labels, name), name, names)
        except UserError as error:
            raise error if str(error).startswith(f"{key}=") else UserError(f"{key}: {error}") from None

    def _read(
        self, files: Mapping[str, RecordFile]
    ) -> tuple[list[StoredImage], list[list[Label]], tuple[str, ...] | None]:
        """Return the images, the labels of each image, and the class names that the files contain."""
        images: list[StoredImage] = []
        unchecked: list[StoredImage] = []
        labels: list[list[Label]] = []
        first: tuple[str, ...] | None = None
        given = [getattr(self, name, None) for name in ("image", "label", "targets", "kind")]
        settings, ahead = f"{type(self).__name__} {given}", self.window or 1
        indexes = load_indexes(files, settings, Path(self.dir), self._reader(), self._companion, ahead=ahead)
        for number, (file, index, is_new) in enumerate(indexes, 1):
            if number == 1 or is_new or file.stays:
                names = self._names(file)
                first = first or names
                if names != first and names and not self.classes:
                    raise UserError(
                        f"{file.path.name} has the class names {list_some(names)}, but earlier files have "
                        f"{list_some(first or ())}. Use the same names in all files, or set data.classes=FILE."
                    )
            images += self._images(file, index)
            labels += index.labels.lists()
            if is_new and not file.stays:
                # Check the images of a remote shard now, because the shard may be removed to make room for others.
                unchecked += images[-len(index.names) :]
            if unchecked and (number % ahead == 0 or number == len(files)):
                examine_files(unchecked, cache=check_cache_of(self), quiet=True)
                unchecked = []
        return images, labels, first

    def _find(self, pattern: str, key: str) -> list[Path]:
        return find_shards(pattern, key)

    def _reader(self) -> Reader:
        raise NotImplementedError

    def _images(self, file: RecordFile, index: Index) -> Sequence[StoredImage]:
        return _spans(file, index)

    def _companion(self, file: RecordFile) -> Path | None:
        """Return another file that the index depends on."""
        return None

    def _names(self, file: RecordFile) -> tuple[str, ...] | None:
        """Return the class names that a file contains."""
        return None


def _record_files(paths: Sequence[Path]) -> dict[str, RecordFile]:
    return {str(path): RecordFile.of(path.resolve()) for path in paths}


def _spans(file: RecordFile, index: Index, **more: Any) -> list[Span]:
    """Return the images of a file, named by their keys or numbers."""
    spans = zip(index.names, index.spans.tolist(), strict=True)
    return [Span(file, name, offset, length, **more) for name, (offset, length) in spans]


@source("webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(Records):
    """Tar shards of pairs such as `cat_1.jpg` with `cat_1.cls` (a class number or name) or `cat_1.json`."""

    has_number_types: ClassVar[bool] = False  # a .cls file is text

    label: str | None = setting(
        Text(
            optional=True,
            doc="source of labels: an extension such as `cls`, or `json.FIELD`. Default: `cls`, or else `json.label`",
        )
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="JSON fields of numbers to predict, or of 0 and 1 with data.multilabel=true")
    )

    def _reader(self) -> Reader:
        return partial(read_shard, label=self.label, targets=self.targets, numbers=self.kind == NUMBERS)


@source("tfrecord")
@dataclass(frozen=True, kw_only=True)
class TFRecord(Records):
    """TFRecord files of tf.train.Example, with or without TensorFlow."""

    image: str = setting(Text(default=IMAGE, doc="feature with the encoded image"))
    label: str = setting(
        Text(default=LABEL, doc="feature with class numbers, class names as bytes, or floats to predict")
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="features with numbers to predict, or with 0 and 1 with data.multilabel=true")
    )

    def _reader(self) -> Reader:
        from augment.data.formats.protobuf_records import read_examples  # slow to import

        return partial(read_examples, image=self.image, label=self.label, targets=self.targets)


@source("recordio")
@dataclass(frozen=True, kw_only=True)
class RecordIO(Records):
    """MXNet's `.rec` files. Their `.idx` files are not needed."""

    has_number_types: ClassVar[bool] = False  # all labels are floats

    def _reader(self) -> Reader:
        return partial(read_records, padded=not self.targets and self.kind == LABELS)

    def _images(self, file: RecordFile, index: Index) -> Sequence[StoredImage]:
        return _spans(file, index, unpack=unpack)


@source("lmdb")
@dataclass(frozen=True, kw_only=True)
class Lmdb(Records):
    """Caffe's LMDB folders of Datum messages: encoded images, or pixels in BGR order."""

    def _find(self, pattern: str, key: str) -> list[Path]:
        return find_shards(pattern if pattern.endswith(".mdb") else f"{pattern}/data.mdb", key)

    def _reader(self) -> Reader:
        from augment.data.formats.protobuf_records import read_datums

        return read_datums

    def _images(self, file: RecordFile, index: Index) -> Sequence[StoredImage]:
        from augment.data.formats.protobuf_records import DatumImage

        return [DatumImage(file, bytes.fromhex(name)) for name in index.names]


@source("parquet")
@dataclass(frozen=True, kw_only=True)
class Parquet(Records):
    """Parquet files, as on the Hugging Face Hub. Their images are unpacked into a file once."""

    image: str = setting(Text(default="image", doc="column of the encoded images: binary, or a struct with bytes"))
    label: str = setting(
        Text(default="label", doc="column of class numbers, class names, lists of these, or floats to predict")
    )
    targets: tuple[str, ...] = setting(
        Texts(default=(), doc="columns of numbers to predict, or of 0 and 1 with data.multilabel=true")
    )

    def load(self) -> Dataset:
        """Unpack new or changed files, and map the labels to class numbers."""
        if self.window and is_url(self.train):
            raise UserError(
                f"data.window={self.window}: remote Parquet files are downloaded as a whole. Remove data.window, or "
                "convert the data with --to webdataset."
            )
        return super().load()

    def _reader(self) -> Reader:
        return partial(
            read_parquet, image=self.image, label=self.label, targets=self.targets, destination=self._companion
        )

    def _companion(self, file: RecordFile) -> Path:
        name = digest((self.image, self.label, self.targets), file.path)
        return Path(self.dir) / "parquet" / f"{name}.images"

    def _images(self, file: RecordFile, index: Index) -> Sequence[StoredImage]:
        unpacked = RecordFile.of(self._companion(file).resolve())
        # Messages name the user's file instead of the unpacked one.
        return _spans(unpacked, index, label=file.path.name)

    def _names(self, file: RecordFile) -> tuple[str, ...] | None:
        return None if self.targets else schema_class_names(file.path, self.label)
