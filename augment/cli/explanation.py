"""Explain errors of Hydra and OmegaConf: the key, what was given, what is allowed, and the nearest right name."""

import re
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import ConfigTypeError, InterpolationResolutionError, UnsupportedValueType

from augment.cli.conf import config_files, config_folders
from augment.support.errors import first_line, nearest, suggest
from augment.support.nested import leaves

_HYDRA = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.job.chdir", "hydra.verbose")

_RESOLVED = "${KEY} of a key that a YAML file or the command line sets (not a default), or ${oc.env:NAME}"


def explain(error: Exception) -> str:
    """Return the message about an error of Hydra or OmegaConf."""
    cause = error.__cause__
    if isinstance(error, InterpolationResolutionError):
        return _explain_interpolation(error)
    if isinstance(cause, ConfigTypeError):
        key = cause.full_key
        allowed = (
            f"{key}=null before it, which clears what is there" if key else "sections are mappings, without dashes"
        )
        return f"{key or first_line(error)}: a list does not merge with a mapping. Allowed: {allowed}."
    text = first_line(error if str(error) or cause is None else cause)
    if missing := re.match(r"Cannot find primary config '(.*?)'", text):
        names = [file.stem for folder in config_folders() for file in folder.glob("*.yaml")]
        return f"--config-name {missing[1]}: there is no such file.{suggest(missing[1], set(names))}"
    if twice := re.match(r"Multiple values for (\S+?)\. To override a value use 'override (.*)'", text):
        return f"{twice[1]}: chosen by two defaults lists. Did you mean 'override /{twice[2]}' in the second one?"
    if missing := re.match(r"Could not override '(.*?)'|Could not delete from config. '(.*?)' does not exist", text):
        name = missing[1] or missing[2]
        if name.startswith(("hydra.launcher.", "hydra.sweeper.")):
            return (
                f"{name}: there is no sweep. Allowed: with -m, and hydra.sweeper.* with hydra/sweeper=optuna as well."
            )
        return f"{name}: unknown key.{nearest(name, _HYDRA)} Allowed: an existing key."
    if override := re.match(r"Error merging override \+*([^=\s]+)=(.*)", text):
        return f"{override[1]}: {override[2]} does not fit what is there. Allowed: keys and values as in --help."
    if isinstance(error, UnsupportedValueType):
        what = text.split("'")[1]
        return f"{error.full_key}: {what} is not allowed. Allowed: numbers and text of Python itself, lists, mappings."
    if missing := re.match(r"In '(.*?)': Could not (?:load|find) '(.*?)'", text):
        group, _, name = missing[2].rpartition("/")
        return f"{missing[1]}: defaults: unknown name '{name}'.{suggest(name, config_files(group))}"
    return str(error).strip() or text


def _explain_interpolation(error: InterpolationResolutionError) -> str:
    key, text, parent = error.full_key or "an interpolation", first_line(error), error.parent_node
    if name := re.search(r"Environment variable '(.*?)' not found", text):
        allowed = f"to set it, or ${{oc.env:{name[1]},DEFAULT}}"
        return f"{key}: the environment variable {name[1]} is not set. Allowed: {allowed}."
    if name := re.match(r"Interpolation key '(.*?)' not found", text):
        root: Any = {} if parent is None else OmegaConf.to_container(parent._get_root())
        known = {path for path, value in leaves(root) if value != {}}
        what = f"there is no key '{name[1]}'.{nearest(name[1], known - {key})}"
    elif name := re.match(r"Unsupported interpolation type (\S+)", text):
        what = f"there is no resolver '{name[1]}'."
    else:
        what = f"{text.partition(' resolving interpolation: ')[2] or text}."
    given = "" if parent is None else f"{parent._get_node(error.key)._value()}: "
    return f"{key}: {given}{what} Allowed: {_RESOLVED}."
