"""Check the saved state of a loader: only a loader of the same batches can resume from it."""

import logging
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from augment.data.dataset import Split
from augment.data.images import portable_names
from augment.support.errors import UserError

# What determines the batches, and the key that sets it.
_KEYS = {
    "plan": "aug.train",
    "batch_size": "fit.batch_size",
    "seed": "seed",
    "shard": "fit.gpus",
    "files": "data",
    "window": "data.window",
    "device": "fit.device",
    "decoding": "aug.decode, aug.cache or aug.hw_decoder_load",
}


def check_state(state: Mapping[str, Any], identity: Mapping[str, Any], batches: int) -> None:
    """Check that a state, as of `Loader.state_dict`, is that of a loader of the same identity.

    Between two epochs, which have that number of batches in DALI, it may be that of another number of ranks.
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


def restored(restore: Callable[[], object], *, inside: bool) -> bool:
    """Restore a pipeline and return True; return False if the state is that of other operators, between two epochs.

    Another version may have run the same plan as other operators, or a machine on which Triton's kernels do not run.

    Raises:
        UserError: it is from the middle of an epoch (`inside`), and of other operators.
    """
    try:
        restore()
    except RuntimeError as error:
        # What DALI says if operators are not those of the pipeline, or only some of them.
        if not re.search("might come from another pipeline|no checkpoint for operator", str(error)):
            raise
        what = "the saved run made its batches with other operators, in another version or on another kind of machine"
        if inside:
            allowed = "that version and kind of machine, or a state from the end of an epoch"
            raise UserError(f"data: {what}, and stopped in the middle of an epoch. Allowed: {allowed}.") from error
        logging.getLogger(__name__).warning("data: %s: from here on, the samples are in another order", what)
        return False
    return True


def digest_of(split: Split) -> str:
    """Hash a split's files by folder, name and target: the same images in another folder are the same."""
    lines = (f"{name} {target}" for name, target in zip(portable_names(split.files), split.targets, strict=True))
    return blake2b("\n".join(lines).encode(errors="surrogateescape"), digest_size=8).hexdigest()
