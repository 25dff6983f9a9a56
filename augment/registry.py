"""The registry of ops: each is declared once, and everything else about it is derived from that declaration."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from inspect import cleandoc
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from augment.errors import UserError, suggest
from augment.params import Choice, Count, Number, Param, Range

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Kind = Literal["crop", "geometry", "color", "local", "batch", "policy"]
Function = Callable[..., Any]

BORDERS = ("reflect_101", "constant", "replicate", "wrap")

_P = Number(default=1.0, within=(0, 1), doc="probability of applying the step, drawn for each sample")
_BORDER = Choice(default="reflect_101", options=BORDERS, doc="what lies beyond the edge of the picture")
_FILL = Count(default=0, within=(0, 255), doc="gray level beyond the edge with border constant")

_DRAW = Choice(
    default="each",
    options=("each", "once"),
    doc="values anew for each sample, or once for the whole run, from its seed; p is drawn for each sample anyway",
)

# What YAML gives a step for itself: no op can have a parameter of such a name.
_RESERVED = ("op", "p", "steps", "weight")

# What every op of a kind takes besides its own parameters.
COMMON: dict[Kind, dict[str, Param[Any]]] = {
    "crop": {},
    "geometry": {"p": _P, "border": _BORDER, "fill": _FILL, "draw": _DRAW},
    "color": {"p": _P},
    "local": {"p": _P},
    "batch": {"p": _P},
    "policy": {"p": _P},
}


@dataclass(frozen=True)
class Op:
    """An augmentation op.

    Attributes:
        name: the name in YAML.
        kind: says what `function` takes and returns.
        params: every parameter that YAML may give, the common ones of the kind included.
        function: `values` are the drawn values and the fixed parameters, by name; drawn ones are (N,) arrays.
            crop: `(picture, size, **values)` -> DALI node of (size, size, 3), fixed parameters only.
            geometry: `(size, **values)` -> (N, 3, 3), source to destination, in pixels, origin in the middle, x right,
            y down. color: `(**values)` -> (N, 3, 4) on RGB in 0..255, or (N, 3, 7) with three columns for the mean
            color of the picture between the 3x3 part and the offset. Both without N where nothing is drawn.
            local: `(images, dali, **values)` -> DALI node, both (size, size, 3) uint8; drawn values are DALI nodes on
            the CPU, one value a sample. batch: `(images, partners, **values)` -> (N, 3, size, size) float and (N,), the
            share of each sample that is its own; drawn values are tensors. policy: `(**values)` -> mapping of steps, as
            YAML would give them; one that nests steps in YAML: `(weights, uniform, **values)` -> (N, slots), which of
            its steps runs in each slot, -1 for none, from the (steps,) weights and (N, steps) numbers in [0, 1).
        doc: what it does, for people.
        moves_inside: a geometry op that never shows anything beyond the edge joins a group of any border.
        uniforms: names of further drawn values, uniform in [0, 1).
        prepare: local and batch: `(size, **drawn and fixed) -> {name: (N, ...) array}`, in NumPy, for many batches at
            once: what `function` gets in place of the drawn values.
        neutral: local: drawn or prepared values with which the op changes no bit. On the GPU they are cheaper than
            leaving a sample out.
        random: crop and local: DALI draws, by a seed of the step.
        checkpoints: whether DALI can save the state of its operators.
        on_cpu: local: runs on the CPU, with a GPU too.
        slots: a policy that nests steps: `(weights, **params)` -> for each slot the steps that may run in it, by index,
            with the share of samples for which each does.
        weighted: whether YAML may give the nested steps weights; without, all are 1.
    """

    name: str
    kind: Kind
    params: Mapping[str, Param[Any]]
    function: Function
    doc: str
    moves_inside: bool = False
    uniforms: tuple[str, ...] = ()
    prepare: Function | None = None
    neutral: Mapping[str, Any] = field(default_factory=dict)
    random: bool = False
    checkpoints: bool = True
    on_cpu: bool = False
    slots: Function | None = None
    weighted: bool = False

    @property
    def draws(self) -> dict[str, str]:
        """Each value drawn from a range, with the range's name."""
        if self.kind == "crop" or (self.kind == "policy" and not self.nests):  # DALI draws, or the policy's steps do
            return {}
        ranges = {n: p for n, p in self.params.items() if isinstance(p, Range)}
        return {value: n for n, p in ranges.items() for value in (p.draws or (n.removesuffix("_range"),))}

    @property
    def own_params(self) -> dict[str, Param[Any]]:
        """The parameters that are not common to all ops of the kind."""
        return {n: p for n, p in self.params.items() if n not in COMMON[self.kind]}

    @property
    def nests(self) -> bool:
        """Whether YAML gives it steps of its own, under `steps`."""
        return self.slots is not None

    def fixed(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the step's own parameters that nothing is drawn from."""
        drawn = self.draws.values()
        return {n: params[n] for n in self.own_params if n not in drawn}

    def values(self, params: Mapping[str, Any], drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of `function`: drawn values, and fixed parameters as they are."""
        return {**self.fixed(params), **drawn}


_OPS: dict[str, Op] = {}

# Read-only view: name -> op, in order of declaration.
OPS: Mapping[str, Op] = MappingProxyType(_OPS)


def _register(kind: Kind, params: dict[str, Param[Any]], **traits: Any) -> Callable[[Function], Function]:
    common = dict(COMMON[kind])
    if traits.get("moves_inside"):
        del common["border"], common["fill"]
    if "draw" in common and not (traits.get("uniforms") or any(isinstance(param, Range) for param in params.values())):
        del common["draw"]

    def decorate(function: Function) -> Function:
        name = function.__name__
        if name in _OPS and _OPS[name].function.__module__ != function.__module__:
            raise ValueError(f"op '{name}' exists already, in {_OPS[name].function.__module__}")
        if not function.__doc__:
            raise ValueError(f"op '{name}' needs a docstring: it is its help text")
        if clash := common.keys() & params.keys():
            raise ValueError(f"op '{name}': {', '.join(sorted(clash))} is common to every {kind} op")
        if taken := [reserved for reserved in _RESERVED if reserved in params]:
            raise ValueError(f"op '{name}': {', '.join(taken)} means something else in a step, whatever its op")
        _OPS[name] = Op(name, kind, {**common, **params}, function, cleandoc(function.__doc__), **traits)
        return function

    return decorate


def crop(*, random: bool = False, **params: Param[Any]) -> Callable[[Function], Function]:
    """Declare a crop op: `function(picture, size, **values) -> DALI node`, see `Op.function`."""
    return _register("crop", params, random=random)


def geometry(
    *, moves_inside: bool = False, uniforms: tuple[str, ...] = (), **params: Param[Any]
) -> Callable[[Function], Function]:
    """Declare a geometry op: `function(size, **values) -> (N, 3, 3)`, see `Op.function`."""
    return _register("geometry", params, moves_inside=moves_inside, uniforms=uniforms)


def color(*, uniforms: tuple[str, ...] = (), **params: Param[Any]) -> Callable[[Function], Function]:
    """Declare a color op: `function(**values) -> (N, 3, 4)`, see `Op.function`."""
    return _register("color", params, uniforms=uniforms)


def local(
    *,
    uniforms: tuple[str, ...] = (),
    prepare: Function | None = None,
    neutral: Mapping[str, Any] | None = None,
    random: bool = False,
    checkpoints: bool = True,
    **params: Param[Any],
) -> Callable[[Function], Function]:
    """Declare any other op: `function(images, dali, **values) -> DALI node`, see `Op.function`."""
    return _register(
        "local",
        params,
        uniforms=uniforms,
        prepare=prepare,
        neutral=MappingProxyType(dict(neutral or {})),
        random=random,
        checkpoints=checkpoints,
    )


def numpy_op(*, uniforms: tuple[str, ...] = (), **params: Param[Any]) -> Callable[[Function], Function]:
    """Declare a NumPy function of one picture as an op: `function(image, **values)`, (size, size, 3) uint8 to the same.

    Drawn values are floats. It runs on the CPU, one picture after the other, under the interpreter's lock; with a GPU
    the pictures travel to the CPU and back.
    """
    return _wrapped("numpy_function", params, uniforms, on_cpu=True)


def torch_op(*, uniforms: tuple[str, ...] = (), **params: Param[Any]) -> Callable[[Function], Function]:
    """Declare a PyTorch function of a batch as an op: `function(images, **values)`, (N, size, size, 3) uint8 to same.

    Drawn values are (N,) float32 tensors on the pictures' device. Its kernels run where the pictures are; each batch
    costs a stack, and Python under the interpreter's lock.
    """
    return _wrapped("torch_function", params, uniforms, on_cpu=False)


def _wrapped(
    runner: str, params: dict[str, Param[Any]], uniforms: tuple[str, ...], *, on_cpu: bool
) -> Callable[[Function], Function]:
    """Register a plain function as a local op that the graph's `runner` runs."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def run(images: Any, dali: Any, **values: Any) -> Any:
            return getattr(dali, runner)(function, images, values)

        _register("local", params, uniforms=uniforms, on_cpu=on_cpu)(run)
        return function

    return decorate


def batch(
    *, uniforms: tuple[str, ...] = (), prepare: Function | None = None, **params: Param[Any]
) -> Callable[[Function], Function]:
    """Declare an op that mixes samples: `function(images, partners, **values) -> images, share`, see `Op.function`."""
    return _register("batch", params, uniforms=uniforms, prepare=prepare)


def policy(**params: Param[Any]) -> Callable[[Function], Function]:
    """Declare a policy: `function(**values) -> mapping of steps`, as YAML would give them."""
    return _register("policy", params)


def combinator(slots: Function, *, weighted: bool = False, **params: Param[Any]) -> Callable[[Function], Function]:
    """Declare a policy over steps that YAML nests in it: `function(weights, uniform, **values)`, see `Op.function`."""
    return _register("policy", params, slots=slots, weighted=weighted)


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
            raise UserError(
                f"{key}: no module named '{error.name}' (looked for in this folder and PYTHONPATH)."
            ) from error
        except (ImportError, SyntaxError, TypeError, ValueError) as error:
            raise UserError(f"{key}: {module}: {error}") from error
