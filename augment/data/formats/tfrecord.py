"""TFRecord files of tf.train.Example; and Caffe's Datum, which is a message as well.

A file is a sequence of records: length (uint64), its checksum (uint32), the bytes, their checksum (uint32), all little
endian. Source of the framing and of the masked CRC-32C: tensorflow.org/tutorials/load_data/tfrecord; of the messages:
tensorflow/core/example/example.proto and feature.proto, BVLC/caffe/src/caffe/proto/caffe.proto.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from google_crc32c import value as checksum

from augment.data.formats.records import Record, RecordFile, mapped
from augment.data.targets.names import Label
from augment.support.errors import UserError, suggest

# The fields of each message: name, number and type; several values are "repeated".
_MESSAGES = {
    "BytesList": "value 1 bytes repeated",
    "FloatList": "value 1 float repeated",
    "Int64List": "value 1 int64 repeated",
    "Feature": "bytes_list 1 BytesList, float_list 2 FloatList, int64_list 3 Int64List",
    "FeatureEntry": "key 1 string, value 2 Feature",  # of a map, which is the same in a file
    "Features": "feature 1 FeatureEntry repeated",
    "Example": "features 1 Features",
    "Datum": "channels 1 int32, height 2 int32, width 3 int32, data 4 bytes, label 5 int32, "
    "float_data 6 float repeated, encoded 7 bool",
}


def _declare() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="images.proto", package="images", syntax="proto2")
    for name_of, fields in _MESSAGES.items():
        declared = file.message_type.add(name=name_of)
        for field, number, kind, *repeated in map(str.split, fields.split(", ")):
            added = declared.field.add(name=field, number=int(number), label=3 if repeated else 1)
            if kind in _MESSAGES:
                added.type, added.type_name = added.TYPE_MESSAGE, f".images.{kind}"
            else:
                added.type = added.Type.Value(f"TYPE_{kind.upper()}")
                added.options.packed = bool(repeated) and kind != "bytes"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _declare()

Example: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("images.Example"))
Datum: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("images.Datum"))

# What their `FromString` raises.
DecodeError: Any = message.DecodeError


IMAGE, LABEL = "image/encoded", "image/class/label"

_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_HEAD = _LENGTH.size + _CHECKSUM.size


def read_examples(
    file: RecordFile, *, image: str = IMAGE, label: str = LABEL, targets: Sequence[str] = ()
) -> Iterator[Record]:
    """Yield the records of a file.

    Compare all checksums, which means reading the whole file, as the check of the images does later. The feature of
    labels holds int64, bytes for the names of classes, or floats to predict; targets are features of a number each,
    instead of labels.

    Raises:
        UserError: the file is not a TFRecord file, truncated or damaged, or a record is not an Example or lacks a
            feature.
    """
    named = [("data.image", image), *([("data.targets", name) for name in targets] or [("data.label", label)])]
    with mapped(file) as buffer:
        for number, (start, stop) in enumerate(_records(buffer)):
            record = bytes(buffer[start:stop])
            if masked_crc(record) != _CHECKSUM.unpack_from(buffer, stop)[0]:
                raise UserError(f"record {number}, at byte {start - _HEAD:,}, is damaged: its checksum is another.")
            try:
                features = {entry.key: entry.value for entry in Example.FromString(record).features.feature}
                for key, name in named:
                    if name not in features:
                        raise UserError(f"record {number} has no feature '{name}' ({key}).{_suggest(name, features)}")
                labels = [_number(features[name], name) for name in targets] or _labels(features[label])
                content = _image(features[image], image)
            except (DecodeError, UnicodeDecodeError) as error:
                raise UserError(f"record {number} is not a tf.train.Example that can be read: {error}.") from None
            except ValueError as error:
                raise UserError(f"record {number}: {error}.") from None
            # Wherever these bytes are found, they are the image; the first few are found ten times as fast as all.
            offset = record.index(content[:_HEAD])
            if not record.startswith(content, offset):
                offset = record.index(content)
            yield Record(start + offset, len(content), labels)


def _suggest(name: str, there: Iterable[str]) -> str:
    """As `suggest`, but a part of a name is near too: label for image/class/label."""
    parts = [other for other in there if other in name.split("/") or name in other.split("/")]
    return f" Did you mean '{parts[0]}'? Allowed: {', '.join(sorted(there))}." if parts else suggest(name, there)


def _records(buffer: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the span of each record's bytes."""
    offset, count = 0, 0
    while offset < len(buffer):
        start = offset + _HEAD
        stop = len(buffer)
        if start <= len(buffer):
            head = bytes(buffer[offset:start])
            if masked_crc(head[: _LENGTH.size]) != _CHECKSUM.unpack_from(head, _LENGTH.size)[0]:
                where = (
                    f"damaged after record {count - 1}, at byte {offset:,}"
                    if offset
                    else "not a TFRecord file, or compressed"
                )
                raise UserError(f"is {where}.")
            stop = start + _LENGTH.unpack_from(head)[0]
        offset = stop + _CHECKSUM.size
        if offset > len(buffer):
            raise UserError(f"is cut short: it ends at byte {len(buffer):,}, within record {count}.")
        yield start, stop
        count += 1


def masked_crc(content: bytes) -> int:
    """Return the checksum of a record: CRC-32C, rotated right by 15 bits, plus a constant."""
    crc: int = checksum(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _image(feature: Any, name: str) -> bytes:
    fields = {"bytes_list": "bytes", "float_list": "floats", "int64_list": "whole numbers"}
    kinds = [kind for field, kind in fields.items() if feature.HasField(field)]
    if kinds != ["bytes"]:
        raise ValueError(f"feature '{name}' (data.image) holds {(kinds or ['nothing'])[0]}; allowed are bytes")
    images = feature.bytes_list.value
    if len(images) != 1:
        raise ValueError(f"feature '{name}' (data.image) holds {len(images)} images; allowed is one")
    return bytes(images[0])


def _labels(feature: Any) -> list[Label]:
    texts = [text.decode() for text in feature.bytes_list.value]
    return [*texts, *feature.float_list.value, *feature.int64_list.value]


def _number(feature: Any, name: str) -> Label:
    if feature.HasField("bytes_list"):
        raise ValueError(f"feature '{name}' (data.targets) holds bytes; allowed are numbers")
    values = _labels(feature)
    if len(values) != 1:
        several = f"; data.label={name} data.task=regress reads several" if values else ""
        raise ValueError(f"feature '{name}' (data.targets) holds {len(values)} values; allowed is one{several}")
    return float(values[0])
