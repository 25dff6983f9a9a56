"""MXNet's RecordIO.

A file is a row of parts that begin at a multiple of 4: a magic number, a word with 3 bits of kind and 29 of length, and
the bytes. A record is one part, or several if the magic number occurs in it at a multiple of 4: there it is cut, and
the number left out. In the record: a flag (uint32), a label (float32), two ids (uint64), as many float32 labels as the
flag says, and the encoded picture; all little endian. Source: dmlc-core/include/dmlc/recordio.h and
mxnet/recordio.py, IRHeader.
"""

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from augment.errors import UserError
from augment.records.index import Advance, Index
from augment.records.spans import RecordFile, mapped

_MAGIC = 0xCED7230A
_MAGIC_BYTES = struct.pack("<I", _MAGIC)
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_PART = struct.Struct("<II")
_HEADER = struct.Struct("<IfQQ")
_MAX_LENGTH = 2**29 - 1
_BEGINNING = 4096  # bytes of a record, in which its labels are but for a thousand and more
PADDING = -1  # in label arrays, of which the library's readers want all to be of one length
_DO_WITHOUT = "Remove it, and it is done without."


def index_records(file: RecordFile, advance: Advance) -> Index:
    """Go through a file; which records count, and their order, is what the .idx file beside it says, if there is one.

    Raises:
        UserError: no RecordIO file, one that is cut short or damaged, or an index that belongs to another.
    """
    extents: dict[int, int] = {}
    labels: list[list[int | float | str]] = []
    with mapped(file) as buffer:
        for start, stop in _records(buffer):
            try:
                labels.append(list(_labels(_with_labels(buffer, start, stop))))
            except struct.error:
                raise UserError(f"record {len(extents)}, at byte {start:,}, is too short for a label.") from None
            extents[start] = stop - start
            advance(stop - start)
    spans = list(extents.items())
    order = _listed(file.path.with_suffix(".idx"), extents)
    if order is not None:
        spans, labels = [spans[place] for place in order], [labels[place] for place in order]
    left_out = len(extents) - len(spans)
    return Index.of(spans, labels, listing_state(file.path) + (b" %d" % left_out if left_out else b""))


def listing_state(path: Path) -> bytes:
    """Return what tells whether the .idx beside a file has changed; the index's keys begin with it."""
    try:
        stat = path.with_suffix(".idx").stat()
    except FileNotFoundError:
        return b""
    return f"{stat.st_size} {stat.st_mtime_ns}".encode()


def is_current(path: Path, index: Index) -> bool:
    """Whether the .idx beside a file is the one that its index was made by."""
    return index.keys.tobytes().split()[:2] == listing_state(path).split()


def left_out(index: Index) -> int:
    """Return how many records of a file the .idx beside it does not list."""
    return int(index.keys.tobytes().split()[2] if index.keys.tobytes().count(b" ") == 2 else 0)


def unpack(extent: bytes) -> bytes | memoryview:
    """Return the encoded picture of a record, of the bytes that it takes in the file."""
    if _PART.unpack_from(extent)[1] >> 29 == _WHOLE:  # nearly all are, and need no copy
        record = memoryview(extent)[_PART.size :]
    else:
        record = memoryview(_join(extent))
    return record[_HEADER.size + 4 * _HEADER.unpack_from(record)[0] :]


def _records(buffer: memoryview) -> Iterator[tuple[int, int]]:
    """Yield where each record begins, and where it ends without padding."""
    place = begin = count = 0
    expected: tuple[int, ...] = (_WHOLE, _FIRST)
    while place < len(buffer):
        if place + _PART.size > len(buffer):
            raise UserError(f"is cut short: it ends at byte {len(buffer):,}, within record {count}.")
        magic, word = _PART.unpack_from(buffer, place)
        kind, stop = word >> 29, place + _PART.size + (word & _MAX_LENGTH)
        if magic != _MAGIC or kind not in expected:
            if place == 0:
                raise UserError("is no RecordIO file.")
            raise UserError(f"is damaged behind record {count - 1}, at byte {place:,}.")
        if stop + -stop % 4 > len(buffer):
            raise UserError(f"is cut short: it ends at byte {len(buffer):,}, within record {count}.")
        if kind in (_WHOLE, _FIRST):
            begin = place
        if kind in (_WHOLE, _LAST):
            yield begin, stop
            count += 1
        expected = (_WHOLE, _FIRST) if kind in (_WHOLE, _LAST) else (_MIDDLE, _LAST)
        place = stop + -stop % 4
    if expected != (_WHOLE, _FIRST):
        raise UserError(f"is cut short: it ends at byte {len(buffer):,}, within record {count}.")


