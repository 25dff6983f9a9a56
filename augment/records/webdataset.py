"""The `webdataset` source: tar shards in which files that differ by their ending are a sample, cat_1.jpg and cat_1.cls.

Shards stay as they are: an index of where each picture lies in its shard is made once and kept beside the program's
other data, by path, size and modification time.
"""

import json
import logging
import os
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from augment.errors import UserError, first_line
from augment.files import write_whole
from augment.folder import EXTENSIONS
from augment.progress import progress_bar
from augment.records.kinds import told_by_content
from augment.records.shard_labels import Found, label_reader
from augment.records.spans import RecordFile, check_unchanged
from augment.stored import mapped, read_ahead
from augment.targets.labels import Label

logger = logging.getLogger(__name__)

_VERSION = 2  # of the index; raise it when its meaning changes
_BLOCK = 512  # bytes, of which tar is made
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Member:
    """An encoded picture in a tar shard.

    Attributes:
        file: the shard as it was when it was listed.
        member: its name in there.
        start: where its bytes begin.
        size: how many there are.
    """

    file: RecordFile
    member: str
    start: int
    size: int

    @property
    def name(self) -> str:
        """Shard and name within."""
        return f"{self.file.path.name}/{self.member}"

    @property
    def place(self) -> str:
        """Where it begins, and its size."""
        return f"{self.start} {self.size}"

    def read(self) -> memoryview:
        """Return the encoded picture, a view of the shard.

        Raises:
            OSError: the shard is gone, or not the one that was listed. To read on where it has become shorter would
                end the process.
        """
        check_unchanged(self.file)
        return mapped(self.file.path)[self.start : self.start + self.size]

    def expect(self) -> None:
        """Have the bytes read by the time that they are asked for."""
        read_ahead(self.file.path, self.start, self.size)


def read_shards(
    files: Sequence[Path], label: str | None, folder: Path, key: str, targets: Sequence[str] = ()
) -> tuple[list[Member], list[Sequence[Label]]]:
    """Return the pictures of shards with their labels, in the order of the shards.

    Args:
        files: the shards.
        label: the value of data.label: "cls" or another ending, "json.FIELD", or None for cls, else the JSON's "label".
        folder: where indices are kept.
        key: key path of the shards, for messages.
        targets: fields of the JSON that hold a number each, in place of `label`.

    Returns:
        The pictures, and of each its labels.

    Raises:
        UserError: a shard is no whole tar file, or a sample lacks picture or label.
    """
    mapped.cache_clear()  # a shard may be another one since it was mapped
    pictures: list[Member] = []
    labels: list[Sequence[Label]] = []

    def rows_of(file: Path) -> list[_Row]:
        try:
            return _rows_of(file, label, folder, targets)
        except UserError as error:
            raise UserError(f"{key}: {error}") from None

    with ThreadPoolExecutor(_THREADS) as pool, progress_bar(quiet=len(files) < 2) as progress:
        task = progress.add_task(f"Listing the shards of {key}", total=len(files))
        shards = list(map(RecordFile.of, files))  # first, so that what changes while it is listed is noticed too
        for file, rows in zip(shards, pool.map(rows_of, files), strict=True):
            pictures += [Member(file, name, start, size) for name, start, size, _ in rows]
            labels += [row[3] if isinstance(row[3], list) else (row[3],) for row in rows]
            progress.advance(task)
    return pictures, labels


# What is kept of a sample: name of the picture, where it begins, its size, and what it is labeled with.
_Row = tuple[str, int, int, Found]


def _rows_of(file: Path, label: str | None, folder: Path, targets: Sequence[str]) -> list[_Row]:
    """Return the index of a shard, the one that was kept if it is of this shard as it is now."""
    try:
        stat = file.stat()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    wanted = list(targets) or label
    state = {"version": _VERSION, "shard": os.path.abspath(file), "label": wanted,
             "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}  # fmt: skip
    digest = blake2b(f"{state['shard']}\n{wanted}".encode(errors="surrogateescape"), digest_size=8).hexdigest()
    kept = folder / f"{digest}.json"
    try:
        content: Any = json.loads(kept.read_bytes())
        if content["state"] == state:
            return [tuple(row) for row in content["rows"]]
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        pass
    rows = index_shard(file, label, targets)
    try:
        write_whole(kept, json.dumps({"state": state, "rows": rows}))
    except OSError as error:
        logger.info("%s: not written (%s), so that the shard is listed again next time", kept, error.strerror)
    return rows


def index_shard(file: Path, label: str | None, targets: Sequence[str] = ()) -> list[_Row]:
    """List the samples of a shard; see `read_shards`.

    Raises:
        UserError: it is no whole tar file, or a sample lacks picture or label.
    """
    samples = _samples(file)
    read = label_reader(file, label, targets)
    rows = []
    for key, members in samples.items():
        found = [ending for ending in members if f".{ending.rpartition('.')[2]}" in EXTENSIONS]
        listed = ", ".join(member.name for member in members.values())
        if len(found) != 1:
            what = "more than one picture" if found else "no picture"
            # People who count with a dot, photo.1.jpg, made one sample of all, for webdataset's own readers too.
            dots = " What files have up to the first dot is one sample." if any("." in name for name in members) else ""
            raise UserError(
                f"{file}: sample {key} has {what}: {listed}.{dots} "
                f"Allowed: one, with one of the endings {', '.join(sorted(EXTENSIONS))}."
            )
        picture = members[found[0]]
        rows.append((picture.name, picture.offset_data, picture.size, read(picture.name, members)))
    if not rows:
        raise UserError(f"{file}: holds no pictures.")
    return rows


def _samples(file: Path) -> dict[str, dict[str, tarfile.TarInfo]]:
    """Return the members of a shard by key, which is the name up to its first dot, and ending."""
    samples: dict[str, dict[str, tarfile.TarInfo]] = {}
    try:
        with file.open("rb") as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                folder, slash, base = member.name.rpartition("/")
                stem, _, ending = base.partition(".")
                if not member.isreg() or not stem:
                    continue
                endings = samples.setdefault(f"{folder}{slash}{stem}", {})
                if ending.lower() in endings:
                    raise UserError(f"{file}: holds {member.name} twice. Allowed: each file once.")
                endings[ending.lower()] = member
            stream.seek(archive.offset)
            end = stream.read(_BLOCK)
    except tarfile.TarError as error:
        raise UserError(f"{file}: {_why_no_tar(file, error)}.") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    if len(end) < _BLOCK or any(end):
        last = next(reversed([m.name for members in samples.values() for m in members.values()]), "nothing")
        what = "is cut short" if len(end) < _BLOCK else "is damaged"
        raise UserError(f"{file}: {what}: after {last} come neither another file nor the mark of the end.")
    return samples


def _why_no_tar(file: Path, error: tarfile.TarError) -> str:
    with file.open("rb") as stream:
        head = stream.read(4)
    if not head:
        return "is empty (0 bytes)"
    if head[:2] == b"\x1f\x8b" or head[:3] == b"BZh" or head == b"\xfd7zX" or head == b"\x28\xb5\x2f\xfd":
        return "is compressed, so that no picture can be read by itself; unpack it: the pictures are compressed already"
    if "unexpected end" in str(error):
        return "is cut short: a file in it is longer than the rest of it"
    if file.stat().st_size < _BLOCK:
        return f"is no tar file, or cut short within its first {_BLOCK} bytes"
    return f"is no tar file ({first_line(error)}).{told_by_content(file, 'webdataset')}".rstrip(".")
