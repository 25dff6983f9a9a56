"""The index of a file of records: the offset and labels of each image, built once and cached below outputs/data."""

import io
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from augment.data.formats.detection import describe_content
from augment.data.formats.spans import RecordFile
from augment.data.targets.labels import Label, Labels, pack
from augment.support.console import progress_bar
from augment.support.errors import UserError
from augment.support.files import digest, write_atomically

logger = logging.getLogger(__name__)

# Called with the number of bytes processed since the last call.
Advance = Callable[[int], object]
Build = Callable[[RecordFile, Advance], "Index"]

_VERSION = 3  # raise it when the content of indexes changes
_STEP = 2**23  # bytes
_PROGRESS_FROM = 256 * 2**20  # bytes: less takes no more than a second


@dataclass(frozen=True)
class Index:
    """The records of one file, in its order.

    Attributes:
        spans: (N, 2) int64, offset and length of each image.
        labels: the labels of all records.
        keys: further data of a format, such as the names of its records.
    """

    spans: NDArray[np.int64]
    labels: Labels
    keys: bytes

    @classmethod
    def of(
        cls,
        spans: Sequence[tuple[int, int]],
        labels: Sequence[Sequence[Label]],
        keys: bytes = b"",
        name: Callable[[int], str] = "record {}".format,
    ) -> "Index":
        """Make an index from lists.

        Raises:
            UserError: see `augment.data.targets.labels.pack`.
        """
        return cls(np.array(spans, np.int64).reshape(-1, 2), pack(labels, name), keys)


def load_indexes(
    paths: Sequence[Path],
    kind: str,
    cache: Path,
    build: Build,
    companion: Callable[[RecordFile], Path | None],
) -> Iterator[tuple[RecordFile, Index]]:
    """Yield each file with its index, which is built unless the cache has an up-to-date one.

    Args:
        paths: the files.
        kind: the source's name, and the settings that an index depends on.
        cache: folder below which indexes are cached.
        build: indexes a file.
        companion: returns another file that the index depends on, which the build may make; None: there is none.

    Raises:
        UserError: a file cannot be read, or is damaged.
    """
    files = [RecordFile.of(path.resolve()) for path in paths]
    cached = [cache / "index" / f"{digest(kind, file.path)}.npz" for file in files]
    known = [_read(entry, _stamp(file, companion(file))) for entry, file in zip(cached, files, strict=True)]
    missing = sum(file.size for file, index in zip(files, known, strict=True) if index is None)
    with progress_bar(quiet=missing < _PROGRESS_FROM) as progress:
        task = progress.add_task("Indexing MB", total=missing >> 20)
        done = 0

        def advance(size: int) -> None:
            nonlocal done
            done += size
            if done // _STEP > (done - size) // _STEP:  # updating the bar takes longer than a record
                progress.update(task, completed=done >> 20)

        for path, file, entry, index in zip(paths, files, cached, known, strict=True):
            if index is None:
                try:
                    index = build(file, advance)
                except UserError as error:
                    raise UserError(f"{path}: {error}{describe_content(path, kind.split()[0].lower())}") from None
                _write(entry, _stamp(file, companion(file)), index)
            yield file, index


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
    stream = io.BytesIO()
    np.savez(
        stream,
        stamp=stamp,
        spans=index.spans,
        values=index.labels.values,
        counts=index.labels.counts,
        words=np.array(index.labels.words, np.str_),
        keys=np.frombuffer(index.keys, np.uint8),
    )
    try:
        write_atomically(entry, stream.getvalue(), durable=False)
    except OSError as error:
        logger.warning("The index of a file is not cached: %s cannot be written (%s).", entry, error.strerror)
