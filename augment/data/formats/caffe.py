"""Caffe's LMDB: a database of Datum messages."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from augment.data.formats.records import OPEN_FILES, Record, RecordFile
from augment.data.formats.tfrecord import Datum, DecodeError
from augment.data.images import as_ppm
from augment.support.errors import UserError, first_line

_OPENING = Lock()


@dataclass(frozen=True, slots=True)
class DatumImage:
    """An image in a database, whose file is data.mdb, under a key."""

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
            datum = _parse(value)
            if not datum.data or _is_encoded(datum):  # an empty one is an image that cannot be decoded
                return bytes(datum.data)
            # Caffe's own tool stores OpenCV's pixels: blue, green, red, plane by plane.
            return as_ppm(
                np.frombuffer(datum.data, np.uint8)
                .reshape(datum.channels, datum.height, datum.width)[::-1]
                .transpose(1, 2, 0)
            )


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
                    datum = _parse(value)
                except (DecodeError, ValueError) as error:
                    name = bytes(key).decode(errors="replace")
                    raise UserError(f"record {name} is not a Datum with an image: {error}.") from None
                yield Record(0, len(datum.data), [datum.label], bytes(key).hex())
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


def _parse(value: memoryview) -> Any:
    """Return a Datum, or raise a DecodeError, or a ValueError about its data."""
    datum = Datum.FromString(bytes(value))
    if len(datum.float_data):
        raise ValueError("it holds floats (float_data); allowed are encoded images and bytes")
    if not datum.HasField("data"):
        raise ValueError("it has no data")
    if datum.data and not _is_encoded(datum) and datum.channels not in (1, 3):
        raise ValueError(f"it has {datum.channels} channels; allowed are 1 and 3")
    return datum


def _is_encoded(datum: Any) -> bool:
    """Whether the data is an encoded image: marked as such, which some writers omit, or not as long as its pixels."""
    return bool(datum.encoded) or len(datum.data) != datum.channels * datum.height * datum.width
