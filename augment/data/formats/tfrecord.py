"""TFRecord files of tf.train.Example.

A file is a sequence of records: length (uint64), its checksum (uint32), the bytes, their checksum (uint32), all little
endian. Source of the framing and of the masked CRC-32C: tensorflow.org/tutorials/load_data/tfrecord; of the messages:
tensorflow/core/example/example.proto and feature.proto.
"""

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from augment.data.formats.index import Record
from augment.data.formats.protobuf import BYTES, FIXED32, VARINT, field, read_fields, read_varint, signed, varint
from augment.data.formats.spans import RecordFile, mapped, masked_crc
from augment.data.targets.given import Label
from augment.support.errors import UserError, suggest

IMAGE, LABEL, TEXT = "image/encoded", "image/class/label", "image/class/text"

_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_HEAD = _LENGTH.size + _CHECKSUM.size

# The field numbers of a Feature, and the values that each field holds.
_BYTES, _FLOATS, _INTS = 1, 2, 3
_KINDS = {_BYTES: "bytes", _FLOATS: "floats", _INTS: "whole numbers"}


class _WrongFeatureError(ValueError):
    """A feature of an Example that can be read holds something else."""


def read_examples(
    file: RecordFile, *, image: str = IMAGE, label: str = LABEL, targets: Sequence[str] = ()
) -> Iterator[Record]:
    """Yield the records of a file.

    Compare all checksums, which means reading the whole file, as the check of the images does later.

    Args:
        file: the file.
        image: name of the feature that holds the encoded image.
        label: name of the feature that holds the labels: int64, bytes for the names of classes, or floats to predict.
        targets: names of features that hold a number each, instead of `label`.

    Raises:
        UserError: the file is not a TFRecord file, truncated or damaged, or a record is not an Example or lacks a
            feature.
    """
    named = [("data.image", image), *([("data.targets", name) for name in targets] or [("data.label", label)])]
    wanted = {name.encode() for _, name in named}
    with mapped(file) as buffer:
        for number, (start, stop) in enumerate(_records(buffer)):
            if masked_crc(bytes(buffer[start:stop])) != _CHECKSUM.unpack_from(buffer, stop)[0]:
                raise UserError(f"record {number}, at byte {start - _HEAD:,}, is damaged: its checksum is another.")
            try:
                features = _features(buffer, start, stop, wanted)
                for key, name in named:
                    if name.encode() not in features:
                        there = [found.decode(errors="replace") for found in _features(buffer, start, stop)]
                        raise UserError(f"record {number} has no feature '{name}' ({key}).{_suggest(name, there)}")
                if targets:
                    labels = [_number(buffer, *features[name.encode()], name) for name in targets]
                else:
                    labels = _labels(buffer, *features[label.encode()])
                yield Record(*_image(buffer, *features[image.encode()], image), labels)
            except _WrongFeatureError as error:
                raise UserError(f"record {number}: {error}.") from None
            except ValueError as error:
                raise UserError(f"record {number} is not a tf.train.Example that can be read: {error}.") from None


def _suggest(name: str, there: Sequence[str]) -> str:
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
                where = f"damaged after record {count - 1}, at byte {offset:,}" if offset else "not a TFRecord file"
                raise UserError(f"is {where}.")
            stop = start + _LENGTH.unpack_from(head)[0]
        offset = stop + _CHECKSUM.size
        if offset > len(buffer):
            raise UserError(f"is cut short: it ends at byte {len(buffer):,}, within record {count}.")
        yield start, stop
        count += 1


def _features(
    buffer: memoryview, start: int, stop: int, wanted: Collection[bytes] | None = None
) -> dict[bytes, tuple[int, int]]:
    """Return the span of each Feature by name: of all features, or of the wanted ones."""
    found: dict[bytes, tuple[int, int]] = {}
    for _, begin, end in _nested(buffer, start, stop, 1):  # Example.features
        for _, entry, entry_end in _nested(buffer, begin, end, 1):  # Features.feature, a map
            name, span = b"", (entry_end, entry_end)
            for number, wire, value, value_end in read_fields(buffer, entry, entry_end):
                if wire == BYTES and number == 1:
                    name = bytes(buffer[value:value_end])
                elif wire == BYTES and number == 2:
                    span = value, value_end
            if wanted is None or name in wanted:
                found[name] = span
    return found


