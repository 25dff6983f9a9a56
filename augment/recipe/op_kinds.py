"""The kinds of ops, a class each: what an op of the kind has, and how it moves pixels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from augment.params import Choice, Count, Number, Param, Range

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Kind = Literal["crop", "geometry", "remap", "color", "local", "batch", "policy"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Function = Callable[..., Any]

# How an op moves pixels: by a window that is resized, by a matrix, by a function of places, in another way, or not.
Moves = Literal["window", "matrix", "function", "other"] | None

BORDERS = ("reflect_101", "constant", "replicate", "wrap")
FILL = Count(default=0, within=(0, 255), doc="gray level beyond the edges with border constant")

_P = Number(default=1.0, within=(0, 1), doc="probability of applying the step, drawn for each sample")
_BORDER = Choice(default="reflect_101", options=BORDERS, doc="what lies beyond the edges of the image")
_REMAP_BORDER = Choice(default="reflect_101", options=BORDERS[:3], doc=_BORDER.doc)  # those that PyTorch can do
_DRAW = Choice(
    default="each",
    options=("each", "once"),
    doc="draw values for each sample, or once for the whole run from its seed. p is always drawn for each sample",
)


@dataclass(frozen=True, repr=False)
class Op:
    """An augmentation op, made by one of the decorators of `augment.recipe.op`.

    Attributes:
        name: the name in YAML.
        params: all parameters that YAML may set, including those common to the kind.
        function: see the decorator of the kind; takes `values`, drawn values and fixed parameters, by name.
        doc: help text. The op table shows its first line.
        kind: what `function` takes and returns.
        common: parameters that ops of the kind have besides their own.
        moves: how it moves pixels, and with them masks, boxes and points.
        random: whether DALI draws, from a seed of the step.
        checkpoints: whether DALI can checkpoint its operators.
        on_cpu: whether it runs on the CPU even if there is a GPU.
    """

    name: str
    params: Mapping[str, Param[Any]]
    function: Function
    doc: str

    kind: ClassVar[Kind]
    common: ClassVar[Mapping[str, Param[Any]]] = {"p": _P}

    random = False
    checkpoints = True
    on_cpu = False

    def __repr__(self) -> str:
        return f"<{self.kind} op {self.name}>"  # people print recipes

    @property
    def moves(self) -> Moves:
        """How it moves pixels; None: it does not."""
        return None

    @property
    def nests(self) -> bool:
        """Whether steps are nested in it in YAML, under `steps`."""
        return False

    @property
    def uniforms(self) -> tuple[str, ...]:
        """Names of further drawn values, uniform in [0, 1)."""
        return ()

    @cached_property
    def draws(self) -> dict[str, str]:
        """The name of the range that each value is drawn from, by the value's name."""
        ranges = {n: p for n, p in self.params.items() if isinstance(p, Range)}
        return {value: n for n, p in ranges.items() for value in (p.draws or (n.removesuffix("_range"),))}

    @property
    def own_params(self) -> dict[str, Param[Any]]:
        """The parameters that are not common to the kind."""
        return {n: p for n, p in self.params.items() if n not in self.common}

    def fixed(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a step's own parameters that no value is drawn from."""
        drawn = self.draws.values()
        return {n: params[n] for n in self.own_params if n not in drawn}

    def values(self, params: Mapping[str, Any], drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of `function`: fixed parameters and drawn values."""
        return {**self.fixed(params), **drawn}


# The fields of each kind are described where its decorator takes them, in `augment.recipe.op`.


@dataclass(frozen=True, repr=False)
class CropOp(Op):
    """Cuts a window out of an image of any size, and resizes it."""

    random: bool = False

    kind = "crop"
    common: ClassVar[Mapping[str, Param[Any]]] = {}
    moves = "window"
    draws: ClassVar[dict[str, str]] = {}  # ranges are DALI's to draw from


@dataclass(frozen=True, repr=False)
class GeometryOp(Op):
    """Maps coordinates by a matrix, (3, 3)."""

    moves_inside: bool = False
    uniforms: tuple[str, ...] = ()

    kind = "geometry"
    common: ClassVar[Mapping[str, Param[Any]]] = {"p": _P, "border": _BORDER, "fill": FILL, "draw": _DRAW}
    moves = "matrix"


@dataclass(frozen=True, repr=False)
class ColorOp(Op):
    """Maps the color of each pixel by a matrix, (3, 4)."""

    uniforms: tuple[str, ...] = ()

    kind = "color"


@dataclass(frozen=True, repr=False)
class PreparedOp(Op):
    """An op whose values may be prepared in NumPy, for many batches at once."""

    uniforms: tuple[str, ...] = ()
    prepare: Function | None = None
    neutral: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class RemapOp(PreparedOp):
    """Maps output coordinates to image coordinates with a PyTorch function."""

    kind = "remap"
    common: ClassVar[Mapping[str, Param[Any]]] = {"p": _P, "border": _REMAP_BORDER, "fill": FILL, "draw": _DRAW}
    moves = "function"


@dataclass(frozen=True, repr=False)
class LocalOp(PreparedOp):
    """Changes an image in DALI, NumPy (on the CPU even if there is a GPU) or PyTorch."""

    random: bool = False
    checkpoints: bool = True
    on_cpu: bool = False
    moves: Moves = "other"

    kind = "local"


@dataclass(frozen=True, repr=False)
class BatchOp(PreparedOp):
    """Mixes samples and their targets."""

    writes: bool = True
    parts: Function | None = None
    blends: bool = False

    kind = "batch"


@dataclass(frozen=True, repr=False)
class PolicyOp(Op):
    """Expands to other steps, or, with slots, chooses among those that the recipe nests in it."""

    slots: Function | None = None
    weighted: bool = False
    numbers: int | None = None

    kind = "policy"

    @property
    def nests(self) -> bool:
        """Whether steps are nested in it in YAML, under `steps`."""
        return self.slots is not None

    @cached_property
    def draws(self) -> dict[str, str]:
        """The name of the range that each value is drawn from; none if its steps draw."""
        return super().draws if self.nests else {}
