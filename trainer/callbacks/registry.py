"""The registry of callbacks that the `callbacks` section of the configuration can name."""

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from augment.params import parse_params, settings
from augment.support.errors import UserError, suggest
from trainer.loop.callback import Callback

C = TypeVar("C", bound=type[Callback])

_CALLBACKS: dict[str, type[Callback]] = {}


@cache
def known_callbacks() -> Mapping[str, type[Callback]]:
    """Return a read-only view of the registry: name in the configuration -> callback.

    Built-in callbacks are those in trainer/callbacks/*.py, and in callback.py of the other rooms.
    """
    package = Path(__file__).parents[1]
    for file in sorted([*package.glob("callbacks/*.py"), *package.glob("*/callback.py")]):
        import_module(".".join(file.relative_to(package.parent).with_suffix("").parts))

    return MappingProxyType(_CALLBACKS)


def configurable(cls: C) -> C:
    """Register a callback, a dataclass of settings, for use in the `callbacks` section; GradClip becomes grad_clip."""
    _CALLBACKS[name_in_config(cls)] = cls
    return cls


def name_in_config(cls: type[Callback]) -> str:
    """Return the name that a registered callback has in the configuration."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


def parse_callbacks(given: object) -> tuple[Callable[[], Callback], ...]:
    """Check the `callbacks` section, `{name: {setting: value}}`, and return a factory for each callback.

    A callback that is null is omitted, so that `callbacks.plots=null` switches off one of the defaults.

    Raises:
        UserError: an unknown callback or setting, or a value that is not allowed.
    """
    return tuple(partial(_CALLBACKS[name], **values) for name, values in complete_callbacks(given).items())


def complete_callbacks(given: object) -> dict[str, dict[str, Any]]:
    """Check the `callbacks` section as `parse_callbacks` does; return it with all defaults, without omitted ones."""
    if not isinstance(given, Mapping):
        raise UserError(
            f"callbacks: {given!r} is not allowed. Allowed: a mapping of callbacks, such as grad_clip: {{}}."
        )
    complete = {}
    known = known_callbacks()
    for name, values in given.items():
        if name not in known:
            raise UserError(f"callbacks.{name}: unknown callback.{suggest(str(name), known)}")
        if isinstance(values, bool):
            allowed = "{}, which adds it, or a mapping of its settings; null, which leaves it out"
            raise UserError(f"callbacks.{name}: {values} is not allowed. Allowed: {allowed}.")
        if values is not None:
            complete[str(name)] = parse_params(settings(known[name]), values, f"callbacks.{name}")
    return complete
