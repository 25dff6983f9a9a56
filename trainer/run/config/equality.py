"""What makes two configurations the same, also of older versions: the one form in which everything compares them."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from augment.support.errors import UserError
from augment.support.nested import section_of
from augment.support.secrets import as_written
from trainer.loop.callback import known_callbacks
from trainer.models.registry import MODELS

_DEFAULTS = {"regression_loss": "huber", "mask_loss": "ce"}
_LOSSES = {"regression_loss": "huber|mse|mae", "mask_loss": r"(ce|dice|focal)(\+(ce|dice|focal))*"}
_KEY = re.compile(r"(?<=\bfit\.)(regression|mask)_loss$")


def with_one_loss(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with `fit.loss` in place of the older settings."""
    fit, own = dict(section_of(config, "fit")), _own(config)
    older = {name: fit.pop(name, default) for name, default in _DEFAULTS.items()}
    if fit.get("loss") is None and older[own] != _DEFAULTS[own]:
        fit["loss"] = older[own]
    return {**config, "fit": fit} if fit else dict(config)


def with_older_losses(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the older settings, by which sweeps name their jobs."""
    fit, own = {**_DEFAULTS, **section_of(config, "fit")}, _own(config)
    if re.fullmatch(_LOSSES[own], str(fit.get("loss"))) and not fit.get("loss_options"):
        fit |= {own: fit["loss"], "loss": None}
    return {**config, "fit": fit}


def renamed(overrides: Iterable[str]) -> list[str]:
    """Return overrides of an older version with `fit.loss`, which took precedence."""
    pairs = [token.partition("=") for token in overrides]
    named = any(key.lstrip("+") == "fit.loss" for key, _, _ in pairs)
    return ["".join((_KEY.sub("loss", key), *rest)) for key, *rest in pairs if not (named and _KEY.search(key))]


def _own(config: Mapping[str, Any]) -> str:
    """Return the older setting that has an effect, by the kind of the model."""
    kind = MODELS.get(str(section_of(config, "model").get("kind")))
    return "mask_loss" if kind is not None and kind.task == "segment" else "regression_loss"


# Settings of older versions: their defaults, and what there is in their place.
REMOVED: Mapping[str, tuple[Any, str]] = {
    "fit.auto_batch_size": (False, "a smaller fit.batch_size, with fit.accumulate for steps of as many images"),
    "fit.skip_nonfinite": (0, "a smaller fit.lr, or callbacks.grad_clip; a loss that is not finite ends the run"),
    "hydra.sweeper.directions": ((), "hydra.sweeper.metrics alone; each score improves in its own way"),
    "hydra.sweeper.enqueue": (None, "a sweep over these values, as jobs of the same folder"),
    "hydra.sweeper.storage": (None, "the study in the sweep's folder, which hosts may share"),
}

# Defaults of settings that older versions lack: with these, a configuration is the same as theirs.
_LATER: Mapping[str, Mapping[str, Any]] = {
    "data": {"group": None, "cache_gb": None, "window": None},
    "aug": {"min_visible": 0.1, "min_area": 1.0, "fill_label": 255},
    "model": {"options": None, "checkpointing": False},
    "fit": {"mask_loss": "ce", "loss": None, "loss_options": None}
    | {"step_share": 0.3, "drop_factor": 0.1, "plateau_patience": 5},
}


def refuse_removed(section: str, given: Mapping[str, Any]) -> None:
    """Refuse settings of older versions in a section."""
    for name in given:
        if (found := REMOVED.get(f"{section}.{name}")) is not None:
            raise UserError(f"{section}.{name}: is gone since 0.13.0. Allowed: {found[1]}.")


def without_removed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain configuration of a run, perhaps of an older version, without the settings that are gone."""
    return {
        section: {name: value for name, value in values.items() if f"{section}.{name}" not in REMOVED}
        if isinstance(values, Mapping)
        else values
        for section, values in config.items()
    }


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resolved configuration without what changes no result.

    These are `fit.resume`, `fit.gpus`, `fit.metrics`, `run` and trackers. Two configurations are the same if
    `identity_text` of these values is. Where the order of keys counts, mappings become lists of pairs: steps, views,
    stages, and what is nested in arguments of other code, which may look at it. Built-in callbacks have an order of
    their own.
    """
    plain = with_older_losses(as_written(config))
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
