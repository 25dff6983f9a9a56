"""Write TFRecord files of tf.train.Example."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from augment.data.formats.protobuf_records import Example, masked_crc
from augment.data.sources.records import IMAGE, LABEL

__all__ = ["IMAGE", "LABEL", "TEXT", "write_examples"]

TEXT = "image/class/text"
_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_HEAD = _LENGTH.size + _CHECKSUM.size

# The values of a feature: encoded images or texts, floats, or whole numbers.
Feature = Sequence[bytes] | Sequence[float] | Sequence[int]


def write_examples(path: Path, samples: Iterable[Mapping[str, Feature]]) -> None:
    """Write a file of Examples, given their features by name, and the index `<path>.idx` for DALI's reader."""
    lines: list[str] = []
    with path.open("wb") as stream:
        for features in samples:
            example = Example()
            for name, values in features.items():
                getattr(example.features.feature.add(key=name).value, _field(values)).value.extend(values)
            record = example.SerializeToString()
            lines.append(f"{stream.tell()} {len(record) + _HEAD + _CHECKSUM.size}\n")
            length = _LENGTH.pack(len(record))
            stream.write(length + _CHECKSUM.pack(masked_crc(length)) + record + _CHECKSUM.pack(masked_crc(record)))
    path.with_name(f"{path.name}.idx").write_text("".join(lines))


def _field(values: Feature) -> str:
    """Return the field of a Feature that holds the values."""
    if any(isinstance(value, bytes) for value in values):
        return "bytes_list"
    return "float_list" if any(isinstance(value, float) for value in values) else "int64_list"
