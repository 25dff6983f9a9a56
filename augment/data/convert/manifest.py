"""The manifest of a conversion: a line of JSON with the settings, one for each finished shard, and one for all."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augment.support.errors import UserError

MANIFEST = "manifest.jsonl"


@dataclass(frozen=True)
class Done:
    """A finished shard.

    Attributes:
        shard: the name of the shard.
        files: its files, relative to the folder.
        images: the number of images.
        size: total size of the files in bytes.
        checksum: checksum of all (target, encoded image), independent of their order: hexadecimal.
        kept: whether an earlier call wrote it.
    """

    shard: str
    files: tuple[str, ...]
    images: int
    size: int
    checksum: str
    kept: bool = False

    @property
    def split(self) -> str:
        """Name of the split."""
        return self.shard.partition("-")[0]


def total_checksum(shards: Sequence[Done]) -> str:
    """Return the checksum of all images of some shards, independent of how they are spread."""
    return f"{sum(int(shard.checksum, 16) for shard in shards) % 2**128:032x}"


def read_manifest(out: Path, settings: Mapping[str, Any]) -> dict[str, Done]:
    """Return the shards that are finished, by name.

    Args:
        out: the folder of the conversion, which need not exist.
        settings: the settings, which must be those of the manifest.

    Raises:
        UserError: the folder has other content.
    """
    file = out / MANIFEST
    if not file.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"--out {out}: exists and was not written by this program. Allowed: a new or empty folder.")
        return {}
    found: list[Any] = []
    for line in file.read_text().splitlines():
        with suppress(ValueError):  # interrupted while it was written
            found.append(json.loads(line))
    if not found or found[0] != settings:
        what = [name for name in settings if found and found[0].get(name) != settings[name]]
        raise UserError(
            f"--out {out}: contains another conversion, which differs in {', '.join(what) or 'everything'}. "
            "Choose another folder, or remove that one."
        )
    return {row["shard"]: Done(**{**row, "files": tuple(row["files"])}) for row in found[1:] if "shard" in row}
