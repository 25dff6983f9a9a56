"""Caffe's LMDB: a database of Datum messages.

Source of the message: BVLC/caffe/src/caffe/proto/caffe.proto, Datum.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from augment.data.formats.index import Record
from augment.data.formats.protobuf import BYTES, VARINT, read_fields, signed
from augment.data.formats.spans import OPEN_FILES, RecordFile
from augment.data.images import as_ppm
from augment.support.errors import UserError, first_line

_OPENING = Lock()

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOAT_DATA, _ENCODED = range(1, 8)


@dataclass(frozen=True, slots=True)
class DatumImage:
    """An image in a database.

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
    def slot(self) -> str:
        """The key in hexadecimal."""
        return self.key.hex()

    def read(self) -> bytes:
        """Return the encoded image; pixels are returned as PPM, which costs no more than copying them.

        Raises:
            OSError: the database is gone or has changed.
        """
        environment = _environment(self.file)
        self.file.require_unchanged()
        with environment.begin(buffers=True) as transaction:
            value = transaction.get(self.key)
            if value is None:
                raise self.file.changed()
            numbers, (start, stop) = _parse(value)
            data = value[start:stop]
            if not data or _is_encoded(numbers, stop - start):  # an empty one is an image that cannot be decoded
                return bytes(data)
            shape = numbers[_CHANNELS], numbers[_HEIGHT], numbers[_WIDTH]
            # Caffe's own tool stores OpenCV's pixels: blue, green, red, plane by plane.
            return as_ppm(np.frombuffer(data, np.uint8).reshape(shape)[::-1].transpose(1, 2, 0))


def read_datums(file: RecordFile) -> Iterator[Record]:
    """Yield the records of a database, in the order of their keys, which are their names in hexadecimal.

    Raises:
        UserError: the file is not a database or truncated, or a record is not an image.
    """
    import lmdb

    try:
        with _environment(file).begin(buffers=True) as transaction:
            for key, value in transaction.cursor():
                try:
                    numbers, (start, stop) = _parse(value)
                except ValueError as error:
                    name = bytes(key).decode(errors="replace")
                    raise UserError(f"record {name} is not a Datum with an image: {error}.") from None
                # proto2 leaves no label of 0 out, others do.
                yield Record(start, stop - start, [signed(numbers.get(_LABEL, 0))], bytes(key).hex())
    except lmdb.Error as error:
        why = first_line(error).removeprefix(f"{file.path}: ")
        raise UserError(f"is not an LMDB database that can be read: {why}.") from None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}.") from None


def _environment(file: RecordFile) -> Any:
    """Return an open database, one per process: it must not be opened twice, nor used after a fork."""
    with _OPENING:  # several threads may open it at once
        return _opened(file, os.getpid())


@lru_cache(OPEN_FILES)
def _opened(file: RecordFile, _process: int) -> Any:
    import lmdb

    file.require_unchanged()
    environment = lmdb.open(str(file.path), subdir=False, readonly=True, lock=False, readahead=False, create=False)
    pages, size = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
    if pages * size > file.size:  # reading beyond the end would kill the process
        environment.close()
        raise lmdb.CorruptedError(f"it is cut short, {file.size:,} bytes of {pages * size:,}")
    return environment


def _parse(value: memoryview) -> tuple[dict[int, int], tuple[int, int]]:
    """Return the numbers of a Datum by field, and the span of its data.

    Raises:
        ValueError: it is not a Datum, or has no data.
    """
    numbers: dict[int, int] = {}
    span = None
    for number, wire, begin, end in read_fields(value, 0, len(value)):
        if wire == VARINT:
            numbers[number] = begin
        elif wire == BYTES and number == _DATA:
            span = begin, end
        elif number == _FLOAT_DATA:
            raise ValueError("it holds floats (float_data); allowed are encoded images and bytes")
    if span is None:
        raise ValueError("it has no data")
    if span[0] < span[1] and not _is_encoded(numbers, span[1] - span[0]) and numbers.get(_CHANNELS) not in (1, 3):
        raise ValueError(f"it has {numbers.get(_CHANNELS)} channels; allowed are 1 and 3")
    return numbers, span


def _is_encoded(numbers: dict[int, int], length: int) -> bool:
    """Whether the data is an encoded image: marked as such, which some writers omit, or not as long as its pixels."""
    return bool(numbers.get(_ENCODED)) or length != math.prod(numbers.get(n, 0) for n in (_CHANNELS, _HEIGHT, _WIDTH))
