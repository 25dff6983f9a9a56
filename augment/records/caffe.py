"""Caffe's LMDB: a database of Datum messages.

Source of the message: BVLC/caffe/src/caffe/proto/caffe.proto, Datum.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from augment.errors import UserError, first_line
from augment.records.index import Advance, Index
from augment.records.protobuf import BYTES, VARINT, read_fields, signed
from augment.records.spans import OPEN_FILES, RecordFile, changed, check_unchanged

_OPENING = Lock()

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOAT_DATA, _ENCODED = range(1, 8)


@dataclass(frozen=True, slots=True)
class DatumPicture:
    """A picture in a database.

    Attributes:
        file: the database's data.mdb.
        key: its key there.
    """

    file: RecordFile
    key: bytes

    @property
    def name(self) -> str:
        """The name of the database and the key."""
        return f"{self.file.path.parent.name}/{self.key.decode(errors='replace')}"

    @property
    def place(self) -> str:
        """The key, whatever letters it has."""
        return self.key.hex()

    def read(self) -> bytes:
        """Return the encoded picture; one that is stored as pixels, as PPM, which costs no more than copying it.

        Raises:
            OSError: the database is gone, or not the one that was indexed.
        """
        environment = _environment(self.file)
        check_unchanged(self.file)
        with environment.begin(buffers=True) as transaction:
            value = transaction.get(self.key)
            if value is None:
                raise changed(self.file)
            return _encoded(value, *_parse(value))


def index_datums(file: RecordFile, advance: Advance) -> Index:
    """Go through a database, in the order of its keys.

    Raises:
        UserError: no database, one that is cut short, or a record that is no picture.
    """
    import lmdb

    spans: list[tuple[int, int]] = []
    labels: list[list[int | float | str]] = []
    keys = bytearray()
    if file.size == 0:
        raise UserError("is empty (0 bytes).")
    try:
        with _environment(file).begin(buffers=True) as transaction:
            for key, value in transaction.cursor():
                try:
                    numbers, _ = _parse(value)
                except ValueError as error:
                    name = bytes(key).decode(errors="replace")
                    raise UserError(f"record {name} is no Datum with a picture: {error}.") from None
                spans.append((len(keys), len(key)))
                keys += key
                labels.append(
                    [signed(numbers[_LABEL])] if _LABEL in numbers else [0]
                )  # proto2 leaves no 0 out, others do
                advance(len(value))
    except lmdb.Error as error:
        why = first_line(error).removeprefix(f"{file.path}: ")
        raise UserError(f"is no LMDB database that can be read: {why}.") from None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}.") from None
    return Index.of(spans, labels, bytes(keys))


def _environment(file: RecordFile) -> Any:
    """Return an open database: one in each process, where a second is forbidden, as is using it in one that was forked.

    Several threads may be the first that ask.
    """
    with _OPENING:
        return _opened(file, os.getpid())


@lru_cache(OPEN_FILES)
def _opened(file: RecordFile, _process: int) -> Any:
    import lmdb

    stat = file.path.stat()
    if (stat.st_size, stat.st_mtime_ns) != (file.size, file.mtime_ns):
        raise changed(file)
    environment = lmdb.open(str(file.path), subdir=False, readonly=True, lock=False, readahead=False, create=False)
    pages, size = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
    if pages * size > file.size:  # what lies beyond the end would kill the process that looks at it
        environment.close()
        raise lmdb.CorruptedError(f"it is cut short, {file.size:,} bytes of {pages * size:,}")
    return environment


def _parse(value: memoryview) -> tuple[dict[int, int], tuple[int, int]]:
    """Return the numbers of a Datum by field, and where its data lies.

    Raises:
        ValueError: it is none, or has no data.
    """
    numbers: dict[int, int] = {}
    place = None
    for number, wire, begin, end in read_fields(value, 0, len(value)):
        if wire == VARINT:
            numbers[number] = begin
        elif wire == BYTES and number == _DATA:
            place = begin, end
        elif number == _FLOAT_DATA:
            raise ValueError("it holds floats (float_data); allowed are encoded pictures and bytes")
    if place is None:
        raise ValueError("it has no data")
    if place[0] < place[1] and not _is_encoded(numbers, place) and numbers.get(_CHANNELS) not in (1, 3):
        raise ValueError(f"it has {numbers.get(_CHANNELS)} channels; allowed are 1 and 3")
    return numbers, place


def _is_encoded(numbers: dict[int, int], place: tuple[int, int]) -> bool:
    """Whether the data is an encoded picture; not all who write one say so, so pixels must be as many as they claim."""
    pixels = numbers.get(_CHANNELS, 0) * numbers.get(_HEIGHT, 0) * numbers.get(_WIDTH, 0)
    return bool(numbers.get(_ENCODED)) or pixels != place[1] - place[0]


def _encoded(value: memoryview, numbers: dict[int, int], place: tuple[int, int]) -> bytes:
    data = value[slice(*place)]
    if not data or _is_encoded(numbers, place):  # an empty one is a picture that cannot be decoded
        return bytes(data)
    channels, height, width = numbers[_CHANNELS], numbers[_HEIGHT], numbers[_WIDTH]
    pixels = np.frombuffer(data, np.uint8).reshape(channels, height, width)
    # Caffe's own tool stores what OpenCV reads: blue, green, red, plane by plane.
    kind = "P6" if channels == 3 else "P5"
    return f"{kind} {width} {height} 255\n".encode() + pixels[::-1].transpose(1, 2, 0).tobytes()
