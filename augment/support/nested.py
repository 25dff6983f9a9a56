"""Functions for nested mappings, such as configurations, and functions that group values or split sequences."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def leaves(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested mappings with its key path, such as "fit.lr". An empty mapping is also a value."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def section_of(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the inner mapping with the given name, or an empty mapping."""
    section = values.get(name)
    return section if isinstance(section, Mapping) else {}


def merged(base: object, values: object) -> Any:
    """Merge two values. The second replaces the first, but two mappings are merged key by key."""
    if not isinstance(base, Mapping) or not isinstance(values, Mapping):
        return values
    return {**base, **{key: merged(base[key], value) if key in base else value for key, value in values.items()}}


def value_at(values: object, path: str) -> Any:
    """Return the value of nested mappings at a key path, or None."""
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def chunks(items: Sequence[V], size: int) -> list[Sequence[V]]:
    """Split a sequence into chunks of at most `size` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key. Keys and values keep their order."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