def _nested(buffer: memoryview, start: int, stop: int, *numbers: int) -> Iterator[tuple[int, int, int]]:
    """Yield number and span of those fields of a message that hold bytes and have one of the numbers."""
    for number, wire, value, end in read_fields(buffer, start, stop):
        if wire == BYTES and number in numbers:
            yield number, value, end


def _image(buffer: memoryview, start: int, stop: int, name: str) -> tuple[int, int]:
    kinds = list(_nested(buffer, start, stop, _BYTES, _FLOATS, _INTS))
    if [kind for kind, _, _ in kinds] != [_BYTES]:
        holds = _KINDS[kinds[0][0]] if kinds else "nothing"
        raise _WrongFeatureError(f"feature '{name}' (data.image) holds {holds}; allowed are bytes")
    values = list(_nested(buffer, *kinds[0][1:], 1))
    if len(values) != 1:
        raise _WrongFeatureError(f"feature '{name}' (data.image) holds {len(values)} images; allowed is one")
    _, begin, end = values[0]
    return begin, end - begin


def _labels(buffer: memoryview, start: int, stop: int) -> list[Label]:
    labels: list[Label] = []
    for kind, begin, end in _nested(buffer, start, stop, _BYTES, _FLOATS, _INTS):
        for number, wire, value, value_end in read_fields(buffer, begin, end):
            if number != 1:
                continue
            if kind == _BYTES and wire == BYTES:
                labels.append(bytes(buffer[value:value_end]).decode())
            elif kind == _INTS and wire == VARINT:
                labels.append(signed(value))
            elif kind == _INTS and wire == BYTES:  # packed
                while value < value_end:
                    one, value = read_varint(buffer, value, value_end)
                    labels.append(signed(one))
            elif kind == _FLOATS and wire in (BYTES, FIXED32) and (value_end - value) % 4 == 0:  # packed, or one
                labels += struct.unpack_from(f"<{(value_end - value) // 4}f", buffer, value)
            else:
                raise ValueError(f"a list of {_KINDS[kind]} holds something else")
    return labels


def _number(buffer: memoryview, start: int, stop: int, name: str) -> Label:
    if any(kind == _BYTES for kind, _, _ in _nested(buffer, start, stop, _BYTES)):
        raise _WrongFeatureError(f"feature '{name}' (data.targets) holds bytes; allowed are numbers")
    values = _labels(buffer, start, stop)
    if len(values) != 1:
        several = f"; data.label={name} data.task=regress reads several" if values else ""
        raise _WrongFeatureError(f"feature '{name}' (data.targets) holds {len(values)} values; allowed is one{several}")
    return float(values[0])


# The values of a feature: encoded images or texts, floats, or whole numbers.
Feature = Sequence[bytes] | Sequence[float] | Sequence[int]


def write_examples(path: Path, samples: Iterable[Mapping[str, Feature]]) -> None:
    """Write a file of Examples, and the index for DALI's reader.

    Args:
        path: the file to write; the index is `<path>.idx`, a line "offset length" for each record.
        samples: the features of each record by name.

    Raises:
        OSError: it cannot be written.
    """
    lines: list[str] = []
    with path.open("wb") as stream:
        for features in samples:
            entries = (field(1, name.encode()) + field(2, _feature(values)) for name, values in features.items())
            record = field(1, b"".join(field(1, entry) for entry in entries))
            lines.append(f"{stream.tell()} {len(record) + _HEAD + _CHECKSUM.size}\n")
            length = _LENGTH.pack(len(record))
            stream.write(length + _CHECKSUM.pack(masked_crc(length)) + record + _CHECKSUM.pack(masked_crc(record)))
    path.with_name(f"{path.name}.idx").write_text("".join(lines))


def _feature(values: Feature) -> bytes:
    """Encode a Feature."""
    texts = [value for value in values if isinstance(value, bytes)]
    if texts:
        return field(_BYTES, b"".join(field(1, text) for text in texts))
    if any(isinstance(value, float) for value in values):
        return field(_FLOATS, field(1, struct.pack(f"<{len(values)}f", *values)))
    return field(_INTS, field(1, b"".join(varint(int(value)) for value in values)))
