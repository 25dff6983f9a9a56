"""Errors that users can act on: what is wrong, where, and what is allowed."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType


class UserError(Exception):
    """A mistake in a configuration, a command line or a data set; entry points print it and exit with code 2.

    The message says where (key path, folder or file), what was given and what is allowed.
    """


def suggest(name: str, allowed: Iterable[str], others: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the end of an "unknown name" message: the closest allowed name, if one is close, and all of them.

    Args:
        name: the unknown name.
        allowed: the known names.
        others: common aliases of known names.
    """
    names = sorted(allowed)
    hint = f" Did you mean '{others[name]}'?" if name in others else nearest(name, names)
    return f"{hint} Allowed: {', '.join(names) or '(none)'}."


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return a " Did you mean ...?" with the nearest allowed name; empty if none is near."""
    near = get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""


def describe_error(error: BaseException) -> str:
    """Return an error's message, preceded by the name of its type unless it is a plain `UserError`."""
    return str(error) if type(error) is UserError else f"{type(error).__name__}: {error}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if the message is empty."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
