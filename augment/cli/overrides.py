"""Parse the overrides of a command line, and normalize them for Hydra.

Hydra distinguishes `key=value` (the key must exist), `+key=value` (it must not exist) and `++key=value` (either). Our
defaults are defined in code, so a valid key may be absent from the YAML, and our own checks find every unknown key.
`normalize` sets the plus signs: `aug.val.center_crop.scale=.9` works whether or not the YAML contains the scale.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep, ValueType
from hydra.errors import HydraException
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import YAMLError

from augment.cli.config_files import EXPERIMENT, config_files, default_groups, group_names
from augment.support.errors import UserError, first_line, nearest, suggest
from augment.support.expansion import MAX_EXPANDED, combinations, expanded_values, too_many
from augment.support.nested import leaves
from augment.support.secrets import masked, reject_secrets
from augment.support.yaml_files import describe_yaml_error

# The errors that composing a configuration can raise. Hydra raises Python's own errors for some invalid files.
_ERRORS = (
    *(HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, TypeError, LookupError, AttributeError),
    *(AssertionError, RecursionError),
)

# Hints about an unknown name in a group: the override that the user may have meant.
_NAME_HINTS = {
    "model": " For a timm model: model=timm model.name={}.",
    "data": " For a folder of images: data=folder data.root={}.",
    "callbacks": " For a callback: callbacks.{}={{}}.",
}

# Names that users may expect in a group, and the file that they probably want.
_EXPECTED_NAMES = {"data": {"csv": "filelist", "tsv": "filelist", "txt": "filelist", "imagefolder": "folder"}}

_INTERPOLATIONS = (
    "Use ${KEY} with a key that a YAML file or the command line sets, not with a default. For an environment variable, "
    "use ${oc.env:NAME} or ${oc.env:NAME,DEFAULT}."
)


@contextmanager
def explained(values: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into UserErrors. Messages about interpolations quote them from `values`."""
    try:
        yield
    except UserError:
        raise
    except _ERRORS as error:
        raise UserError(explain(error, values)) from error


