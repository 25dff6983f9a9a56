"""What Hydra composes, in milliseconds: files once in a process, and values put into copies of what came of them."""

import os
from collections.abc import Sequence
from copy import deepcopy
from functools import cache

import hydra
from omegaconf import DictConfig, OmegaConf

from augment.cli.config_files import config_folders
from augment.cli.overrides import key_of, parse

_hydra = hydra.compose


@cache
def _files(name: str, tokens: tuple[str, ...], whole: bool) -> DictConfig:
    return _hydra(name, list(tokens), return_hydra_config=whole)


def compose(config_name: str, overrides: Sequence[str] = (), return_hydra_config: bool = False) -> DictConfig:
    """Stand for `hydra.compose`, which also puts the values of ++key=value into what it made of the files."""
    values = [parse(token) for token in overrides if token.startswith("++") and "hydra" not in token]
    others = tuple(token for token in overrides if not token.startswith("++") or "hydra" in token)
    plain = not any(value.is_sweep_override() or "@" in key_of(value) for value in values)
    if len(config_folders()) > 1 or not plain or "aug=given" in others or any(token[0] in "+~" for token in others):
        return _hydra(config_name, list(overrides), return_hydra_config=return_hydra_config)
    tree = deepcopy(_files(config_name, others, return_hydra_config))
    for value in values:
        OmegaConf.update(tree, key_of(value), value.value(), merge=True, force_add=True)
    if return_hydra_config:
        tree.hydra.runtime.cwd = os.getcwd()
    return tree
