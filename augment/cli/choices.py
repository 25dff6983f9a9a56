"""Check overrides against the config files that there are, and against what they compose."""

import re
from collections.abc import Iterator, Sequence

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf

from augment.cli.conf import config_folders, default_groups, group_names
from augment.cli.overrides import key_of
from augment.support.errors import UserError, suggest

# Hints for names that are not files of a group, but may be valid elsewhere.
_ELSEWHERE = {
    "model": " model=timm model.name={} if it is one of timm's.",
    "data": " data=folder data.root={} if it is a folder of images.",
    "callbacks": " callbacks.{}={{}} if it is a callback.",
}

# Key of a step of a recipe.
_STEP = re.compile(r"aug\.(train|val)\.[^.]+")


def check_groups(overrides: Sequence[Override]) -> None:
    """Check the names of config files, `data=folder`; Hydra must be initialized.

    Raises:
        UserError: a group has no file of that name; the message suggests the nearest one.
    """
    loader = GlobalHydra.instance().config_loader()
    for group, value in chosen_files(overrides):
        known = loader.get_group_options(group)
        for name in value if isinstance(value, list) else [value]:
            if str(name).removesuffix(".yaml") not in known:
                hint = _ELSEWHERE.get(group, "").format(name)
                if str(name).endswith((".yaml", ".yml")) or any(
                    (folder / group / f"{name}.yml").is_file() for folder in config_folders()
                ):
                    hint = f" A file of your own is {group}=NAME if it is conf/{group}/NAME.yaml, or in --config-dir."
                raise UserError(f"{group}: unknown name '{name}'.{suggest(str(name), known)}{hint}")


def check_added_once(overrides: Sequence[Override]) -> None:
    """Check that no group without a default is chosen twice; for other groups, the last choice counts."""
    added: dict[str, object] = {}
    defaults = default_groups()
    for group, value in chosen_files(overrides):
        if group in added:
            raise UserError(f"{group}: chosen twice, {added[group]} and {value}. Allowed: once.")
        if defaults.get(group) is None:
            added[group] = value


def chosen_files(overrides: Sequence[Override]) -> Iterator[tuple[str, object]]:
    """Yield the groups for which overrides choose one or several files, with their names."""
    groups = group_names()
    for override in overrides:
        group = key_of(override)
        if (
            (group in groups or group.startswith("hydra/"))
            and override.type != OverrideType.DEL
            and not isinstance(override.value(), dict)
        ):
            yield group, override.value()


def refuse_deletions(config_name: str, tokens: list[str], overrides: Sequence[Override]) -> None:
    """Check that overrides delete only existing keys.

    Raises:
        UserError: one does not; the message suggests the nearest key.
    """
    deleted = [override for override in overrides if override.type == OverrideType.DEL]
    if not deleted:
        return
    kept = [token for token, override in zip(tokens, overrides, strict=True) if override.type != OverrideType.DEL]
    composed = hydra.compose(config_name, kept)
    for override in deleted:
        section, _, name = key_of(override).rpartition(".")
        there = OmegaConf.select(composed, section) if section else composed
        if not there:
            raise UserError(f"~{key_of(override)}: nothing to remove. Allowed: a key that a file in conf/ sets.")
        if isinstance(there, DictConfig) and name not in there:
            raise UserError(f"~{key_of(override)}: there is no such key.{suggest(name, map(str, there))}")


def refuse_null_steps(composed: DictConfig, overrides: Sequence[Override]) -> None:
    """Check that no override sets a step to null.

    In a file a bare `rotate:` applies the step to every sample; on the command line, null reads like its removal.

    Raises:
        UserError: one does.
    """
    for key in map(key_of, overrides):
        if _STEP.fullmatch(key) and OmegaConf.select(composed, key, default={}) is None:
            raise UserError(
                f"{key}: null is not allowed. Allowed: parameters, such as {{p: 0}}; or ~{key}, which removes it."
            )
