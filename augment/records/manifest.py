"""What a conversion has finished: a line of JSON for what was asked, one for each shard, and at last one for all."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augment.errors import UserError

MANIFEST = "manifest.jsonl"


@dataclass(frozen=True)
class Done:
    """A finished shard.

    Attributes:
        shard: its name.
        files: what was written, relative to the folder.
        pictures: how many.
        size: of the files together, in bytes.
        checksum: of all (target, encoded picture), independent of their order: hexadecimal.
        kept: whether it was there already.
    """

    shard: str
    files: tuple[str, ...]
    pictures: int
    size: int
    checksum: str
    kept: bool = False

    @property
    def split(self) -> str:
        """Name of the split that it is of."""
        return self.shard.partition("-")[0]


def total_checksum(shards: Sequence[Done]) -> str:
    """Return the checksum of all pictures of some shards, independent of how they are spread."""
    return f"{sum(int(shard.checksum, 16) for shard in shards) % 2**128:032x}"


def read_manifest(out: Path, settings: Mapping[str, Any]) -> dict[str, Done]:
    """Return the shards that are finished, by name.

    Args:
        out: the folder of the conversion, which need not exist.
        settings: what is asked for now, to be what was asked for then.

    Raises:
        UserError: the folder holds something else.
    """
    file = out / MANIFEST
    if not file.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(
                f"--out {out}: is there and was not written by this program. Allowed: a new or empty folder."
            )
        return {}
    found: list[Any] = []
    for line in file.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:  # stopped while it was written
            continue
    if not found or found[0] != settings:
        what = [name for name in settings if found and found[0].get(name) != settings[name]]
        raise UserError(
            f"--out {out}: holds another conversion, which differs in {', '.join(what) or 'everything'}. "
            "Choose another folder, or remove that one."
        )
    return {row["shard"]: Done(**{**row, "files": tuple(row["files"])}) for row in found[1:] if "shard" in row}