def explain(error: Exception, values: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return a readable message for an error of Hydra or OmegaConf. See `explained`."""
    cause = error.__cause__
    if isinstance(error, InterpolationResolutionError):
        return _explain_interpolation(error, values)
    if isinstance(error, YAMLError):
        return f"{getattr(getattr(error, 'problem_mark', None), 'name', 'a config file')}: {describe_yaml_error(error)}"
    if isinstance(error, RecursionError):
        return "defaults: config files include each other in a circle. Remove one of these defaults."
    said = error if str(error) or cause is None else cause
    text = first_line(said)
    if override := re.match(r"Error merging override \+*([^=\s]+)=(.*)", text):
        key, value = override.groups()
        if value.startswith("["):
            return f"{key}: {value} cannot replace a mapping. Use a mapping, such as {{p: 0.5}}."
        return f"{key}: {value} cannot be merged with the existing value. To clear that value, put {key}=null first."
    if missing := re.match(r"(?:In '(.*?)': )?Could not (?:find|load) '(.*?)'", text):
        return _explain_missing(missing[1] or "", missing[2])
    if missing := re.match(r"Cannot find primary config '(.*?)'", text):
        return f"--config-name {missing[1]}: this file does not exist.{suggest(missing[1], config_files(''))}"
    if key := getattr(said, "full_key", None):
        return f"{key}: {text}. Use YAML numbers, text, lists or mappings, and close ${{KEY}} with a }}."
    return " ".join(line.strip() for line in (str(error) or text).partition("\n\n")[0].splitlines())


def _explain_missing(where: str, what: str) -> str:
    """Explain that the file `what`, GROUP/NAME, is missing. `where` is the file that chose it, or empty."""
    group, _, name = what.rpartition("/")
    if group and not what.startswith("hydra/"):  # our groups have one level, and Hydra's own groups have two
        group, _, name = what.partition("/")
    parent, _, stem = where.rpartition("/")
    known = config_files(group)
    file = None if stem == "config" else config_files(parent).get(stem)
    prefix = f"{file}: defaults: " if file else ""
    if not known:
        return f"{prefix}{what}: unknown group '{group}'.{suggest(group, group_names())}"
    chosen = f"{group}: " if group else ""
    expected = _EXPECTED_NAMES.get(group, {})
    hint = "" if name in expected else _NAME_HINTS.get(group, "").format(name)
    return f"{prefix}{chosen}unknown name '{name}'.{suggest(name, known, expected)}{hint}"


def _explain_interpolation(error: InterpolationResolutionError, values: Mapping[str, Any]) -> str:
    key, text = error.full_key or "an interpolation", first_line(error)
    kind, _, why = text.partition(" raised while resolving interpolation: ")
    if kind == UserError.__name__:  # our own error about a secret
        return why
    paths = dict(leaves(values))
    given = f"{paths[key]}: " if key in paths else ""
    near = ""
    if name := re.match(r"Interpolation key '(.*?)' not found", text):
        near = nearest(name[1], {path for path, value in paths.items() if path != key and value != {}})
    text = (why or text).strip('".')
    return f"{key}: {given}{text}.{near} {_INTERPOLATIONS}"


# A value that Hydra's grammar accepts only in quotes: text with non-ASCII or special characters, a range of files such
# as train-{000..009}.tar, or a URL with a query.
_TO_QUOTE = re.compile(
    r"""(?=.*[^\x20-\x7e]|.*[!#&;<>^`])[^=,:()\[\]{}'"\\$]+"""
    r"""|(?=.*\{\d+\.\.|\w+://.*=)(?:[^,()\[\]{}'"\\$]|\{\d+\.\.\d+\})+"""
)

# Names of search spaces in other tools, and the same spaces in Hydra's grammar.
_LOG = "tag(log,interval(LOW,HIGH))"
_SPACES = {"log": _LOG, "loguniform": _LOG, "log_uniform": _LOG, "uniform": "interval(LOW,HIGH)"}


def parse(token: str) -> Override:
    """Parse one override. A UserError explains what Hydra cannot parse."""
    try:
        return OverridesParser.create().parse_override(_readable(token))
    except (HydraException, ValueError) as error:  # Python does not convert more than 4,300 digits
        raise UserError(
            f"{masked(token)}: cannot be parsed{_reason(token, first_line(error))}. Write key=value. If the value "
            "has any of = , : [ ] { } ( ), put it in double quotes, and the whole override in single "
            "quotes: 'data.root=\"a, b\"'."
        ) from error


def key_of(override: Override) -> str:
    """Return the key path or the group of an override."""
    return override.key_or_group


def is_override(token: str) -> bool:
    """Whether an argument is an override, rather than a flag or a bare name."""
    return not token.startswith("-") and ("=" in token.lstrip("+")[1:] or token.startswith("~"))


def normalize(tokens: Sequence[str]) -> list[str]:
    """Give every override the plus signs that Hydra expects. An override with a secret raises a UserError."""
    groups, defaults = group_names(), default_groups()
    return [_normalize(_readable(token), groups, defaults) for token in tokens]


def _normalize(token: str, groups: Sequence[str], defaults: Iterable[str]) -> str:
    override = parse(token)
    key, value = key_of(override), override.value()
    if override.is_delete():
        return token
    reject_secrets({key: value})
    bare = token.lstrip("+")
    if key.split(".")[0] == "hydra" or "/" in key:
        return token
    if key in groups and not isinstance(value, dict):
        return bare if key in defaults else f"+{bare}"
    return f"++{bare}"


def _readable(token: str) -> str:
    """Add the quotes that Hydra's grammar needs, and replace ~ with the home folder."""
    # A sweep has several values, and each may start with ~.
    key, equals, value = re.sub(r"(?<=[=,])~/", lambda _: f"{Path.home()}/", token).partition("=")
    return f'{key}="{value}"' if equals and _TO_QUOTE.fullmatch(value) else f"{key}{equals}{value}"


def _reason(token: str, text: str) -> str:
    """Return in parentheses why Hydra cannot parse an override, or an empty string if the reason is unknown."""
    for opening, closing in ("[]", "{}", "()"):
        if token.count(opening) != token.count(closing):
            return f" ({opening} and {closing} do not match)"
    _, evaluated, problem = text.partition(" while evaluating ")
    space = next((_SPACES[word] for word in re.findall(r"\w+", problem) if word in _SPACES), "")
    return f" ({problem.rstrip('.')}{space and f'. Did you mean {space}?'})" if evaluated else ""


def split_sweep(tokens: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each job of a sweep, in Hydra's order.

    The tokens are normalized. Some have several values, such as `a,b`, `range(3)` or `glob(a*)`.
    """
    values: dict[str, list[str]] = {}
    for token in tokens:
        override = parse(token)
        key = override.get_key_element()
        values[key] = [token] if override.is_delete() else [f"{key}={value}" for value in _values(override)]
        if not values[key]:
            raise UserError(
                f"{token.removeprefix('++')}: the range is empty. Use range(STOP) or range(START, STOP, STEP). A "
                "range ends before STOP."
            )
    return [list(job) for job in combinations(values.values(), "-m")]


def _values(override: Override) -> list[str]:
    """Return the values of an override as strings."""
    key, value = key_of(override), override.value()
    if override.value_type == ValueType.INTERVAL_SWEEP:
        raise UserError(f"{key}: an interval works only in a search. Add hydra/sweeper=optuna, or list values: a,b,c.")
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        glob: Any = value
        known = [*config_files(key)]
        if not (found := glob.filter(known)):
            remedy = f"Allowed: {', '.join(known)}." if known else "Use glob() only to choose files of conf/."
            raise UserError(f"{key}: glob({', '.join(glob.include)}) matches no file. {remedy}")
        return list(found)
    if override.is_sweep_override():
        check_range(key, value)
        return expanded_values(override.sweep_string_iterator(), key)
    return [override.get_value_element_as_str()]


def check_range(key: str, value: object) -> None:
    """Reject a range with too many values, because Hydra lists all of them to shuffle or cast them."""
    if isinstance(value, RangeSweep) and value.start is not None and value.stop is not None:
        count = (value.stop - value.start) / value.step if value.step else math.inf
        if not count <= MAX_EXPANDED:
            raise too_many(key)


def reject_words(tokens: Iterable[str]) -> None:
    """Reject flags and bare names. The message suggests an override."""
    given = [*tokens]
    for index, token in enumerate(given):
        if not isinstance(token, str):
            raise UserError(f'{token!r} is not an override. Use a string, such as "aug.size=160".')
        if not is_override(token):
            meant = _meant(token, given[index - 1 : index], given[index + 1 :])
            raise UserError(f"'{token}' is not an override.{meant} Allowed: aug=NAME, key=value, ~key.")


def _meant(token: str, before: Sequence[str], following: Sequence[str]) -> str:
    """Return a hint about the override that the user probably meant, or an empty string.

    Args:
        token: the argument that is not an override.
        before: the argument before it, if any.
        following: the arguments after it.
    """
    if following and str(following[0]).startswith("="):
        value = [*following[0][1:].split(), *following[1:], "..."][0]
        return f" Did you mean '{token}={value}'? Put no spaces around =."
    if following and token in group_names():
        return f" Did you mean '{token}={following[0]}'?"
    if token[-1:] in {",", "]", "}"} or "".join(before).endswith(",") or re.fullmatch(r"[-.\de]+", token):
        return " Write lists, mappings and values of a sweep without spaces, such as [-7,7] or 0.1,0.2."
    files = {name: group for group in (EXPERIMENT, "aug") for name in config_files(group)}
    name = token.removesuffix(".yaml")
    near = get_close_matches(name, files, n=1)
    if (Path(token) / "last.pt").is_file():
        meant = f"fit.resume={token}"
    elif Path(token).is_dir():
        meant = f"data=folder data.root={token}"
    elif near:
        meant = f"{files[near[0]]}={near[0]}"
    elif name != token:
        meant = f"aug={name}"
    elif pair := re.fullmatch(r"([a-z_]+(?:\.\w+)+)(?::(.+))?", token):
        return f" Did you mean '{pair[1]}={pair[2] or '...'}'?"
    else:
        return ""
    file = f" Its file is conf/aug/{token}, or aug/{token} in --config-dir." if name != token else ""
    return f" Did you mean '{meant}'?{file}"


def reject_keywords(given: Mapping[str, object], keys: Mapping[str, str]) -> None:
    """Reject keyword arguments that should be overrides. `keys` maps names to key paths."""
    for name, value in given.items():
        raise UserError(f'{name}={value!r}: pass overrides as strings. Did you mean "{keys.get(name, name)}={value}"?')


def reject_sweeps(tokens: Sequence[str]) -> None:
    """Reject overrides with several values: sweeps, and decimal numbers with a comma, such as p=0,5."""
    for token in tokens:
        if parse(token).is_sweep_override():
            shown = token.removeprefix("++")
            pair = re.fullmatch(r".*=(-?\d+),(\d+)", token)
            hint = ""
            if pair:
                hint = " For a decimal number, write {0}.{1}. For a list, write [{0},{1}].".format(*pair.groups())
            raise UserError(f"{shown}: several values make a sweep. Run sweeps with `python -m trainer -m`.{hint}")
