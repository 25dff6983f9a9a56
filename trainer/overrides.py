"""Overrides as people write them, turned into overrides as Hydra wants them, and checked before Hydra runs.

Hydra tells `key=value` (must exist), `+key=value` (must not) and `++key=value` apart. Whether a key exists in the
composed YAML says nothing here, where defaults live in the code; our own checks find every unknown key. So the plus
signs are taken care of: `aug.val.center_crop.scale=.9` works whether or not the YAML mentions the scale.
"""

from collections.abc import Sequence
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import OmegaConf

from augment.errors import UserError, suggest

CONF = Path(__file__).resolve().parent.parent / "conf"


def normalize(tokens: Sequence[str], *, groups: Sequence[str], defaults: Sequence[str]) -> list[str]:
    """Give every override the plus signs that Hydra wants.

    Args:
        tokens: command line arguments; flags pass through.
        groups: names of all config groups.
        defaults: the groups that the defaults list has.

    Raises:
        HydraException: an override cannot be parsed.
    """
    return [token if token.startswith("-") else _normalize(token, groups, defaults) for token in tokens]


def _normalize(token: str, groups: Sequence[str], defaults: Sequence[str]) -> str:
    if "=" not in token and not token.startswith("~"):
        return token
    override = parse(token)
    bare = token.lstrip("+")
    if override.type == OverrideType.DEL or key_of(override).split(".")[0] == "hydra" or "/" in key_of(override):
        return token
    if key_of(override) in groups and not isinstance(override.value(), dict):
        return bare if key_of(override) in defaults else f"+{bare}"
    return f"++{bare}"


def parse(token: str) -> Override:
    """Parse one override."""
    return OverridesParser.create().parse_override(token)


def key_of(override: Override) -> str:
    """Return the key path or group that an override is about."""
    return override.key_or_group


def check_groups(overrides: Sequence[Override], groups: Sequence[str]) -> None:
    """Check the names of config files, `data=folder`; Hydra must be initialized.

    Raises:
        UserError: a group has no file of that name; the message has the nearest one.
    """
    loader = GlobalHydra.instance().config_loader()
    for override in overrides:
        group = key_of(override)
        if group in groups and override.type != OverrideType.DEL and not isinstance(override.value(), dict):
            known = loader.get_group_options(group)
            value = override.value()
            for name in value if isinstance(value, list) else [value]:
                if str(name).removesuffix(".yaml") not in known:
                    raise UserError(f"{group}: unknown name '{name}'.{suggest(str(name), known)}")


def with_resumed(tokens: Sequence[str]) -> list[str]:
    """Put the overrides of the run that `fit.resume` names before those of the command line, which win.

    Raises:
        UserError: the folder is not that of a run.
    """
    given = {key_of(parse(t)): t for t in tokens if not t.startswith("-") and ("=" in t or t.startswith("~"))}
    resume = parse(given["fit.resume"]).value() if "=" in given.get("fit.resume", "") else None
    if resume is None:
        return list(tokens)
    folder = Path(str(resume))
    file = folder / ".hydra" / "overrides.yaml"
    if not file.is_file() or not (folder / "last.pt").is_file():
        missing = "no such folder" if not folder.is_dir() else "no last.pt and .hydra/overrides.yaml in it"
        raise UserError(f"fit.resume={folder}: {missing}. Allowed: the folder of a run that saved a checkpoint.")
    saved = [str(token) for token in OmegaConf.load(file)]
    return [token for token in saved if key_of(parse(token)) not in given] + list(tokens)
