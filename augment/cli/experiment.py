"""Check experiments: config files that choose files of other groups of conf/ and set keys of any section."""

from collections.abc import Collection, Mapping

from augment.cli.conf import config_files
from augment.support.errors import UserError
from augment.support.nested import leaves
from augment.support.yaml_files import read_yaml

EXPERIMENT = "experiment"  # name of the group


def check_experiment(chosen: Mapping[str, object], settled: Collection[str]) -> None:
    """Check that no file chosen on the command line sets a key that the experiment would silently override.

    The command line takes precedence over an experiment: its keys over the experiment's keys, and its files over the
    files that the experiment chooses. But keys that an experiment sets itself are applied after all files.

    Args:
        chosen: the groups for which the command line chooses one or several files, with their names.
        settled: the keys that the command line sets.

    Raises:
        UserError: names the first such key.
    """
    experiment = chosen.get(EXPERIMENT)
    if not isinstance(experiment, str):
        return
    theirs = _values_in(EXPERIMENT, experiment)
    for group, given in chosen.items():
        for name in given if isinstance(given, list) else [given]:
            for key, value in _values_in(group, str(name)).items() if group != EXPERIMENT else ():
                path = f"{group}.{key}"
                if path not in settled and theirs.get(path, value) != value:
                    raise UserError(
                        f"{group}={name}: sets {path}={value}, but the experiment {experiment} sets "
                        f"{path}={theirs[path]}. Allowed: {path}=... as well, which overrides both; or {group}={name} "
                        "without the experiment."
                    )


def _values_in(group: str, name: str) -> dict[str, object]:
    """Return the values in a file and in the files it inherits from, by key path; none for an unknown file."""
    file = config_files(group).get(name.removesuffix(".yaml"))
    if file is None:
        return {}
    given = read_yaml(file)
    values: dict[str, object] = {}
    if isinstance(given, dict):
        for entry in given.pop("defaults", []):
            if isinstance(entry, str) and entry != "_self_":
                values |= _values_in(group, entry)
        values |= dict(leaves(given))
    return values
