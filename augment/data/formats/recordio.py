"""MXNet's RecordIO.

A file is a sequence of parts, each at a multiple of 4 bytes. A part is a magic number, a word and the content. The word
holds the kind in 3 bits and the length in 29 bits. A record is usually one part. If a record contains the magic number
at a multiple of 4 bytes, it is split there into two parts. The number is left out.

A record contains a flag (uint32), a label (float32), two ids (uint64), `flag` labels (float32) that replace the first
label, and the encoded image. All numbers are little-endian.
Sources: dmlc-core/include/dmlc/recordio.h, and IRHeader in mxnet/recordio.py.
"""

import struct
from collections.abc import Iterator

from augment.data.formats.records import Record, RecordFile, cut_short, damaged, mapped, record_bytes
from augment.support.errors import UserError

_MAGIC = 0xCED7230A
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_PART = struct.Struct("<II")
_HEADER = struct.Struct("<IfQQ")
_MAX_LENGTH = 2**29 - 1
PADDING = -1  # pads label arrays to one length, which MXNet's readers need


def read_records(file: RecordFile, *, padded: bool = False) -> Iterator[Record]:
    """Yield the records of a file. Each span covers the whole record, see `unpack`.

    If labels are `padded`, labels that equal `PADDING` are left out.

    Raises:
        UserError: the file is not a RecordIO file, or is truncated or damaged.
    """
    with mapped(file) as buffer:
        for number, (start, stop) in enumerate(_records(buffer)):
            try:
                labels = _labels(_join(record_bytes(buffer, start, stop, number)))
            except struct.error:
                raise UserError(f"record {number}, at byte {start:,}, is too short for a label.") from None
            yield Record(start, stop - start, [label for label in labels if not (padded and label == PADDING)])


def unpack(extent: bytes) -> bytes:
    """Return the encoded image, given the bytes of a record in the file."""
    record = _join(extent)
    return record[_HEADER.size + 4 * _HEADER.unpack_from(record)[0] :]


def _records(buffer: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the start of each record and its end without padding."""
    offset = begin = count = 0
    expected: tuple[int, ...] = (_WHOLE, _FIRST)
    while offset < len(buffer) or expected != (_WHOLE, _FIRST):
        magic, word = _MAGIC, expected[0] << 29  # if the file ends here, `cut_short` is raised below
        if offset + _PART.size <= len(buffer):
            magic, word = _PART.unpack_from(buffer, offset)
        kind, stop = word >> 29, offset + _PART.size + (word & _MAX_LENGTH)
        if magic != _MAGIC or kind not in expected:
            raise damaged(offset, count, "RecordIO")
        if stop + -stop % 4 > len(buffer):
            raise cut_short(len(buffer), count)
        if kind in (_WHOLE, _FIRST):
            begin = offset
        if kind in (_WHOLE, _LAST):
            yield begin, stop
            count += 1
        expected = (_WHOLE, _FIRST) if kind in (_WHOLE, _LAST) else (_MIDDLE, _LAST)
        offset = stop + -stop % 4


def _join(extent: bytes) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while offset + _PART.size <= len(extent):
        length = _PART.unpack_from(extent, offset)[1] & _MAX_LENGTH
        parts.append(extent[offset + _PART.size : offset + _PART.size + length])
        offset += _PART.size + length + -length % 4
    return struct.pack("<I", _MAGIC).join(parts)


def _labels(record: bytes) -> tuple[int | float, ...]:
    flag, label, _, _ = _HEADER.unpack_from(record)
    labels = struct.unpack_from(f"<{flag}f", record, _HEADER.size) if flag else (label,)
    # Whole numbers become integers, except for numbers beyond int64, and except for -0.0, which is not 0 in regression.
    whole = [value.is_integer() and abs(value) < 2**63 and str(value) != "-0.0" for value in labels]
    return tuple(int(value) if is_whole else value for value, is_whole in zip(labels, whole, strict=True))
