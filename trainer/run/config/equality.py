"""Decide whether two configurations are equal."""

import json
from collections.abc import Mapping
from typing import Any

from augment.support.nested import section_of
from augment.support.secrets import as_written
from trainer.loop.callback import known_callbacks

# Settings that newer versions added, with their defaults. Identities leave out these defaults, so that the ids of jobs
# from older versions stay the same.
_ADDED: Mapping[str, Mapping[str, Any]] = {
    "data": {"group": None, "cache_gb": None, "window": None, "labels": None},
    "aug": {"min_visible": 0.1, "min_area": 1.0, "fill_label": 255},
    "model": {"options": None, "checkpointing": False, "lora": None},
    "fit": {
        "loss": None,
        "loss_options": None,
        "step_share": 0.3,
        "drop_factor": 0.1,
        "plateau_patience": 5,
        "steps": None,
        "teacher": None,
        "teacher_weight": 0.5,
        "teacher_temperature": 1.0,
    },
}

# Settings that name test data. Training does not use it.
TEST_DATA = ("test", "test_dir", "test_images", "test_options", "test_targets")

# Removed settings with their defaults, which are still part of job ids.
REMOVED = {"auto_batch_size": False, "skip_nonfinite": 0, "regression_loss": "huber"}


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resolved configuration without settings that do not change results.

    It leaves out `fit.resume`, `fit.gpus`, `fit.metrics`, `run`, trackers and the test data. Two configurations are
    equal if their identities have the same `identity_text`. Mappings whose order matters become lists of pairs: steps,
    views, stages, and nested arguments of plugins. The order of built-in callbacks does not count, because
    callbacks are sorted by their phases.
    """
    plain = as_written(config)
    known = known_callbacks()
    for key, defaults in _ADDED.items():
        if isinstance(section := plain.get(key), Mapping):
            plain[key] = {name: value for name, value in section.items() if (name, value) not in defaults.items()}
    data = dict(section_of(plain, "data"))
    if "skip_bad" in data:
        data["max_bad"] = 100  # a removed setting, which is still part of job ids
    if "labels" in data:
        data["labels"] = str(data["labels"]).rpartition("#")[2]  # the file's hash, because its path does not matter
    aug, fit = section_of(plain, "aug"), {**REMOVED, **section_of(plain, "fit")}
    callbacks = {
        name: value
        for name, value in section_of(plain, "callbacks").items()
        if name not in known or not known[name].tracks
    }
    own = [name for name in callbacks if name not in known or not known[name].__module__.startswith("trainer.")]
    unused = () if fit.get("batch_size") == "auto" else ("base_batch_size",)
    fit = {name: value for name, value in fit.items() if name not in ("resume", "gpus", "metrics", *unused)}
    compared = {name: value for name, value in plain.items() if name != "run"} | {
        "data": _with_arguments({name: value for name, value in data.items() if name not in TEST_DATA}),
        "aug": {name: _pairs(value) if _is_ordered(name, value) else value for name, value in aug.items()},
        "fit": _with_arguments(fit) | {"stages": _pairs(fit.get("stages"))},
        "callbacks": callbacks,
    }
    return {**compared, "own_callbacks": own} if len(own) > 1 else compared


def identity_text(values: Mapping[str, Any]) -> str:
    """Return an identity, or a part of it, as text. Equal configurations have equal texts."""
    try:
        return json.dumps(values, sort_keys=True, default=str)
    except (TypeError, ValueError):  # a damaged file may mix types of keys
        return repr(values)


def _is_ordered(name: str, value: Any) -> bool:
    """Return whether the order counts in this part of a recipe: steps, or views by name."""
    by_name = isinstance(value, Mapping) and any(isinstance(view, Mapping) for view in value.values())
    return name in ("train", "val") or (name == "views" and by_name)


def _with_arguments(section: Mapping[str, Any]) -> dict[str, Any]:
    """Turn mappings inside arguments into lists of pairs. The order of the arguments themselves does not count."""
    return {
        name: {key: _pairs(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value
        for name, value in section.items()
    }


def _pairs(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [[name, _pairs(inner)] for name, inner in value.items()]
    return [_pairs(inner) for inner in value] if isinstance(value, list) else value
