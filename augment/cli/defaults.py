"""Check a user's config file before Hydra reads it, whose messages name neither the file nor the nearest name."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError

from augment.support.errors import UserError, suggest

_SELF = "_self_"
_KEYWORDS = ("optional", "override")


def check_config_file(
    file: Path, given: object, group: str, groups: Collection[str], options: Callable[[str], Collection[str]]
) -> None:
    """Check that a config file holds a mapping, readable interpolations, and a defaults list of existing files.

    Args:
        file: the file.
        given: its content.
        group: the group that it belongs to; empty for one that --config-name chooses.
        groups: all groups.
        options: returns the names of the files of a group; none for an unknown group.

    Raises:
        UserError: names the file, what was given, and what is allowed.
    """
    if not isinstance(given, Mapping):
        raise UserError(f"{file}: holds {given!r}. Allowed: a mapping, written as lines of key: value without dashes.")
    try:
        OmegaConf.create(dict(given))
    except GrammarParseError as error:
        key = f"{error.full_key}: " if error.full_key else ""
        raise UserError(f"{file}: {key}an interpolation cannot be read. Allowed: ${{KEY}}, closed by a }}.") from error
    for name, section in given.items():
        if isinstance(section, list) and name in groups:
            raise UserError(
                f"{file}: {name}: holds a list. Allowed: a mapping, written as lines of key: value without dashes."
            )
    entries = given.get("defaults", [])
    if not isinstance(entries, list):
        raise UserError(f"{file}: defaults: {entries!r} is not allowed. Allowed: a list, such as [NAME, {_SELF}].")
    if entries.count(_SELF) > 1:
        raise UserError(f"{file}: defaults: {_SELF} occurs {entries.count(_SELF)} times. Allowed: once.")
    overrides = False
    for entry in entries:
        if entry != _SELF:
            where = f"{file}: defaults: {_shown(entry)}"
            _check_entry(entry, where, group, file.stem, groups, options)
            if overrides and not _shown(entry).startswith("override "):
                raise UserError(f"{where}: comes after an override. Allowed: overrides at the end of the list.")
            overrides = _shown(entry).startswith("override ")


def _check_entry(
    entry: Any,
    where: str,
    group: str,
    own: str,
    groups: Collection[str],
    options: Callable[[str], Collection[str]],
) -> None:
    if isinstance(entry, str):
        path, slash, name = entry.partition("@")[0].rpartition("/")
        entry = {path + slash: name}
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise UserError(f"{where}: is not allowed. Allowed: NAME, GROUP: NAME, override /GROUP: NAME, {_SELF}.")
    ((key, names),) = entry.items()
    *words, path = str(key).split(" ")
    for word in words:
        if word not in _KEYWORDS:
            raise UserError(f"{where}: unknown word '{word}'.{suggest(word, _KEYWORDS)}")
    path = path.partition("@")[0]
    target = "/".join(filter(None, ("" if path.startswith("/") else group, path.strip("/"))))
    known = [option for option in options(target) if not option.startswith("_")]  # Hydra has such names
    if not known:
        raise UserError(f"{where}: unknown group '{path}'.{suggest(path, [f'/{g}' if group else g for g in groups])}")
    for name in names if isinstance(names, list) else [names]:
        if name is None or "optional" in words or "${" in str(name):
            continue
        known = [option for option in known if (target, option) != (group, own)]  # no file can build on itself
        if str(name).removesuffix(".yaml") not in known:
            raise UserError(f"{where}: unknown name '{name}'.{suggest(str(name), [*known, _SELF])}")


def _shown(entry: Any) -> str:
    return ", ".join(f"{key}: {value}" for key, value in entry.items()) if isinstance(entry, Mapping) else str(entry)
