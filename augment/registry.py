"""The registry of ops: each is declared once, and everything else about it is derived from that declaration."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import cleandoc
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from augment.errors import UserError, suggest
from augment.params import Choice, Count, Number, Param, Range

Array = NDArray[np.float64]
Kind = Literal["crop", "geometry", "color"]

BORDERS = ("reflect_101", "constant", "replicate", "wrap")

_P = Number(default=1.0, within=(0, 1), doc="probability of applying the step, drawn for each sample")
_BORDER = Choice(default="reflect_101", options=BORDERS, doc="what lies beyond the edge of the picture")
_FILL = Count(default=0, within=(0, 255), doc="gray level beyond the edge with border constant")

# What every op of a kind takes besides its own parameters.
_COMMON: dict[Kind, dict[str, Param[Any]]] = {
    "crop": {},
    "geometry": {"p": _P, "border": _BORDER, "fill": _FILL},
    "color": {"p": _P},
}


@dataclass(frozen=True)
class Op:
    """An augmentation op.

    Attributes:
        name: the name in YAML.
        kind: crop, geometry or color; says what `function` takes and returns.
        params: every parameter that YAML may give, the common ones of the kind included.
        function: geometry: `(size, **values) -> (N, 3, 3)`, source to destination, in pixels, origin in the middle,
            x right, y down. color: `(**values) -> (N, 3, 4)` on RGB in 0..255. Without N where nothing is drawn. crop:
            `(picture, size, **values)` -> DALI node of (size, size, 3). `values` are the drawn values, (N,) each, and
            the fixed parameters by name.
        doc: what it does, for people.
        moves_inside: a geometry op that never shows anything beyond the edge joins a group of any border.
    """

    name: str
    kind: Kind
    params: Mapping[str, Param[Any]]
    function: Callable[..., Any]
    doc: str
    moves_inside: bool = False

    @property
    def draws(self) -> dict[str, str]:
        """Each drawn value's name with the name of the range it is drawn from."""
        if self.kind == "crop":  # DALI draws the window itself
            return {}
        ranges = {n: p for n, p in self.params.items() if isinstance(p, Range)}
        return {value: n for n, p in ranges.items() for value in (p.draws or (n.removesuffix("_range"),))}

    @property
    def is_random(self) -> bool:
        """Whether anything but its p is drawn."""
        return any(isinstance(param, Range) for param in self.params.values())

    @property
    def own_params(self) -> dict[str, Param[Any]]:
        """The parameters that are not common to all ops of the kind."""
        return {n: p for n, p in self.params.items() if n not in _COMMON[self.kind]}

    def values(self, params: Mapping[str, Any], drawn: Mapping[str, Array]) -> dict[str, Any]:
        """Return the keyword arguments of `function`: drawn values, and fixed parameters as they are."""
        fixed = {n: params[n] for n, p in self.own_params.items() if not (isinstance(p, Range) and self.draws)}
        return {**fixed, **drawn}


_OPS: dict[str, Op] = {}

# Read-only view: name -> op, in order of declaration.
OPS: Mapping[str, Op] = MappingProxyType(_OPS)

Function = Callable[..., Any]


def _register(
    kind: Kind, params: dict[str, Param[Any]], *, moves_inside: bool = False
) -> Callable[[Function], Function]:
    common = dict(_COMMON[kind])
    if moves_inside:
        del common["border"], common["fill"]

    def decorate(function: Function) -> Function:
        name = function.__name__
        if name in _OPS and _OPS[name].function.__module__ != function.__module__:
            raise ValueError(f"op '{name}' exists already, in {_OPS[name].function.__module__}")
        if not function.__doc__:
            raise ValueError(f"op '{name}' needs a docstring: it is its help text")
        if clash := common.keys() & params.keys():
            raise ValueError(f"op '{name}': {', '.join(sorted(clash))} is common to every {kind} op")
        _OPS[name] = Op(name, kind, {**common, **params}, function, cleandoc(function.__doc__), moves_inside)
        return function

    return decorate


def geometry(*, moves_inside: bool = False, **params: Param[Any]) -> Callable[[Function], Function]:
    """Declare a geometry op: `function(size, **values) -> (N, 3, 3)`, see `Op.function`."""
    return _register("geometry", params, moves_inside=moves_inside)


def color(**params: Param[Any]) -> Callable[[Function], Function]:
    """Declare a color op: `function(**values) -> (N, 3, 4)`, see `Op.function`."""
    return _register("color", params)


def crop(**params: Param[Any]) -> Callable[[Function], Function]:
    """Declare a crop op: `function(picture, size, **values) -> DALI node`, see `Op.function`."""
    return _register("crop", params)


def find_op(name: str, key: str) -> Op:
    """Return the op of that name.

    Raises:
        UserError: there is none; the message names `key` and the nearest op.
    """
    if name not in _OPS:
        raise UserError(f"{key}: unknown op '{name}'.{suggest(name, _OPS)}")
    return _OPS[name]


def load_plugins(modules: tuple[str, ...], key: str) -> None:
    """Import the user's modules, whose decorators register what they declare.

    Raises:
        UserError: a module is not found or declares something wrong.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UserError(f"{key}: no module named '{error.name}' (looked for in PYTHONPATH).") from error
        except (ImportError, SyntaxError, TypeError, ValueError) as error:
            raise UserError(f"{key}: {module}: {error}") from error
