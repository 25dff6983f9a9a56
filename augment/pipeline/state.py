"""Check the saved state of a loader: only a loader of the same batches can resume from it."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from augment.data.dataset import Split
from augment.data.images import portable_name
from augment.support.errors import UserError

# What determines the batches, and the key that sets it.
_KEYS = {
    "plan": "aug.train",
    "batch_size": "fit.batch_size",
    "seed": "seed",
    "shard": "fit.gpus",
    "files": "data",
    "device": "fit.device",
    "decoding": "aug.decode, aug.cache or aug.hw_decoder_load",
}


def check_state(state: Mapping[str, Any], identity: Mapping[str, Any], batches: int) -> None:
    """Check that a saved state is that of a loader of the same batches.

    Between two epochs, it may be that of another number of ranks.

    Args:
        state: what `Loader.state_dict` returned.
        identity: `Loader.identity` of the loader that is to resume.
        batches: DALI batches in an epoch.

    Raises:
        UserError: it is not; the message names the key that differs.
    """
    if not isinstance(state, Mapping) or "consumed" not in state:
        raise UserError(f"state: {type(state).__name__} is not allowed. Allowed: what state_dict of a loader returned.")
    shard = state.get("shard", identity["shard"])
    if shard[1] != identity["shard"][1] and not state["consumed"] % batches:
        identity = {**identity, "shard": shard}
    for name, key in _KEYS.items():
        if state.get(name) != identity[name]:
            was = f" ({state.get(name)}, not {identity[name]})" if name in ("batch_size", "seed") else ""
            if name == "shard":
                was = f" ({state.get(name, [0, 1])[1]}, not {identity[name][1]})"
            raise UserError(f"{key}: not that of the saved run{was}. Allowed: the same, in a run that is resumed.")


def digest_of(split: Split) -> str:
    """Hash a split's files by folder, name and target: the same images in another folder are the same."""
    pairs = zip(split.files, split.targets, strict=True)
    lines = (f"{portable_name(file)} {target}" for file, target in pairs)
    names = "\n".join(lines)
    return blake2b(names.encode(errors="surrogateescape"), digest_size=8).hexdigest()
