"""The layers of a network from stem to head, for learning rates by depth and for freezing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import cast

from augment.support.lazy_torch import nn


def layer_of(network: nn.Module, *, coarse: bool = False) -> dict[str, int]:
    """Return the layer number of each parameter by name. 0 is the stem, the highest number is the head.

    timm models define their layers. In other networks, each child is a layer. A norm belongs to the layer before it.
    """
    matcher = getattr(network, "group_matcher", None)
    if callable(matcher):
        from timm.models import group_parameters  # imported with the model

        return cast(dict[str, int], group_parameters(network, matcher(coarse=coarse), reverse=True))
    numbers: dict[str, int] = {}
    layer = 0
    for names in _children(network, "", deep=not coarse):
        only_vectors = all(network.get_parameter(name).ndim <= 1 for name in names)
        if numbers and not only_vectors:
            layer += 1
        numbers |= dict.fromkeys(names, layer)
    return numbers


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the name of a parameter matches one of the patterns, such as `blocks.0.*`."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _children(module: nn.Module, prefix: str, *, deep: bool) -> Iterator[list[str]]:
    """Yield the names of each child's parameters. A child that only wraps modules is replaced by these modules."""
    own = [f"{prefix}{name}" for name, _ in module.named_parameters(recurse=False)]
    if own:
        yield own
    filled = [(name, child) for name, child in module.named_children() if [*child.parameters()]]
    for name, child in filled:
        wraps = not own and len(filled) == 1 and [*child.children()]
        if wraps or (deep and isinstance(child, nn.Sequential | nn.ModuleList)):
            yield from _children(child, f"{prefix}{name}.", deep=deep)
        else:
            yield [f"{prefix}{name}.{inner}" for inner, _ in child.named_parameters()]
