"""The kinds of ops, such as geometry and color: what they declare, and how they move pixels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from augment.params import Choice, Count, Flag, Number, Param, Range

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
OpKind = Literal["crop", "geometry", "remap", "color", "local", "batch", "policy"]
KINDS: tuple[OpKind, ...] = get_args(OpKind)
Function = Callable[..., Any]

# The images that a color or local op supports. "rgb" needs red, green and blue. The others support any channels. With
# "separable", a recipe may choose values for each channel (per_channel). "separate" ops always have values
# for each channel.
ChannelSupport = Literal["rgb", "any", "separable", "separate"]

# How an op moves pixels: by resizing a window, with a matrix, with a function of coordinates, in another way, or not at
# all.
Moves = Literal["window", "matrix", "function", "other"] | None

BORDERS = ("reflect_101", "constant", "replicate", "wrap")
BORDER_DOC = "content beyond the image's edges"
FILL = Count(default=0, within=(0, 255), doc="gray level of a constant border")

_P = Number(default=1.0, within=(0, 1), doc="probability of applying the step, drawn for each sample")
_BORDER = Choice(default="reflect_101", options=BORDERS, doc=BORDER_DOC)
_REMAP_BORDER = Choice(default="reflect_101", options=BORDERS[:3], doc=BORDER_DOC)  # PyTorch does not support wrap
_DRAW = Choice(
    default="each",
    options=("each", "once"),
    doc="how often to draw values: for each sample (each), or once per run, from the run's seed (once). Whether the "
    "step applies is always drawn for each sample",
)


_PER_CHANNEL = Flag(default=False, doc="whether to draw values for each channel, instead of once for all channels")


@dataclass(frozen=True, repr=False)
class Op:
    """An augmentation op. The decorators of `augment.recipe.op` create ops.

    Attributes:
        name: the name in YAML.
        params: all parameters that YAML may set, including the common parameters of the kind.
        function: the decorated function, see the decorators. It takes drawn values and fixed parameters by name.
        doc: help text. The op table shows its first line.
        kind: the kind, which determines what `function` takes and returns.
        common: parameters that ops of the kind share. An op omits parameters without an effect on it.
        moves: how the op moves pixels, and therefore masks, boxes and keypoints.
        random: whether DALI draws random numbers, with a seed for each step.
        checkpoints: whether DALI can checkpoint the op's operators.
        on_cpu: whether the op runs on the CPU even if there is a GPU.
        channels: the images that the op supports.
    """

    name: str
    params: Mapping[str, Param[Any]]
    function: Function
    doc: str

    kind: ClassVar[OpKind]
    common: ClassVar[Mapping[str, Param[Any]]] = {"p": _P}

    random = False
    checkpoints = True
    on_cpu = False
    channels: Any = "any"  # a `ChannelSupport`

    def __repr__(self) -> str:
        return f"<{self.kind} op {self.name}>"  # short, because people print recipes

    @property
    def moves(self) -> Moves:
        """How the op moves pixels, or None if it moves no pixels."""
        return None

    @property
    def nests(self) -> bool:
        """Whether the op takes nested steps, under `steps` in YAML."""
        return False

    @property
    def uniforms(self) -> tuple[str, ...]:
        """Names of additional drawn values, uniform in [0, 1)."""
        return ()

    @cached_property
    def draws(self) -> dict[str, str]:
        """The names of the drawn values, each with the name of the range that it is drawn from."""
        range_of_value: dict[str, str] = {}
        for name, param in self.params.items():
            if isinstance(param, Range):
                values = param.draws or (name.removesuffix("_range"),)
                range_of_value |= dict.fromkeys(values, name)
        return range_of_value

    @property
    def own_params(self) -> dict[str, Param[Any]]:
        """The parameters without the common parameters of the kind."""
        return {n: p for n, p in self.params.items() if n not in self.common}

    def fixed(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a step's own parameters without the ranges, from which values are drawn."""
        drawn = self.draws.values()
        return {n: params[n] for n in self.own_params if n not in drawn}

    def values(self, params: Mapping[str, Any], drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of `function`: fixed parameters and drawn values."""
        return {**self.fixed(params), **drawn}


# The decorators in `augment.recipe.op` describe the fields of each kind.


@dataclass(frozen=True, repr=False)
class CropOp(Op):
    """Cuts a window out of an image of any size and resizes it."""

    random: bool = False

    kind = "crop"
    common: ClassVar[Mapping[str, Param[Any]]] = {}
    moves = "window"
    draws: ClassVar[dict[str, str]] = {}  # DALI draws from the ranges


@dataclass(frozen=True, repr=False)
class GeometryOp(Op):
    """Maps coordinates with a (3, 3) matrix."""

    moves_inside: bool = False
    uniforms: tuple[str, ...] = ()

    kind = "geometry"
    common: ClassVar[Mapping[str, Param[Any]]] = {"p": _P, "border": _BORDER, "fill": FILL, "draw": _DRAW}
    moves = "matrix"


@dataclass(frozen=True, repr=False)
class ColorOp(Op):
    """Maps the color of each pixel with a (3, 4) matrix, or with a matrix for `width` channels."""

    uniforms: tuple[str, ...] = ()
    channels: ChannelSupport = "rgb"
    width: int = 3

    kind = "color"
    common: ClassVar[Mapping[str, Param[Any]]] = {"p": _P, "per_channel": _PER_CHANNEL}


@dataclass(frozen=True, repr=False)
class PreparedOp(Op):
    """An op whose values NumPy may prepare for many batches at once."""

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
    """Changes each image in DALI, NumPy or PyTorch. NumPy runs on the CPU even if there is a GPU."""

    random: bool = False
    checkpoints: bool = True
    on_cpu: bool = False
    moves: Moves = "other"
    channels: ChannelSupport = "rgb"

    kind = "local"
    common: ClassVar[Mapping[str, Param[Any]]] = {"p": _P, "per_channel": _PER_CHANNEL}


@dataclass(frozen=True, repr=False)
class BatchOp(PreparedOp):
    writes: bool = True
    parts: Function | None = None
    blends: bool = False

    kind = "batch"


@dataclass(frozen=True, repr=False)
class PolicyOp(Op):
    """Expands to other steps. With `slots`, it chooses among the steps that the recipe nests in it."""

    slots: Function | None = None
    weighted: bool = False
    numbers: int | None = None

    kind = "policy"

    @property
    def nests(self) -> bool:
        return self.slots is not None

    @cached_property
    def draws(self) -> dict[str, str]:
        """The names of the drawn values, each with the name of the range that it is drawn from.

        A policy that nests no steps, such as RandAugment, draws no values itself.
        """
        return super().draws if self.nests else {}
