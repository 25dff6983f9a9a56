"""Launchers by name, from Hydra's section `launcher`."""

from collections.abc import Mapping
from typing import Any

from augment.params import parse_settings
from augment.support.errors import UserError, suggest
from trainer.sweeps.launchers.base import Launcher
from trainer.sweeps.launchers.cluster import Ray, Slurm
from trainer.sweeps.launchers.local import Local

LAUNCHERS: Mapping[str, type[Launcher]] = {cls.name: cls for cls in (Local, Slurm, Ray)}


def parse_launcher(given: Mapping[str, Any]) -> Launcher:
    """Check Hydra's section `launcher` and return it typed.

    Raises:
        UserError: an unknown launcher or setting, or a value that is not allowed.
    """
    kind = str(given.get("kind") or ("local" if "basic_launcher" in str(given.get("_target_")) else "plugin"))
    if kind not in LAUNCHERS:
        raise UserError(f"hydra/launcher: '{kind}' cannot run the jobs of a sweep.{suggest(kind, LAUNCHERS)}")
    rest = {str(name): value for name, value in given.items() if name not in ("kind", "_target_")}
    if isinstance(gpus := rest.get("gpus"), list | int):
        rest["gpus"] = ",".join(map(str, gpus if isinstance(gpus, list) else [gpus]))
    return parse_settings(LAUNCHERS[kind], rest, "hydra.launcher")
