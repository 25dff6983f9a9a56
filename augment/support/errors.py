"""Errors that users can act on. They state what is wrong, where, and how to fix it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from augment.support.formatting import list_some

# Limits of `closest`, because comparing long names takes milliseconds.
_MAX_COMPARED, _MAX_LENGTH = 10_000, 100

_MAX_LISTED = 100  # allowed names in one message

MAX_ERRORS = 5  # wrong lines of a file that one error describes

_UPGRADING = Path(__file__).parents[2] / "docs" / "upgrading.md"  # only in a clone

Item = TypeVar("Item")
Result = TypeVar("Result")


class UserError(Exception):
    """A mistake in a configuration, a command line or a dataset. Entry points print it and exit with code 2.

    The message starts with the key path, folder or file. It states what is wrong and how to fix it.

    Attributes:
        hint: the fix at the end of the message, or empty. If another rank prints the message, rank 0 prints the hint.
    """

    hint = ""


def for_each(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Call a function with each item, such as a line of a file, and return the results.

    Raises:
        UserError: the function has raised errors, see `first_errors`.
    """
    results, errors, count = list[Result](), list[str](), 0
    for item in items:
        try:
            results.append(function(item))
        except UserError as error:
            count += 1
            if count <= MAX_ERRORS:
                errors.append(str(error))
    if errors:
        raise first_errors(errors, count)
    return results


def first_errors(errors: Sequence[str], count: int) -> UserError:
    """Return an error with the first of `count` errors, one per line, and the number of the others."""
    more = [f"... and {count - len(errors):,} more."] if count > len(errors) else []
    return UserError("\n".join([*errors, *more]))


def suggest(name: str, allowed: Iterable[str], others: Mapping[str, str | None] = MappingProxyType({})) -> str:
    """Return the end of a message about an unknown name: the closest allowed name, and the allowed names.

    `others` maps common aliases to allowed names.
    """
    names = sorted(allowed)
    hint = f" Did you mean '{others[name]}'?" if others.get(name) else nearest(name, names)
    return f"{hint} Allowed: {list_some(names, _MAX_LISTED) or '(none)'}."


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return a " Did you mean ...?" with the closest allowed name, or an empty string if no name is close."""
    names = {allowed_name.lower(): allowed_name for allowed_name in allowed}
    near = closest(name.lower(), names, 0.5)
    return f" Did you mean '{names[near]}'?" if near else ""


def closest(name: str, allowed: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the closest allowed name, or an empty string if no name is close. Long names are not compared."""
    short = (one for one in allowed if len(one) <= _MAX_LENGTH)
    near = get_close_matches(name, islice(short, _MAX_COMPARED), n=1, cutoff=cutoff) if len(name) <= _MAX_LENGTH else []
    return near[0] if near else ""


def nearest_each(names: Iterable[str], allowed: Iterable[str]) -> str:
    """Return a " Did you mean ... instead of ...?" for each of several names that is close to an allowed name."""
    hints = ((name, nearest(name, allowed)) for name in names)
    return "".join(f"{hint[:-1]} instead of '{name}'?" for name, hint in hints if hint)


def plugin_hint(what: str, key: str = "plugins") -> str:
    """Return the end of an error about an unknown name: how to load the user's own op, model and so on."""
    return f"For your own {what}, set {key}=[MODULE]."


def unknown_key(
    key: str, name: object, allowed: Iterable[str], others: Mapping[str, str] = MappingProxyType({})
) -> UserError:
    """Return the error about the unknown key `name` of the mapping at the key path `key`. See `suggest`."""
    path = f"{key}.{name}".lstrip(".")
    is_mentioned = _UPGRADING.exists() and f"`{path}`" in _UPGRADING.read_text(encoding="utf-8")
    hint = " See docs/upgrading.md, which mentions this key." if is_mentioned else ""
    return UserError(f"{path}: unknown key.{hint}{suggest(str(name), allowed, others)}")


def import_extra(key: str, package: str, extra: str) -> Any:
    """Import a package that `key` needs and one of our extras installs."""
    try:
        return import_module(package.replace("-", "_"))
    except ImportError as error:
        raise missing_package(key, package, extra) from error


def missing_package(key: str, package: str | None, extra: str) -> UserError:
    """Return the error about a missing package that `key` needs and one of our extras installs."""
    return UserError(f"{key} needs the package {package}. Install it: pip install 'dali-trainer[{extra}]'")


def describe_error(error: BaseException) -> str:
    """Return an error's message. Put the name of its type first unless it is a `UserError`, whose text is complete."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if the message is empty."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
