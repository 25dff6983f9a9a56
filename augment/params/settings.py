"""Configuration sections: dataclasses whose fields are typed parameters, and their validation."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from augment.params.param import Param
from augment.params.param_types import Size, Values
from augment.support.errors import UserError, plugin_hint, suggest, unknown_key
from augment.support.formatting import list_some

T = TypeVar("T")


def setting(param: Param[T]) -> T:
    """Declare a dataclass field whose value the parameter validates."""
    default = MISSING if param.required else param.default
    declared: T = field(default=default, metadata={"param": param})  # type: ignore[assignment]
    return declared


def settings(cls: type) -> dict[str, Param[Any]]:
    """Return the parameters of the fields that `setting` declared in a dataclass, by name and in order."""
    if not is_dataclass(cls) or any(isinstance(value, Field) for value in vars(cls).values()):
        raise UserError(f"{cls.__module__}.{cls.__name__} is not a dataclass. Decorate it with @dataclass.")
    return {f.name: f.metadata["param"] for f in fields(cls) if "param" in f.metadata}


def check_known(
    given: Mapping[Any, object],
    known: Mapping[str, Param[Any] | None],
    key: str,
    others: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Check the keys of a mapping. The error about an unknown key suggests a known one.

    Args:
        given: the mapping.
        known: the known keys with their parameters. None: a key without a parameter.
        key: the key path of the mapping, empty at the top.
        others: maps names from other tools to our keys.
    """
    for name in given:
        if name not in known:
            aliases: dict[str, str] = {}
            for own, param in known.items():
                if param is not None:
                    aliases |= dict.fromkeys(param.aliases, own)
            raise unknown_key(key, name, known, {**others, **aliases})


def parse_params(params: Mapping[str, Param[Any]], given: object, key: str) -> dict[str, Any]:
    """Validate the mapping at a key path, and fill in defaults.

    At the top, the path is empty. None instead of a mapping means that all values are defaults.
    """
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        known = ", ".join(params) or "(none)"
        example = "."
        if key and params:
            fitting = next((f"{name}={given}." for name, param in params.items() if param.fits(given)), None)
            example = f", such as {key}.{fitting or f'{next(iter(params))}=...'}"
        raise UserError(f"{key}: {given!r} is not allowed. Use a mapping{example} Allowed keys: {known}.")
    path = f"{key}." if key else ""
    check_known(given, params, key)
    for name, param in params.items():
        if param.required and given.get(name) is None:
            raise UserError(f"{path}{name} is required: {param.doc}.")
    return {n: p.parse(given[n], f"{path}{n}") if n in given else p.default for n, p in params.items()}


def parse_settings(cls: type[T], given: object, key: str) -> T:
    """Create a dataclass of settings from a mapping. See `parse_params`."""
    return cls(**parse_params(settings(cls), given, key))


@dataclass(frozen=True, kw_only=True)
class Nested(Param[Any]):
    """An optional mapping of settings.

    Attributes:
        of: the dataclass that the mapping is parsed to.
    """

    of: type

    def parse(self, value: object, key: str) -> Any:
        return None if value is None else parse_settings(self.of, value, key)

    def _allowed(self) -> str:
        return f"a mapping with {', '.join(settings(self.of))}"


def plain_value(value: object) -> object:
    """Return the value of a parameter as plain YAML values."""
    if isinstance(value, Values):
        return {"values": list(value.values)}
    if isinstance(value, Size):
        return value.plain
    if is_dataclass(value):
        return {name: plain_value(getattr(value, name)) for name in settings(type(value))}
    return list(value) if isinstance(value, tuple) else value


def parse_named(kinds: Mapping[str, type[T]], given: object, key: str, selector: str) -> T:
    """Create one of several dataclasses of settings from the mapping at a key path.

    Args:
        kinds: the dataclasses by name.
        given: a mapping, `{selector: name, ...settings}`.
        key: the key path of the mapping.
        selector: the key of the name, such as "source". Messages also use this word.
    """
    if not isinstance(given, Mapping) or not isinstance(given.get(selector), str):
        raise UserError(f"{key}.{selector} is required. Allowed: {', '.join(kinds)}.")
    name = given[selector]
    if name not in kinds:
        raise UserError(
            f"{key}.{selector}: unknown {selector} '{name}'.{suggest(name, kinds)} {plugin_hint(f'{key}.{selector}')}"
        )
    values = {n: v for n, v in given.items() if n != selector}
    for stray in values:
        others = [f"{key}={other}" for other, cls in kinds.items() if stray in settings(cls)]
        if others and not any(stray in (own, *param.aliases) for own, param in settings(kinds[name]).items()):
            own = ", ".join(sorted(settings(kinds[name]))) or "(none)"
            raise UserError(
                f"{key}.{stray}: {key}={name} has no such key. Add one that has it: {list_some(others, 3)}. Allowed "
                f"with {key}={name}: {own}."
            )
    return parse_settings(kinds[name], values, key)
