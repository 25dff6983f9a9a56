"""Where in its file each record lies and how it is labeled: found out once, kept below outputs/data."""

import io
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from augment.errors import UserError
from augment.files import write_whole
from augment.progress import progress_bar
from augment.records.kinds import told_by_content
from augment.records.spans import RecordFile
from augment.targets.labels import Label, pack

logger = logging.getLogger(__name__)

# Called with the bytes that were gone through since the last call.
Advance = Callable[[int], object]
Build = Callable[[RecordFile, Advance], "Index"]

_VERSION = 2  # raise it when what an index holds changes
_STEP = 2**23  # bytes
_PROGRESS_FROM = 256 * 2**20  # bytes: below that it takes a second


@dataclass(frozen=True)
class Index:
    """The records of one file, in its order.

    Attributes:
        spans: (N, 2) int64, offset and length of each picture.
        labels: (L,) labels of all records, one after the other: int64, float64, or where they are text, their places in
            `words`.
        words: (W,) the labels that are text, each once, sorted; empty if they are numbers.
        counts: (N,) int64, how many of the labels are each record's.
        keys: (K,) uint8, what else a format has to note down, as the names of its records.
    """

    spans: NDArray[np.int64]
    labels: NDArray[Any]
    words: NDArray[np.str_]
    counts: NDArray[np.int64]
    keys: NDArray[np.uint8]

    @classmethod
    def of(cls, spans: Sequence[tuple[int, int]], labels: Sequence[Sequence[Label]], keys: bytes = b"") -> "Index":
        """Make an index of lists.

        Raises:
            UserError: see `augment.targets.labels.pack`.
        """
        packed = pack(labels, "record {}".format)
        return cls(
            np.array(spans, np.int64).reshape(-1, 2),
            packed.values,
            np.array(packed.words, np.str_),
            packed.counts,
            np.frombuffer(keys, np.uint8),
        )

    def values(self) -> NDArray[Any]:
        """Return the labels as they were written, (L,)."""
        return self.words[self.labels] if len(self.words) else self.labels


def load_indexes(
    paths: Sequence[Path],
    kind: str,
    cache: Path,
    build: Build,
    is_whole: Callable[[RecordFile, Index], bool] = lambda *_: True,
) -> Iterator[tuple[RecordFile, Index]]:
    """Yield each file with its index, which is made where there is none of the file as it is now.

    Args:
        paths: the files.
        kind: the source's name, and the settings that an index depends on.
        cache: folder below which indexes are kept.
        build: goes through a file.
        is_whole: whether what an index is about besides the file is still there.

    Raises:
        UserError: a file cannot be read, or is damaged.
    """
    files = [RecordFile.of(path.resolve()) for path in paths]
    places = [cache / "index" / f"{_digest(kind, str(file.path))}.npz" for file in files]
    known = [_read(place, file) for place, file in zip(places, files, strict=True)]
    known = [index if index and is_whole(file, index) else None for file, index in zip(files, known, strict=True)]
    missing = sum(file.size for file, index in zip(files, known, strict=True) if index is None)
    with progress_bar(quiet=missing < _PROGRESS_FROM) as progress:
        task = progress.add_task("Indexing MB", total=missing >> 20)
        done = 0

        def advance(size: int) -> None:
            nonlocal done
            done += size
            if done // _STEP > (done - size) // _STEP:  # the bar takes longer than a record
                progress.update(task, completed=done >> 20)

        for path, file, place, index in zip(paths, files, places, known, strict=True):
            if index is None:
                try:
                    index = build(file, advance)
                except UserError as error:
                    hint = told_by_content(path, kind.split()[0].lower()) if str(error).startswith("is no ") else ""
                    raise UserError(f"{path}: {error}{hint}") from None
                _write(place, file, index)
            yield file, index


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


def _stamp(file: RecordFile) -> NDArray[np.int64]:
    return np.array([_VERSION, file.size, file.mtime_ns], np.int64)


def _read(place: Path, file: RecordFile) -> Index | None:
    try:
        with place.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            if not np.array_equal(stored["stamp"], _stamp(file)):
                return None
            return Index(stored["spans"], stored["labels"], stored["words"], stored["counts"], stored["keys"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None  # missing, or not whole: made anew


def _write(place: Path, file: RecordFile, index: Index) -> None:
    stream = io.BytesIO()
    np.savez(
        stream,
        stamp=_stamp(file),
        spans=index.spans,
        labels=index.labels,
        words=index.words,
        counts=index.counts,
        keys=index.keys,
    )
    try:
        write_whole(place, stream.getvalue())
    except OSError as error:
        logger.warning("The index of %s is not kept: %s cannot be written (%s).", file.path, place, error.strerror)
