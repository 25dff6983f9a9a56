"""The index of a file of records: the offset and labels of each image, built once and cached below outputs/data."""

import io
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from augment.data.formats.spans import RecordFile
from augment.data.targets.given import Label, Labels, pack
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.files import digest, write_atomically

logger = logging.getLogger(__name__)

_VERSION = 4  # raise it when the content of indexes changes
_PROGRESS_FROM = 256 * 2**20  # bytes: less takes no more than a second


class Record(NamedTuple):
    """A record of a file."""

    offset: int  # of its image in the file
    length: int  # in bytes
    labels: Sequence[Label]  # or numbers
    name: str = ""  # in the file; empty: its number


# Yields the records of a file; raises a `UserError` that says what is wrong, without naming the file.
Reader = Callable[[RecordFile], Iterator[Record]]


@dataclass(frozen=True)
class Index:
    """The records of one file, in its order."""

    spans: NDArray[np.int64]  # (N, 2) int64, offset and length of each image
    labels: Labels  # of all records
    keys: bytes  # the names of the records, separated by NUL; empty: they have none

    @property
    def names(self) -> list[str]:
        """The names of the records."""
        named = self.keys.decode(errors="surrogateescape").split("\0")
        return named if self.keys else list(map(str, range(len(self.spans))))


def load_indexes(
    paths: Sequence[Path], kind: str, cache: Path, read: Reader, companion: Callable[[RecordFile], Path | None]
) -> Iterator[tuple[RecordFile, Index]]:
    """Yield each file with its index, which is built unless there is an up-to-date one below the folder of caches.

    It depends on the kind, a source's name and settings, and on the companion of a file, which `read` makes.

    Raises:
        UserError: a file cannot be read, or is damaged.
    """
    files = [RecordFile.of(path.resolve()) for path in paths]
    cached = [cache / "index" / f"{digest(kind, file.path)}.npz" for file in files]
    known = [_read(entry, _stamp(file, companion(file))) for entry, file in zip(cached, files, strict=True)]
    missing = sum(file.size for file, index in zip(files, known, strict=True) if index is None)
    with progress_bar(quiet=missing < _PROGRESS_FROM) as progress:
        every = progress.track(zip(paths, files, cached, known, strict=True), len(paths), description="Indexing files")
        for path, file, entry, index in every:
            if index is None:
                try:
                    index = build(file, read)
                except UserError as error:
                    raise UserError(f"{path}: {error}") from None
                _write(entry, _stamp(file, companion(file)), index)
            yield file, index


def build(file: RecordFile, read: Reader) -> Index:
    """Return the index of a file.

    Raises:
        UserError: the file is damaged, or its labels cannot be used.
    """
    records = list(read(file))
    spans = np.array([(record.offset, record.length) for record in records], np.int64).reshape(-1, 2)
    labels = pack([record.labels for record in records], lambda index: records[index].name or f"record {index}")
    keys = "\0".join(record.name for record in records) if records and records[0].name else ""
    return Index(spans, labels, keys.encode(errors="surrogateescape"))


def _stamp(file: RecordFile, companion: Path | None) -> NDArray[np.int64]:
    """Return sizes and modification times of the file and its companion, to detect changes."""
    stamp = [_VERSION, file.size, file.mtime_ns]
    if companion and companion.exists():
        stat = companion.stat()
        stamp += [stat.st_size, stat.st_mtime_ns]
    return np.array(stamp, np.int64)


def _read(entry: Path, stamp: NDArray[np.int64]) -> Index | None:
    try:
        with entry.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            if not np.array_equal(stored["stamp"], stamp):
                return None
            labels = Labels(stored["values"], stored["counts"], tuple(stored["words"].tolist()))
            return Index(stored["spans"], labels, stored["keys"].tobytes())
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None  # missing or damaged: built again


def _write(entry: Path, stamp: NDArray[np.int64], index: Index) -> None:
    labels, stream = index.labels, io.BytesIO()
    keys, words = np.frombuffer(index.keys, np.uint8), np.array(labels.words, np.str_)
    arrays = {"stamp": stamp, "spans": index.spans, "values": labels.values, "counts": labels.counts}
    np.savez(stream, keys=keys, words=words, **arrays)  # type: ignore[arg-type]
    try:
        write_atomically(entry, stream.getvalue(), durable=False)
    except OSError as error:
        logger.warning("The index of a file is not cached: %s cannot be written (%s).", entry, error.strerror)
