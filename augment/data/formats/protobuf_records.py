"""Files of protobuf messages: TFRecord files of tf.train.Example, and Caffe's LMDB, a database of Datum.

A TFRecord file is a sequence of records: length (uint64), its checksum (uint32), the bytes, their checksum (uint32),
all little-endian. Sources: tensorflow.org/tutorials/load_data/tfrecord for the records and the masked CRC-32C,
tensorflow/core/example/example.proto, feature.proto and BVLC/caffe/src/caffe/proto/caffe.proto for the messages.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format
from google_crc32c import value as checksum

from augment.data.formats.records import OPEN_FILES, Record, RecordFile, cut_short, damaged, mapped, record_bytes
from augment.data.images import as_ppm
from augment.data.targets.class_names import Label
from augment.support.errors import UserError, first_line, suggest

# A FileDescriptorProto as text. FeatureEntry is an entry of a map, which protobuf encodes in the same way.
_SCHEMA = """
name: "images.proto"
package: "images"
syntax: "proto2"
message_type {
  name: "BytesList"
  field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED }
}
message_type {
  name: "FloatList"
  field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED options { packed: true } }
}
message_type {
  name: "Int64List"
  field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED options { packed: true } }
}
message_type {
  name: "Feature"
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".images.BytesList" label: LABEL_OPTIONAL }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".images.FloatList" label: LABEL_OPTIONAL }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".images.Int64List" label: LABEL_OPTIONAL }
}
message_type {
  name: "FeatureEntry"
  field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".images.Feature" label: LABEL_OPTIONAL }
}
message_type {
  name: "Features"
  field { name: "feature" number: 1 type: TYPE_MESSAGE type_name: ".images.FeatureEntry" label: LABEL_REPEATED }
}
message_type {
  name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".images.Features" label: LABEL_OPTIONAL }
}
message_type {
  name: "Datum"
  field { name: "channels" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "height" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "width" number: 3 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "data" number: 4 type: TYPE_BYTES label: LABEL_OPTIONAL }
  field { name: "label" number: 5 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "float_data" number: 6 type: TYPE_FLOAT label: LABEL_REPEATED options { packed: true } }
  field { name: "encoded" number: 7 type: TYPE_BOOL label: LABEL_OPTIONAL }
}
"""
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()))

Example: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("images.Example"))
Datum: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("images.Datum"))
DecodeError: Any = message.DecodeError

_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_HEAD = _LENGTH.size + _CHECKSUM.size


def read_examples(file: RecordFile, *, image: str, label: str, targets: Sequence[str] = ()) -> Iterator[Record]:
    """Yield the records of a file. Compare the checksum of each record.

    Args:
        file: the file.
        image: the feature with the encoded image.
        label: the feature with class numbers, class names as bytes, or floats to predict.
        targets: features with one number each, instead of `label`.

    Raises:
        UserError: the file is not a TFRecord file, is truncated or damaged, or a record is not an Example or lacks a
            feature.
    """
    named = [("data.image", image), *([("data.targets", name) for name in targets] or [("data.label", label)])]
    with mapped(file) as buffer:
        for number, (start, stop) in enumerate(_records(buffer)):
            record = record_bytes(buffer, start, stop, number)
            if masked_crc(record) != _CHECKSUM.unpack_from(buffer, stop)[0]:
                raise UserError(f"record {number}, at byte {start - _HEAD:,}, is damaged: its checksum differs.")
            try:
                features = {entry.key: entry.value for entry in Example.FromString(record).features.feature}
                for key, name in named:
                    if name not in features:
                        raise UserError(f"record {number} has no feature '{name}' ({key}).{suggest(name, features)}")
                labels = [_number(features[name], name) for name in targets] or _labels(features[label])
                content = _image(features[image], image)
            except (DecodeError, UnicodeDecodeError) as error:
                raise UserError(f"record {number} cannot be read as a tf.train.Example: {error}.") from None
            except ValueError as error:
                raise UserError(f"record {number}: {error}.") from None
            # Searching for the first few bytes is 10x as fast as searching for all bytes.
            offset = record.index(content[:_HEAD])
            if not record.startswith(content, offset):
                offset = record.index(content)
            yield Record(start + offset, len(content), labels)


def _records(buffer: memoryview) -> Iterator[tuple[int, int]]:
    offset, count = 0, 0
    while offset < len(buffer):
        start = offset + _HEAD
        stop = len(buffer)
        if start <= len(buffer):
            head = bytes(buffer[offset:start])
            if masked_crc(head[: _LENGTH.size]) != _CHECKSUM.unpack_from(head, _LENGTH.size)[0]:
                raise damaged(offset, count, "TFRecord")
            stop = start + _LENGTH.unpack_from(head)[0]
        offset = stop + _CHECKSUM.size
        if offset > len(buffer):
            raise cut_short(len(buffer), count)
        yield start, stop
        count += 1


def masked_crc(content: bytes) -> int:
    """Return the checksum of a record: CRC-32C, rotated right by 15 bits, plus a constant."""
    crc: int = checksum(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _image(feature: Any, name: str) -> bytes:
    images = feature.bytes_list.value
    if len(images) != 1:
        raise ValueError(f"feature '{name}' (data.image) holds {len(images)} byte strings instead of one image")
    return bytes(images[0])


def _labels(feature: Any) -> list[Label]:
    texts = [text.decode() for text in feature.bytes_list.value]
    return [*texts, *feature.float_list.value, *feature.int64_list.value]


def _number(feature: Any, name: str) -> Label:
    values = [*feature.float_list.value, *feature.int64_list.value]
    if len(values) != 1:
        raise ValueError(f"feature '{name}' (data.targets) holds {len(values)} numbers instead of one")
    return float(values[0])


_OPENING = Lock()


@dataclass(frozen=True, slots=True)
class DatumImage:
    """An image in an LMDB database."""

    file: RecordFile  # data.mdb
    key: bytes

    @property
    def name(self) -> str:
        return f"{self.file.path.parent.name}/{self.key.decode(errors='replace')}"

    @property
    def slot(self) -> str:
        """The key in hexadecimal, which identifies the image in its file."""
        return self.key.hex()

    def read(self) -> bytes:
        """Return the encoded image. Pixels are returned as PPM, which costs no more than copying them.

        Raises:
            OSError: the database is gone or has changed.
        """
        environment = _environment(self.file)
        self.file.require_unchanged()
        with environment.begin(buffers=True) as transaction:
            value = transaction.get(self.key)
            if value is None:
                raise self.file.changed()
            datum = _datum(value)
            if not datum.data or _is_encoded(datum):  # decoding reports an empty image
                return bytes(datum.data)
            # Caffe's own tool stores the planes of OpenCV's pixels: blue, green, red.
            planes = np.frombuffer(datum.data, np.uint8).reshape(datum.channels, datum.height, datum.width)
            return as_ppm(planes[::-1].transpose(1, 2, 0))


def read_datums(file: RecordFile) -> Iterator[Record]:
    """Yield the records of a database in the order of their keys. Their names are the keys in hexadecimal.

    Raises:
        UserError: the file is not a database, or is truncated, or a record is not an image.
    """
    import lmdb

    try:
        with _environment(file).begin(buffers=True) as transaction:
            seen = set[str]()
            for key, value in transaction.cursor():
                if (name := bytes(key).hex()) in seen:  # pages that refer to the same page could repeat it endlessly
                    raise UserError(f"has several records with the key {bytes(key).decode(errors='replace')}.")
                seen.add(name)
                try:
                    datum = _datum(value)
                except (DecodeError, ValueError) as error:
                    shown = bytes(key).decode(errors="replace")
                    raise UserError(f"record {shown} cannot be read as a Datum with an image: {error}.") from None
                yield Record(0, len(datum.data), [datum.label], name)
    except lmdb.Error as error:
        why = first_line(error).removeprefix(f"{file.path}: ")
        raise UserError(f"cannot be read as an LMDB database: {why}.") from None


def _environment(file: RecordFile) -> Any:
    """Return an open database. LMDB cannot be opened twice in a process, or used after a fork."""
    with _OPENING:
        return _opened(file, os.getpid())


@lru_cache(OPEN_FILES)
def _opened(file: RecordFile, _process: int) -> Any:
    import lmdb

    file.require_unchanged()
    environment = lmdb.open(str(file.path), subdir=False, readonly=True, lock=False, readahead=False, create=False)
    pages, size = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
    if pages * size > file.size:  # reading past the end would kill the process
        environment.close()
        raise lmdb.CorruptedError(f"it is truncated to {file.size:,} of {pages * size:,} bytes")
    return environment


def _datum(value: memoryview) -> Any:
    """Return a Datum.

    Raises:
        DecodeError: the message cannot be parsed.
        ValueError: the message holds no supported image.
    """
    datum = Datum.FromString(bytes(value))
    if not datum.HasField("data"):
        raise ValueError("it has no data. Store encoded images or bytes instead of float_data")
    if datum.data and not _is_encoded(datum) and datum.channels not in (1, 3):
        raise ValueError(f"it has {datum.channels} channels instead of 1 or 3")
    return datum


def _is_encoded(datum: Any) -> bool:
    """Whether the data is an encoded image instead of pixels. Some writers do not mark it, but the size differs."""
    return bool(datum.encoded) or len(datum.data) != datum.channels * datum.height * datum.width
