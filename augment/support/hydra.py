"""All that this project uses of Hydra's and OmegaConf's private names, and what differs between their versions."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import hydra
import omegaconf

# The versions of Hydra and OmegaConf with which the tests passed.
TESTED = (("1.3.8", "2.3.0"), ("1.3.8", "2.3.1"), ("1.4.0rc3", "2.4.1rc1"))


def find(*places: str) -> Any:
    """Return the first of some names, each as "module:name", that the installed versions have.

    Raises:
        ImportError: they have none of them.
    """
    for place in places:
        module, _, name = place.partition(":")
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    tested = " or ".join(f"hydra-core=={one} omegaconf=={other}" for one, other in TESTED)
    raise ImportError(
        f"Hydra {hydra.__version__} with OmegaConf {omegaconf.__version__} has no {' or '.join(places)}. "
        f"Allowed: such as {tested}."
    )


# Returns PyYAML's loader that reads numbers as Hydra does, and refuses duplicate keys.
get_yaml_loader: Callable[[], Any] = find("omegaconf._yaml:get_yaml_loader", "omegaconf._utils:get_yaml_loader")

# OmegaConf 2.3 has another function of the new name.
register_resolver: Callable[..., None] = getattr(
    omegaconf.OmegaConf, "register_new_resolver" if omegaconf.__version__.startswith("2.3.") else "register_resolver"
)

# What `hydra.main` and `hydra.initialize_config_dir` need, for the defaults of 1.3.
VERSION_BASE: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
