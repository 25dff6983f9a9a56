"""Explain errors of Hydra and OmegaConf: the key, what was given, what is allowed, and the nearest right name."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import YAMLError

from augment.cli.conf import config_files, group_names
from augment.support.errors import UserError, first_line, nearest, suggest
from augment.support.nested import leaves
from augment.support.yaml_files import describe_slip

# What composing raises; those of Python come from files that Hydra did not expect.
_ERRORS = (
    *(HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, TypeError, LookupError, AttributeError),
    *(AssertionError, RecursionError),
)

# What an unknown name of a group may be, besides a file.
_ELSEWHERE = {
    "model": " model=timm model.name={} if it is one of timm's.",
    "data": " data=folder data.root={} if it is a folder of images.",
    "callbacks": " callbacks.{}={{}} if it is a callback.",
}

_RESOLVED = (
    "${KEY} of a key that a YAML file or the command line sets (not a default), or ${oc.env:NAME} or "
    "${oc.env:NAME,DEFAULT}"
)


@contextmanager
def explained(values: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise inside, where interpolations of `values` are resolved, into a UserError."""
    try:
        yield
    except UserError:
        raise
    except _ERRORS as error:
        raise UserError(explain(error, values)) from error


def explain(error: Exception, values: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return the message about an error of Hydra or OmegaConf; see `explained`."""
    cause = error.__cause__
    if isinstance(error, InterpolationResolutionError):
        return _explain_interpolation(error, values)
    if isinstance(error, YAMLError):
        return f"{getattr(getattr(error, 'problem_mark', None), 'name', 'a config file')}: {describe_slip(error)}"
    if isinstance(error, RecursionError):
        return "defaults: config files build on each other in a circle. Allowed: defaults without circles."
    said = error if str(error) or cause is None else cause
    text = first_line(said)
    if override := re.match(r"Error merging override \+*([^=\s]+)=(.*)", text):
        key, value = override.groups()
        return f"{key}: {value} does not fit what is there. Allowed: {key}=null before it, which clears that."
    if missing := re.match(r"(?:In '(.*?)': )?Could not (?:find|load) '(.*?)'", text):
        return _explain_missing(missing[1] or "", missing[2])
    if missing := re.match(r"Cannot find primary config '(.*?)'", text):
        return f"--config-name {missing[1]}: there is no such file.{suggest(missing[1], config_files(''))}"
    if key := getattr(said, "full_key", None):
        return f"{key}: {text}. Allowed: numbers and text of YAML, lists, mappings, and ${{KEY}} closed by a }}."
    return " ".join(line.strip() for line in (str(error) or text).partition("\n\n")[0].splitlines())


def _explain_missing(where: str, what: str) -> str:
    """Explain that there is no file of a group and name, chosen by a config file or, if empty, the command line."""
    # Our groups have one level, Hydra's own have two.
    group, _, name = what.rpartition("/") if what.startswith("hydra/") or "/" not in what else what.partition("/")
    parent, _, stem = where.rpartition("/")
    known = config_files(group)
    file = None if stem == "config" else config_files(parent).get(stem)
    prefix = f"{file}: defaults: " if file else ""
    if not known:
        return f"{prefix}{what}: unknown group '{group}'.{suggest(group, group_names())}"
    chosen = f"{group}: " if group else ""
    return f"{prefix}{chosen}unknown name '{name}'.{suggest(name, known)}{_ELSEWHERE.get(group, '').format(name)}"


def _explain_interpolation(error: InterpolationResolutionError, values: Mapping[str, Any]) -> str:
    key, text = error.full_key or "an interpolation", first_line(error)
    kind, _, why = text.partition(" raised while resolving interpolation: ")
    if kind == UserError.__name__:  # of a secret
        return why
    paths = dict(leaves(values))
    given = f"{paths[key]}: " if key in paths else ""
    name = re.match(r"Interpolation key '(.*?)' not found", text)
    near = nearest(name[1], {path for path, value in paths.items() if path != key and value != {}}) if name else ""
    text = (why or text).strip('".')
    return f"{key}: {given}{text}.{near} Allowed: {_RESOLVED}."
