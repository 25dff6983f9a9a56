"""Errors that are written for people: what is wrong, where, and what would be right."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType


class UserError(Exception):
    """A mistake in a configuration, a command line or a data set; entry points print it and exit with code 2.

    The message says where (key path, folder or file), what was given and what is allowed.
    """


def suggest(name: str, allowed: Iterable[str], others: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the tail of an "unknown name" message: the nearest of `allowed`, if any is near, and all of them.

    Args:
        name: the unknown one.
        allowed: the known ones.
        others: what people call some of them.
    """
    names = sorted(allowed)
    near = [others[name]] if name in others else get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"{hint} Allowed: {', '.join(names) or '(none)'}."


def told(error: BaseException) -> str:
    """Return what an error says, behind its name, which says something itself unless it is that of all mistakes."""
    return str(error) if type(error) is UserError else f"{type(error).__name__}: {error}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its name if it has none: what fits into a message of ours."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
