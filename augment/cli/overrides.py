"""Normalize the overrides of a command line for Hydra.

Hydra distinguishes `key=value` (must exist), `+key=value` (must not) and `++key=value`. Here defaults live in the code,
so whether a key is in the composed YAML does not matter, and our own checks find every unknown key. `normalize` sets
the plus signs: `aug.val.center_crop.scale=.9` works whether or not the YAML mentions the scale.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from augment.cli.conf import config_files, default_groups, group_names
from augment.cli.experiment import EXPERIMENT
from augment.support.errors import UserError, first_line, suggest
from augment.support.secrets import as_written, hide, masked

# The start of a value, or of one of the values of a sweep.
_HOME = re.compile(r"(?<=[=,])~/")

# A value without syntax that Hydra accepts only in quotes, because of an umlaut or another sign without a meaning in
# its grammar.
_TO_QUOTE = re.compile(r"""(?=.*[^\x20-\x7e]|.*[!#&;<>^`])[^=,:()\[\]{}'"\\$]+""")


_LONGEST_KEY = 200

# What a value may be made with; see the grammar of Hydra.
_FUNCTIONS = ("choice", "glob", "interval", "range", "shuffle", "sort", "tag", "int", "float", "str", "bool")

# Spaces of a search as other tools name them, and how Hydra writes them.
_LOG = "tag(log,interval(LOW,HIGH))"
_SPACES = {"log": _LOG, "loguniform": _LOG, "log_uniform": _LOG, "uniform": "interval(LOW,HIGH)"}


def normalize(tokens: Sequence[str]) -> list[str]:
    """Give every override the plus signs that Hydra expects; leave flags as they are.

    Raises:
        UserError: an override cannot be parsed.
    """
    groups, defaults = group_names(), default_groups()
    return [_normalize(token, groups, defaults) if is_override(token) else token for token in tokens]


def _normalize(token: str, groups: Sequence[str], defaults: Iterable[str]) -> str:
    token = _readable(token)
    override = parse(token)
    key = key_of(override)
    if len(key) > _LONGEST_KEY:  # Hydra looks for a file of this name
        raise UserError(f"{key[:40]}...: a key of {len(key):,} characters. Allowed: at most {_LONGEST_KEY}.")
    if override.type == OverrideType.DEL and key in groups and not isinstance(override.value(), str | None):
        raise UserError(f"{token}: removes a group. Allowed: ~{key}, or ~{key}=NAME.")
    token = _without_secret(token, override)
    bare = token.lstrip("+")
    if override.type == OverrideType.DEL or key_of(override).split(".")[0] == "hydra" or "/" in key_of(override):
        return token
    if key_of(override) in groups and not isinstance(override.value(), dict):
        return bare if key_of(override) in defaults else f"+{bare}"
    return f"++{bare}"


def _without_secret(token: str, override: Override) -> str:
    """Return an override with a reference in place of a secret, as Hydra and others write the command line down.

    Raises:
        UserError: a secret that has no override of its own.
    """
    key, value = key_of(override), override.value()
    if override.type == OverrideType.DEL:
        return token
    if as_written(value, key) in (value,) and masked(token) == token:  # NaN equals nothing, but it is itself
        return token
    if not isinstance(value, str):
        raise UserError(
            f"{key}: contains a secret, which would be written to files. Allowed: an override for each secret, "
            f"such as {key}.token=..., with one value."
        )
    return f"{token.partition('=')[0]}={hide(key, value)}"


def _readable(token: str) -> str:
    """Return an override as Hydra's grammar can read it: umlauts and the like in quotes, ~ expanded.

    The shell leaves the ~ of a folder alone behind a key, and Hydra's grammar does not know it.
    """
    key, equals, value = _HOME.sub(lambda _: f"{Path.home()}/", token).partition("=")
    return f'{key}="{value}"' if equals and _TO_QUOTE.fullmatch(value) else f"{key}{equals}{value}"


def is_override(token: str) -> bool:
    """Whether an argument is an override, rather than a flag or a bare name."""
    return not token.startswith("-") and ("=" in token or token.startswith("~"))


def parse(token: str) -> Override:
    """Parse one override.

    Raises:
        UserError: Hydra cannot parse it.
    """
    try:
        return OverridesParser.create().parse_override(_readable(token))
    except HydraException as error:
        raise UserError(
            f"{masked(token)}: cannot be read{_reason(token, first_line(error))}. Allowed: key=value. Put a value "
            "with any of = , : [ ] { } ( ) in double quotes, and all of it in single quotes: 'data.root=\"a, b\"'."
        ) from error


def _reason(token: str, text: str) -> str:
    """Return why Hydra cannot parse an override, in parentheses; empty if only its grammar could say."""
    value = token.partition("=")[2]
    if unknown := re.search(r"Unknown function '(\w+)'", text):
        if space := _SPACES.get(unknown[1]):
            return f" ({unknown[0].lower()}; Did you mean '{space}'?)"
        return f" ({unknown[0].lower()};{suggest(unknown[1], _FUNCTIONS).rstrip('.')})"
    if " while evaluating " in text:
        return f" ({text})"
    for opening, closing in ("[]", "{}", "()"):
        if value.count(opening) != value.count(closing):
            return f" ({opening} and {closing} do not match)"
    if value.startswith("("):
        return f" (a list is written in brackets: [{value.strip('()')}])"
    return " (one comma too many)" if value.endswith(",") else ""


def key_of(override: Override) -> str:
    """Return the key path or group that an override is about."""
    return override.key_or_group


def refuse_words(tokens: Iterable[str]) -> None:
    """Check that all arguments are overrides, not flags or bare names.

    Raises:
        UserError: one is not; the message suggests an override.
    """
    for token in tokens:
        if not isinstance(token, str):
            raise UserError(f'{token!r} is not an override. Allowed: text, such as "aug.size=160".')
        if not is_override(token):
            raise UserError(f"'{token}' is not an override.{_meant(token)} Allowed: +aug=NAME, key=value, ~key.")
        if bare := re.fullmatch(r"\+*(=.*)", token, re.DOTALL):
            raise UserError(f"{masked(bare[1])}: a key is missing. Allowed: key=value.")


def refuse_keywords(given: Mapping[str, object], keys: Mapping[str, str]) -> None:
    """Refuse keyword arguments that should be overrides.

    Args:
        given: the arguments by name.
        keys: key paths by the name that each may be given.

    Raises:
        UserError: there is one; the message shows it as an override.
    """
    for name, value in given.items():
        raise UserError(f'{name}={value!r}: overrides are text. Did you mean "{keys.get(name, name)}={value}"?')


def refuse_sweeps(tokens: Sequence[str]) -> None:
    """Check that no override has several values, which make a sweep.

    Raises:
        UserError: one does.
    """
    for token in tokens:
        if is_override(token) and parse(token).is_sweep_override():
            shown = token.removeprefix("++")
            raise UserError(
                f"{shown}: several values make a sweep, which only `python -m trainer -m` runs.{_one_value(shown)}"
            )


def _one_value(token: str) -> str:
    """Return a hint at the number or the list that two values, as p=0,5, may mean."""
    pair = re.fullmatch(r".*=(-?\d+),(\d+)", token)
    return f" For a decimal number write {pair[1]}.{pair[2]}; for a list, [{pair[1]},{pair[2]}]." if pair else ""


def _meant(token: str) -> str:
    if (Path(token) / "last.pt").is_file():
        return f" Did you mean 'fit.resume={token}'?"
    if Path(token).is_dir():
        return f" Did you mean 'data=folder data.root={token}'?"
    files = {name: group for group in (EXPERIMENT, "aug") for name in config_files(group)}
    name = token.removesuffix(".yaml")
    if name != token:
        return f" Did you mean '+aug={name}'? Its file is conf/aug/{token}, or aug/{token} in --config-dir."
    if near := get_close_matches(name, files, n=1):
        return f" Did you mean '+{files[near[0]]}={near[0]}'?"
    pair = re.fullmatch(r"([a-z_]+(?:\.\w+)+)(?::(.+))?", token)
    return f" Did you mean '{pair[1]}={pair[2] or '...'}'? Write no spaces around =." if pair else ""
