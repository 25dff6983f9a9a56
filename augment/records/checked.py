"""Pictures in larger files are checked once: where all can be decoded, that is noted down for these very pictures."""

from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Protocol, cast

from augment.check import CACHE_VERSION, require_readable
from augment.dataset import Split, Stored
from augment.files import write_whole
from augment.records.spans import RecordFile


class InFile(Stored, Protocol):
    """A picture that is told from all others by its file, as it was when it was indexed, and its place in there."""

    @property
    def file(self) -> RecordFile:
        """The file."""
        ...

    @property
    def place(self) -> str:
        """Where its bytes are in the file. A name does not say: it may be that of another picture next time."""
        ...


def check_once(split: Split, name: str, *, skip_bad: bool, folder: Path) -> Split:
    """Return the pictures that can be decoded; none is looked at again where all of them could be.

    Args:
        split: the pictures, all `InFile`.
        name: the split's name in messages.
        skip_bad: see `augment.check.require_readable`.
        folder: where it is noted down.

    Raises:
        UserError: see there.
    """
    note = folder / f"{_digest(cast(Sequence[InFile], split.files))}.good"
    if note.exists():
        return split
    kept = require_readable(split, name, skip_bad=skip_bad)
    if len(kept) == len(split):
        with suppress(OSError):  # then they are checked again next time
            write_whole(note, f"{len(kept)} pictures\n")
    return kept


def _digest(pictures: Sequence[InFile]) -> str:
    digest = blake2b(f"{CACHE_VERSION}\n".encode(), digest_size=12)
    for file, some in groupby(pictures, attrgetter("file")):
        places = "\n".join(picture.place for picture in some)
        line = f"{file.path.absolute()} {file.size} {file.mtime_ns}\n{places}\n"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()
