"""Look into nested mappings, such as configurations; and make groups of values."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def leaves(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what nested mappings hold, each value with its key path, as "fit.lr"; an empty mapping is a value, too."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def section_of(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a mapping within plain values; an empty one if there is none of that name."""
    section = values.get(name)
    return section if isinstance(section, Mapping) else {}


def merged(base: object, values: object) -> Any:
    """Return a value with another on top: mappings are merged, everything else is replaced."""
    if not isinstance(base, Mapping) or not isinstance(values, Mapping):
        return values
    return {**base, **{key: merged(base[key], value) if key in base else value for key, value in values.items()}}


def value_at(values: object, path: str) -> Any:
    """Return what nested mappings hold at a key path; None if there is nothing."""
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in the order in which they come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
