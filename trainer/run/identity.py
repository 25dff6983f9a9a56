"""What makes two configurations the same: the one form that everything compares which tells configurations apart."""

import json
from collections.abc import Mapping
from typing import Any

from augment.support.nested import section_of
from augment.support.secrets import as_written
from trainer.callbacks.registry import known_callbacks
from trainer.run.config import REMOVED, Config
from trainer.run.older import with_older_losses

# Defaults of settings that older versions lack: with these, a configuration is the same as theirs.
_LATER: Mapping[str, Mapping[str, Any]] = {
    "data": {"group": None, "cache_gb": None},
    "aug": {"min_visible": 0.1, "min_area": 1.0, "fill_label": 255},
    "model": {"options": None, "checkpointing": False},
    "fit": {"mask_loss": "ce", "loss": None, "loss_options": None}
    | {"step_share": 0.3, "drop_factor": 0.1, "plateau_patience": 5},
}


def identity(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """Return the resolved configuration without what changes no result.

    These are `fit.resume`, `fit.gpus`, `fit.metrics`, `run` and trackers.

    Two configurations are the same if `identity_text` of these values is. Where the order of keys counts, mappings
    become lists of pairs: steps, views, stages, and what is nested in arguments of other code, which may look at it.
    Built-in callbacks have an order of their own.

    Args:
        config: the configuration, or its plain values as `load_config` reads them from a run's folder.
    """
    plain = with_older_losses(as_written(config.resolved if isinstance(config, Config) else config))
    known = known_callbacks()
    plain |= {
        key: {name: value for name, value in section_of(plain, key).items() if (name, value) not in later.items()}
        for key, later in _LATER.items()
        if isinstance(plain.get(key), Mapping)
    }
    for key, (default, _) in REMOVED.items():  # as older versions have them
        section, _, name = key.rpartition(".")
        if isinstance(plain.get(section), Mapping):
            plain[section] = {name: default, **plain[section]}
    aug, fit = section_of(plain, "aug"), section_of(plain, "fit")
    callbacks = {
        name: value
        for name, value in section_of(plain, "callbacks").items()
        if name != "trackio" and (name not in known or not known[name].tracks)  # a tracker up to 0.12
    }
    own = [name for name in callbacks if name not in known or not known[name].__module__.startswith("trainer.")]
    fit = {name: value for name, value in fit.items() if name not in ("resume", "gpus", "metrics")}
    return (
        {name: value for name, value in plain.items() if name != "run"}
        | {
            "data": _with_arguments(section_of(plain, "data")),
            "aug": {name: _pairs(value) if _is_ordered(name, value) else value for name, value in aug.items()},
            "fit": _with_arguments(fit) | {"stages": _pairs(fit.get("stages"))},
            "callbacks": callbacks,
        }
        | ({"own_callbacks": own} if len(own) > 1 else {})
    )


def identity_text(values: Mapping[str, Any]) -> str:
    """Return what `identity` returned, or a part of it, as a text that is the same for the same configuration."""
    try:
        return json.dumps(values, sort_keys=True, default=str)
    except (TypeError, ValueError):  # keys of several types, in a damaged file
        return repr(values)


def _is_ordered(name: str, value: Any) -> bool:
    """Whether a part of a recipe is a mapping whose order counts: steps, or views by name."""
    by_name = isinstance(value, Mapping) and any(isinstance(view, Mapping) for view in value.values())
    return name in ("train", "val") or (name == "views" and by_name)


def _with_arguments(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section in whose mappings of arguments the order counts below the names of the arguments."""
    return {
        name: {key: _pairs(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value
        for name, value in section.items()
    }


def _pairs(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [[name, _pairs(inner)] for name, inner in value.items()]
    return [_pairs(inner) for inner in value] if isinstance(value, list) else value
