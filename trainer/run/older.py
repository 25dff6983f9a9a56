"""Configurations of versions up to 0.12, which had `fit.regression_loss` and `fit.mask_loss` beside `fit.loss`."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from augment.support.nested import section_of
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