def _join(extent: bytes, *, cut: bool = False) -> bytes:
    """Return the content of a record; `cut` is for its beginning only."""
    parts: list[bytes] = []
    place = 0
    while place + _PART.size <= len(extent):
        length = _PART.unpack_from(extent, place)[1] & _MAX_LENGTH
        parts.append(extent[place + _PART.size : place + _PART.size + length])
        place += _PART.size + length + -length % 4
    assert cut or place >= len(extent)
    return _MAGIC_BYTES.join(parts)


def _with_labels(buffer: memoryview, start: int, stop: int) -> bytes:
    """Return as much of the content of a record as has its labels in it: of a picture few pages are read."""
    beginning = _join(bytes(buffer[start : min(stop, start + _BEGINNING)]), cut=True)
    if _HEADER.size + 4 * _HEADER.unpack_from(beginning)[0] <= len(beginning):
        return beginning
    return _join(bytes(buffer[start:stop]))


def _labels(record: bytes) -> tuple[int | float, ...]:
    flag, label, _, _ = _HEADER.unpack_from(record)
    labels = struct.unpack_from(f"<{flag}f", record, _HEADER.size) if flag else (label,)
    return tuple(int(value) if value.is_integer() and _is_int64(value) else value for value in labels)


def _is_int64(value: float) -> bool:
    """Whether a whole number is the same as int64; -0.0, where numbers are predicted, is another than 0."""
    return abs(value) < 2**63 and (value != 0 or math.copysign(1, value) == 1)


def _listed(path: Path, extents: dict[int, int]) -> list[int] | None:
    """Return the places of the records that an index lists, None if there is no index."""
    if not path.exists():
        return None
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise UserError(f"its index {path.name} cannot be read: {error.strerror}. {_DO_WITHOUT}") from None
    except UnicodeDecodeError:
        raise UserError(f"its index {path.name} is no text. {_DO_WITHOUT}") from None
    if not lines:
        raise UserError(f"its index {path.name} is empty. {_DO_WITHOUT}")
    places = {start: place for place, start in enumerate(extents)}
    order: list[int] = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if len(words) < 2 or not (words[-1].isascii() and words[-1].isdigit()):
            raise UserError(f"its index {path.name}, line {number}, is '{line}'. Allowed: a key, a tab and a number.")
        if int(words[-1]) not in places:
            cut = "the file is cut short, or the index" if int(words[-1]) > max(places, default=0) else "it"
            raise UserError(
                f"its index {path.name}, line {number}, says byte {words[-1]}, where no record begins: "
                f"{cut} belongs to another file. {_DO_WITHOUT}"
            )
        order.append(places[int(words[-1])])
    if len(set(order)) < len(order):
        twice = next(number for number, place in enumerate(order, start=1) if place in order[: number - 1])
        raise UserError(f"its index {path.name}, line {twice}, lists a record again. Allowed: each once. {_DO_WITHOUT}")
    return order


def write_records(path: Path, samples: Iterable[tuple[bytes, float | Sequence[float]]], first_id: int = 0) -> None:
    """Write a file of records and beside it the index, `<stem>.idx`, of MXNet's and DALI's readers.

    Args:
        path: the file to write.
        samples: encoded picture, and its class or number, or several.
        first_id: number of the first record.

    Raises:
        OSError: it cannot be written.
    """
    lines: list[str] = []
    with path.open("wb") as stream:
        for number, (picture, labels) in enumerate(samples, start=first_id):
            lines.append(f"{number}\t{stream.tell()}\n")
            if isinstance(labels, Sequence):
                head = _HEADER.pack(len(labels), 0, number, 0) + struct.pack(f"<{len(labels)}f", *labels)
            else:
                head = _HEADER.pack(0, labels, number, 0)
            for part, kind in _cut(head + picture):
                stream.write(_PART.pack(_MAGIC, kind << 29 | len(part)) + part + bytes(-len(part) % 4))
    path.with_suffix(".idx").write_text("".join(lines))


def _cut(record: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the parts of a record and their kinds."""
    if len(record) > _MAX_LENGTH:
        raise UserError(f"a picture of {len(record):,} bytes is too large for RecordIO. Allowed: {_MAX_LENGTH:,}.")
    cuts = [0]
    place = record.find(_MAGIC_BYTES)
    while place >= 0:
        if place % 4 == 0:
            cuts += [place, place + 4]
            place += 3
        place = record.find(_MAGIC_BYTES, place + 1)
    cuts.append(len(record))
    ends = list(zip(cuts[::2], cuts[1::2], strict=True))
    for number, (start, stop) in enumerate(ends):
        last = number == len(ends) - 1
        kind = _WHOLE if len(ends) == 1 else _FIRST if number == 0 else _LAST if last else _MIDDLE
        yield record[start:stop], kind
