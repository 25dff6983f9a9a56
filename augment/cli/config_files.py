"""Find config files in the project, in `conf` of the current folder, and in the folder of `--config-dir`."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from augment.support.errors import UserError
from augment.support.files import shown
from augment.support.nested import value_at
from augment.support.yaml_files import read_yaml

# In a checkout, this is a link to the top level. An installed package contains the folder.
CONF = (Path(__file__).parents[1] / "conf").resolve()

CONFIG_DIR_FLAG = "--config-dir"
CONFIG_DIR_HELP = "also search this folder for config files, such as aug/mine.yaml for aug=mine"

# The files of this group choose files of other groups, and set keys of any section.
EXPERIMENT = "experiment"

_given: list[Path] = []


def set_config_dir(folder: str | None) -> None:
    """Also search a folder for config files in this process. With None, search only the default folders."""
    if folder is not None and not Path(folder).is_dir():
        what = "this is a file" if Path(folder).is_file() else "this folder does not exist"
        raise UserError(f"{CONFIG_DIR_FLAG} {folder}: {what}. Pass a folder that contains files such as aug/NAME.yaml.")
    _given[:] = [] if folder is None else [Path(folder).resolve()]


def config_folders() -> list[Path]:
    """Return the folders to search: the project's folder first, then the user's."""
    here = Path("conf").resolve()
    return list(dict.fromkeys([CONF, *([here] if here.is_dir() else []), *_given]))


def config_files(group: str) -> dict[str, Path]:
    """Return the files of a config group by name. Files of the group "" are for --config-name."""
    files: dict[str, Path] = {}
    for folder in config_folders():
        for file in sorted((folder / group).glob("*.yaml")):
            other = files.setdefault(file.stem, file)
            if other != file and other.read_bytes() != file.read_bytes():
                raise UserError(f"{group}={file.stem}: {other} and {file} have the same name. Rename one of them.")
    return files


def group_names() -> list[str]:
    """Return the config groups: the subfolders of the folders to search."""
    folders = {group.name for folder in config_folders() for group in folder.iterdir() if group.is_dir()}
    return sorted(name for name in folders - {"hydra"} if name[0] not in "._")  # Hydra's own groups


def own_files() -> list[str]:
    """Return the overrides that choose the user's own files, such as `aug=mine`."""
    files = {f"{group}={name}": file for group in group_names() for name, file in config_files(group).items()}
    return [choice for choice, file in files.items() if CONF not in file.parents]


def describe_origin(key: str, tokens: Iterable[str]) -> str:
    """Return a sentence about the chosen file that sets a key, or an empty string if an override sets it."""
    given = dict(token.lstrip("+~").partition("=")[::2] for token in tokens)
    chosen = {group: given[group] for group in group_names() if given.get(group) in config_files(group)}
    if any(f"{key}.".startswith(f"{name}.") for name in given.keys() - chosen.keys()):
        return ""
    section = key.split(".")[0]
    for group, choice in chosen.items():
        file = config_files(group)[choice]
        values = read_config(file)
        if CONF not in file.parents and value_at({group: values, **values}, key) is not None:
            return f" Correct {shown(file)}."
        if section == group:
            continue
        if value_at(values, key) is not None:  # experiments set keys of all sections
            return f" {group}={choice} sets {key}. To remove it, add ~{key}."
        defaults = [item for entry in values.get("defaults", ()) if isinstance(entry, dict) for item in entry.items()]
        for name, replacement in defaults:
            if name.partition("@")[0] == f"override /{section}" and section not in given:
                return f" {group}={choice} chooses {section}={replacement}."
    return ""


@cache
def default_groups() -> Mapping[str, str | None]:
    """Return the groups that `conf/config.yaml` lists, each with its default file or None.

    Their overrides need no plus sign, and the command line takes precedence over an experiment's choice.
    """
    named = [entry for entry in read_config(CONF / "config.yaml")["defaults"] if isinstance(entry, dict)]
    # An "override" entry belongs to one of Hydra's own groups.
    return {str(key): file for entry in named for key, file in entry.items() if not str(key).startswith("override ")}


def register_folders() -> None:
    """Make Hydra search the user's folders wherever it searches the project's.

    Raises:
        UserError: two folders contain different files with the same name.
    """
    own_files()
    Plugins.instance().register(_Folders)


def read_config(file: Path) -> dict[str, Any]:
    """Read a config file, which must contain a mapping."""
    given = read_yaml(file)
    if not isinstance(given, Mapping):
        raise UserError(f"{file}: {given!r} is not a mapping. Write lines of key: value, without dashes.")
    return {str(key): value for key, value in given.items()}


class _Folders(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in config_folders():
            if folder != CONF:
                search_path.append("user", f"file://{folder}")
