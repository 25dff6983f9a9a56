"""Checks a loader's saved state, from which only a loader with the same batches can resume."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from augment.data.dataset import Split
from augment.data.images import portable_names
from augment.support.errors import UserError
from augment.support.formatting import list_some

# The values that determine the batches, and the configuration keys that set them.
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

_HASHED = 65536  # images to hash at once, because the lines of a million images need 0.2 GB


def check_state(state: Mapping[str, Any], identity: Mapping[str, Any], batches: int, left_out: Sequence[str]) -> None:
    """Check that a saved state belongs to a loader with the same identity.

    The number of ranks may differ, unless a version before 0.21 saved the state in mid-epoch. `batches` is the number
    of DALI batches per epoch, and `left_out` are the names of the images that the check left out.
    """
    if not isinstance(state, Mapping) or "consumed" not in state:
        raise UserError(
            f"state: {type(state).__name__} is not a loader's state. Pass the result of loader.state_dict()."
        )
    # Without a saved pipeline, the loader makes all consumed batches again.
    if state.get("pipeline") is None and not 0 <= state["consumed"] <= batches:
        raise UserError(
            f"state: consumed is {state['consumed']}, but without a saved pipeline it is at most {batches}. Pass an "
            "undamaged state."
        )
    shard = state.get("shard", identity["shard"])
    if shard[1] != identity["shard"][1] and (not state["consumed"] % batches or "seen" in state):
        identity = {**identity, "shard": shard}
    for name, key in _KEYS.items():
        if state.get(name) != identity[name]:
            was, remedy = "", "Resume with the setting of the saved run."
            if name in ("batch_size", "seed"):
                was = f" ({state.get(name)}, not {identity[name]})"
            elif name == "shard":
                was = f" ({shard[1]}, not {identity[name][1]})"
            elif name == "files":
                remedy = "Resume with the images of the saved run, or start a new run."
                if differing := {*left_out}.symmetric_difference(state.get("left_out", left_out)):
                    was = f": only one of the two runs leaves out {list_some(sorted(differing))} (data.skip_bad=true)"
            raise UserError(f"{key} differs from the saved run{was}. {remedy}")


def restored(restore: Callable[[], object], *, inside: bool) -> bool:
    """Restore a pipeline. Return False if a pipeline with other DALI operators saved the state between two epochs.

    A plan has other operators in another version of this package, or on a machine that cannot run the Triton kernels.

    Raises:
        UserError: a pipeline with other operators saved the state in the middle of an epoch (`inside`).
    """
    try:
        restore()
    except RuntimeError as error:
        # DALI's messages if all operators or some operators differ.
        if not re.search("might come from another pipeline|no checkpoint for operator", str(error)):
            raise
        what = "the saved run made its batches with other operators, in another version or on another kind of machine"
        if inside:
            raise UserError(
                f"data: {what}, and stopped in the middle of an epoch. Resume with that version and kind of machine, "
                "or from the end of an epoch."
            ) from error
        logging.getLogger(__name__).warning("data: %s. From now on, the samples are in another order.", what)
        return False
    return True


def pack_seen(seen: Sequence[Tensor], count: int) -> str:
    """Pack the indices of seen images into a mask of `count` bits, as hexadecimal text."""
    mask = np.zeros(count, bool)
    mask[torch.cat([torch.empty(0, dtype=torch.int64), *(indices.cpu() for indices in seen)]).numpy()] = True
    return np.packbits(mask).tobytes().hex()


def unpack_seen(text: str, count: int) -> Tensor:
    bits = np.frombuffer(bytes.fromhex(text), np.uint8)
    return torch.from_numpy(np.flatnonzero(np.unpackbits(bits, count=count)))


def digest_of(split: Split) -> str:
    """Hash the names and targets of a split's files. Moving the dataset does not change the hash."""
    hashed = blake2b(digest_size=8)
    for start in range(0, len(split), _HASHED):
        part = slice(start, start + _HASHED)
        pairs = zip(portable_names(split.files[part]), split.targets[part], strict=True)
        lines = "\n".join(f"{name} {target}" for name, target in pairs)
        hashed.update(("\n" * bool(start) + lines).encode(errors="surrogateescape"))
    return hashed.hexdigest()
