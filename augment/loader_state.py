"""What the saved state of a loader has to agree with: only a loader of the same batches can go on with it."""

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from augment.dataset import Split
from augment.errors import UserError

# What decides about the batches, and the key that sets it.
_KEYS = {
    "plan": "aug.train",
    "batch_size": "fit.batch_size",
    "seed": "seed",
    "shard": "the number of ranks",
    "files": "data",
    "device": "fit.device",
    "decoding": "aug.decode, aug.cache or aug.hw_decoder_load",
}


def check_state(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Check that a saved state is that of a loader of the same batches.

    Raises:
        UserError: it is not; the message names the key that differs.
    """
    for name, key in _KEYS.items():
        if state.get(name) != identity[name]:
            was = f" ({state.get(name)}, not {identity[name]})" if name in ("batch_size", "seed") else ""
            raise UserError(
                f"{key}: not that of the saved run{was}. Allowed: the same, to go on in the middle of an epoch."
            )


def digest_of(split: Split) -> str:
    """Hash a split's files by folder, name and target: the same pictures in another place are the same."""
    names_of = (f"{f.parent.name}/{f.name}" if isinstance(f, Path) else f.name for f in split.files)
    lines = (f"{name} {target}" for name, target in zip(names_of, split.targets, strict=True))
    names = "\n".join(lines)
    return blake2b(names.encode(errors="surrogateescape"), digest_size=8).hexdigest()
