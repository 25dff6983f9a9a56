"""Experiments: files that choose files of the other groups of conf/ and set keys of any section."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from augment.errors import UserError

EXPERIMENT = "experiment"  # name of the group


def check_experiment(chosen: Mapping[str, object], settled: Collection[str], conf: Path) -> None:
    """Check that no file of the command line sets what the experiment sets otherwise, and would do so in silence.

    The command line wins over an experiment: its keys over the experiment's, and its files over those that the
    experiment chooses. But what an experiment sets itself comes after all files.

    Args:
        chosen: the groups of which the command line chooses a file, with its name or several names.
        settled: the keys that the command line sets itself.
        conf: folder of the groups.

    Raises:
        UserError: names the first such key.
    """
    experiment = chosen.get(EXPERIMENT)
    if not isinstance(experiment, str):
        return
    theirs = _values_in(conf / EXPERIMENT, experiment)
    for group, given in chosen.items():
        for name in given if isinstance(given, list) else [given]:
            for key, value in _values_in(conf / group, str(name)).items() if group != EXPERIMENT else ():
                path = f"{group}.{key}"
                if path not in settled and theirs.get(path, value) != value:
                    raise UserError(
                        f"{group}={name}: has {path}={value}, and the experiment {experiment} sets "
                        f"{path}={theirs[path]}. Allowed: {path}=... beside it, which decides, or {group}={name} "
                        "without the experiment."
                    )


def _values_in(group: Path, name: str) -> dict[str, object]:
    """Return what a file and those that it inherits from set, by key path; nothing for a file from elsewhere."""
    file = group / f"{name.removesuffix('.yaml')}.yaml"
    if not file.is_file():
        return {}
    given = OmegaConf.to_container(OmegaConf.load(file))
    values: dict[str, object] = {}
    if isinstance(given, dict):
        for entry in given.pop("defaults", []):
            if isinstance(entry, str) and entry != "_self_":
                values |= _values_in(group, entry)
        values |= dict(_leaves(given, ""))
    return values


def _leaves(given: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in given.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
