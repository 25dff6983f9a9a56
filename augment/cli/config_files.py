"""Find config files: in the project, in `conf` of the current folder, and in the folder of --config-dir."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from augment.support.errors import UserError
from augment.support.yaml_files import read_yaml

# A link to the top level in a checkout, a folder of its own in an installed package.
CONF = (Path(__file__).parents[1] / "conf").resolve()

CONFIG_DIR_FLAG = "--config-dir"
CONFIG_DIR_HELP = "also search this folder for config files, like ./conf: its aug/mine.yaml is +aug=mine"

# The group of files that choose files of other groups, and set keys of any section.
EXPERIMENT = "experiment"

_given: list[Path] = []


def set_config_dir(folder: str | None) -> None:
    """Also search a folder for config files in this process, or with None only the default ones."""
    if folder is not None and not Path(folder).is_dir():
        what = "is a file" if Path(folder).is_file() else "there is no such folder"
        raise UserError(
            f"{CONFIG_DIR_FLAG} {folder}: {what}. Allowed: a folder such as conf, with aug/NAME.yaml in it."
        )
    _given[:] = [] if folder is None else [Path(folder).resolve()]


def config_folders() -> list[Path]:
    """Return the folders that are searched: the project's own first, then the user's."""
    here = Path("conf").resolve()
    return list(dict.fromkeys([CONF, *([here] if here.is_dir() else []), *_given]))


def config_files(group: str) -> dict[str, Path]:
    """Return the files of a config group by name. Files of the group "" are for --config-name."""
    files: dict[str, Path] = {}
    for folder in config_folders():
        for file in sorted((folder / group).glob("*.yaml")):
            other = files.setdefault(file.stem, file)
            if other != file and other.read_bytes() != file.read_bytes():
                raise UserError(f"{group}={file.stem}: both {other} and {file}. Allowed: one file per name.")
    return files


def group_names() -> list[str]:
    """Return the config groups: the subfolders of the folders that are searched."""
    folders = {group.name for folder in config_folders() for group in folder.iterdir() if group.is_dir()}
    return sorted(name for name in folders - {"hydra"} if name[0] not in "._")  # Hydra has groups of its own


def own_files() -> list[str]:
    """Return the overrides that choose the user's own files, such as `aug=mine`."""
    files = {f"{group}={name}": file for group in group_names() for name, file in config_files(group).items()}
    return [choice for choice, file in files.items() if CONF not in file.parents]


def default_groups() -> dict[str, str | None]:
    """Return the groups that conf/config.yaml lists, each with its default file or None.

    They can be chosen without a plus sign, and the command line takes precedence over an experiment's choice.
    """
    named = [entry for entry in read_config(CONF / "config.yaml")["defaults"] if isinstance(entry, dict)]
    # Overrides are of Hydra's own groups.
    return {str(key): file for entry in named for key, file in entry.items() if not str(key).startswith("override ")}


def register_folders() -> None:
    """Make Hydra search the user's folders wherever it searches the project's."""
    own_files()
    Plugins.instance().register(_Folders)


def read_config(file: Path) -> dict[str, Any]:
    """Read a config file, which has to hold a mapping."""
    given = read_yaml(file)
    if not isinstance(given, Mapping):
        raise UserError(f"{file}: holds {given!r}. Allowed: a mapping, written as lines of key: value without dashes.")
    return {str(key): value for key, value in given.items()}


class _Folders(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in config_folders():
            if folder != CONF:
                search_path.append("user", f"file://{folder}")
