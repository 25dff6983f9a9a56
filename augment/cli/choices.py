"""Check what overrides choose and remove, where Hydra would say nothing or little."""

import re
from collections.abc import Sequence

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from augment.cli.conf import EXPERIMENT, config_files, default_groups, group_names
from augment.cli.overrides import key_of
from augment.support.errors import UserError, suggest
from augment.support.nested import leaves
from augment.support.yaml_files import read_yaml

# Key of a step of a recipe.
_STEP = re.compile(r"aug\.(train|val)\.[^.]+")


def check_choices(overrides: Sequence[Override]) -> None:
    """Check what Hydra would accept in silence.

    Raises:
        UserError: a step is set to null, which in a file means always; a group without a default is chosen twice; or
            see `_check_experiment`.
    """
    groups, defaults, chosen = group_names(), default_groups(), dict[str, object]()
    for override in overrides:
        key, value = key_of(override), override.value()
        if override.is_delete() or isinstance(value, dict):
            continue
        if value is None and _STEP.fullmatch(key):
            raise UserError(
                f"{key}: null is not allowed. Allowed: parameters, such as {{p: 0}}; or ~{key}, which removes it."
            )
        if key in groups:
            if key in chosen and defaults.get(key) is None:
                raise UserError(f"{key}: chosen twice, {chosen[key]} and {value}. Allowed: once.")
            chosen[key] = value
    if EXPERIMENT in chosen:
        _check_experiment(chosen, {key_of(override) for override in overrides})


def _check_experiment(chosen: dict[str, object], settled: set[str]) -> None:
    """Check that no file chosen on the command line sets a key that the experiment would silently override.

    The command line takes precedence over an experiment: its keys over the experiment's keys, and its files over the
    files that the experiment chooses. But keys that an experiment sets itself are applied after all files.

    Args:
        chosen: the groups for which the command line chooses one or several files, with their names.
        settled: the keys that the command line sets.

    Raises:
        UserError: names the first such key.
    """
    experiment = chosen.pop(EXPERIMENT)
    theirs = _values_in(EXPERIMENT, experiment)
    for group, name in chosen.items():
        for key, value in _values_in(group, name).items():
            path = f"{group}.{key}"
            if path not in settled and theirs.get(path, value) != value:
                raise UserError(
                    f"{group}={name}: sets {path}={value}, but the experiment {experiment} sets {path}={theirs[path]}. "
                    f"Allowed: {path}=... as well, which overrides both; or {group}={name} without the experiment."
                )


def _values_in(group: str, name: object) -> dict[str, object]:
    """Return the values in a file and in those of its group that it builds on, by key path."""
    file = config_files(group).get(str(name).removesuffix(".yaml"))
    given = {} if file is None else read_yaml(file)
    assert isinstance(given, dict)
    inherited = [_values_in(group, entry) for entry in given.pop("defaults", []) if isinstance(entry, str)]
    return {key: value for values in (*inherited, dict(leaves(given))) for key, value in values.items()}


def nothing_to_remove(key: str, composed: DictConfig) -> UserError:
    """Return the error about an override that removes a key which is not there, with the nearest one.

    Args:
        key: the key.
        composed: what the other overrides make.
    """
    section, _, name = key.rpartition(".")
    there = OmegaConf.select(composed, section) if section else composed
    if isinstance(there, DictConfig) and there:
        return UserError(f"~{key}: there is no such key.{suggest(name, map(str, there))}")
    return UserError(f"~{key}: nothing to remove. Allowed: a key that a file in conf/ sets.")
