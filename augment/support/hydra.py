"""The differences between versions of Hydra and OmegaConf, and the one private function that we use."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import hydra
import omegaconf

_OLD = omegaconf.__version__.startswith("2.3.")

# Returns a PyYAML loader that reads numbers as Hydra does, and rejects duplicate keys.
get_yaml_loader: Callable[[], Any] = import_module("omegaconf._utils" if _OLD else "omegaconf._yaml").get_yaml_loader

# In OmegaConf 2.3, `register_resolver` is a different function.
register_resolver: Callable[..., None] = getattr(
    omegaconf.OmegaConf, "register_new_resolver" if _OLD else "register_resolver"
)

# Arguments of `hydra.main` and `hydra.initialize_config_dir` that select the defaults of Hydra 1.3.
VERSION_BASE: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
