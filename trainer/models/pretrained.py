"""Whether timm's pretrained weights can be had: asked before a run begins, and answered within seconds."""

from contextlib import suppress
from functools import lru_cache
from typing import Any

from augment.support.errors import UserError, first_line

_TIMEOUT = 10  # seconds
_NAMES = ("model.safetensors", "pytorch_model.bin")  # of weights on the hub


def require_reachable(name: str, config: Any) -> None:
    """Check that weights are in the cache of the Hugging Face hub or can be downloaded.

    Downloading alone would try ten times, for most of a minute, where there is no network.

    Raises:
        UserError: neither; the message says what to do instead.
    """
    if config.hf_hub_id is None:  # downloaded from elsewhere, at once or not at all
        return
    try:
        _reach(config.hf_hub_id)
    except Exception as error:  # the types depend on the library that the hub's client uses in its version
        raise UserError(
            f"model.pretrained=true: the weights of {name} are not in the cache and cannot be downloaded "
            f"({first_line(error).rstrip('.')}). Allowed: model.weights=FILE, with {_NAMES[0]} of "
            f"https://huggingface.co/{config.hf_hub_id} downloaded elsewhere; HF_HOME=DIR, a cache from a machine that "
            "has them; or model.pretrained=false."
        ) from error


def is_cached(model_id: str) -> bool:
    """Return whether the weights of a model on the hub are in the cache."""
    from huggingface_hub import try_to_load_from_cache

    repository, _, revision = model_id.partition("@")
    return any(isinstance(try_to_load_from_cache(repository, n, revision=revision or None), str) for n in _NAMES)


@lru_cache  # for the jobs of a sweep; only what was reached is remembered
def _reach(model_id: str) -> None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    if is_cached(model_id):
        return
    repository, _, revision = model_id.partition("@")
    # A server that lacks this file has the other one.
    with suppress(EntryNotFoundError):
        get_hf_file_metadata(hf_hub_url(repository, _NAMES[0], revision=revision or None), timeout=_TIMEOUT)
