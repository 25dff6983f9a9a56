"""What differs between the versions of Hydra and OmegaConf, and the one private name of theirs that is used."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import hydra
import omegaconf

_OLD = omegaconf.__version__.startswith("2.3.")

# Returns PyYAML's loader that reads numbers as Hydra does, and refuses duplicate keys.
get_yaml_loader: Callable[[], Any] = import_module("omegaconf._utils" if _OLD else "omegaconf._yaml").get_yaml_loader

# OmegaConf 2.3 has another function of the new name.
register_resolver: Callable[..., None] = getattr(
    omegaconf.OmegaConf, "register_new_resolver" if _OLD else "register_resolver"
)

# What `hydra.main` and `hydra.initialize_config_dir` need, for the defaults of 1.3.
VERSION_BASE: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
