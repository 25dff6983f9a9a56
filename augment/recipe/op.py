"""The op registry. A decorator on a function declares an op.

Validation, error messages, the op table, previews, benchmark rows and per-op tests are derived from the declaration.
A module that `aug.plugins` lists can also declare ops (docs/extending.md):

    @color(amount_range=Range(default=(0, 1), within=(0, 1), doc="share of gray in the result"))
    def fade(amount):
        "Blend each pixel with its gray."
        return ...  # (N, 3, 4)

The function's name is the op's name, its docstring is the help text, and the decorator's keywords are its parameters.
From each `Range`, a value is drawn for every sample. The function gets the values of `amount_range` as `amount`, an
(N,) array. All other parameters are passed as configured, once for all samples.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import cleandoc, signature
from types import MappingProxyType
from typing import Any

from augment.params import Param, Range
from augment.recipe.op_kinds import (
    KINDS,
    BatchOp,
    ChannelSupport,
    ColorOp,
    CropOp,
    Function,
    GeometryOp,
    LocalOp,
    Op,
    PolicyOp,
    RemapOp,
)
from augment.support.errors import UserError, plugin_hint, suggest
from augment.support.user_code import reject_duplicate

Decorator = Callable[[Function], Function]

_OPS: dict[str, Op] = {}

# A read-only view of all ops by name, in the order of the op table: by kind, then by declaration.
OPS: Mapping[str, Op] = MappingProxyType(_OPS)


def _register(kind: type[Op], leading: tuple[str, ...], params: dict[str, Param[Any]], **fields: Any) -> Decorator:
    """Return the decorator that declares an op. `leading` names the arguments that precede the values."""
    common = _common_params(kind, params, fields)

    def decorate(function: Function) -> Function:
        importlib.import_module("augment.recipe.ops")  # register built-in ops first, so that a repeated name is found
        name = function.__name__
        reject_duplicate("op", name, _OPS[name].function if name in _OPS else None, function)
        if not function.__doc__:
            raise ValueError(f"op '{name}' needs a docstring, which is its help text")
        if taken := params.keys() & {*common, "op", "p", "steps", "weight"}:
            names = ", ".join(sorted(taken))
            raise ValueError(f"op '{name}': the parameter names {names} are reserved. Rename yours.")
        if plain := [f"{n}={p!r}" for n, p in params.items() if not isinstance(p, Param)]:
            raise ValueError(
                f"op '{name}': {plain[0]} is not a parameter. Use a type such as Number(...) or Range(...)."
            )
        op = kind(name, {**common, **params}, function, cleandoc(function.__doc__), **fields)
        _check_signature(op, leading, fields.get("prepare"))
        _OPS[name] = op
        by_kind = sorted(_OPS.items(), key=lambda item: KINDS.index(item[1].kind))
        _OPS.clear()
        _OPS.update(by_kind)
        return function

    return decorate


def _common_params(kind: type[Op], params: dict[str, Param[Any]], fields: dict[str, Any]) -> dict[str, Param[Any]]:
    """Return the common parameters of a kind, except parameters without an effect on the declared op."""
    common = dict(kind.common)
    if fields.get("moves_inside"):
        del common["border"], common["fill"]
    if fields.get("channels") != "separable":
        common.pop("per_channel", None)
    if "draw" in common and not (fields.get("uniforms") or any(isinstance(param, Range) for param in params.values())):
        del common["draw"]
    return common


def _check_signature(op: Op, leading: tuple[str, ...], prepare: Function | None) -> None:
    """Check the arguments of the op's function, or of `prepare`, which gets the drawn values instead."""
    receiver, first = (prepare, ()) if prepare else (op.function, leading)
    size = ("size",) if prepare or isinstance(op, GeometryOp | RemapOp) else ()
    values = (*size, *op.draws, *op.uniforms, *op.fixed(op.params))
    try:
        signature(receiver).bind(*first, **dict.fromkeys(values))
    except TypeError as error:
        raise ValueError(f"op '{op.name}' must take ({', '.join((*first, *values))}): {error}") from None


def crop(*, random: bool = False, **params: Param[Any]) -> Decorator:
    """Declare an op that crops an image of any size and resizes it to `size`: `function(source, size, **values)`.

    `source` is a `GraphImage` from `augment.pipeline.graph.decoding`, which decodes and resizes. `size` is (height,
    width). Values are the configured parameters. The function returns a DALI node with the cropped image, as the
    methods of `source` do. A recipe has at most one crop, which is its first step and has no p.

    Args:
        random: whether the op draws random numbers in DALI.
        params: the op's parameters by name.
    """
    return _register(CropOp, ("source", "size"), params, random=random)


def geometry(*, moves_inside: bool = False, uniforms: tuple[str, ...] = (), **params: Param[Any]) -> Decorator:
    """Declare an op that moves pixels with a matrix: `function(size, **values) -> (N, 3, 3)`.

    The matrix maps source to destination coordinates, in pixels from the center of images of `size`, (height, width).
    x points right, y down. Drawn values are (N,) arrays. Without drawn values, return a single (3, 3) matrix.

    Args:
        moves_inside: whether the result shows nothing beyond the image's edges, as after a flip. Such an op has no
            border.
        uniforms: names of additional drawn values, uniform in [0, 1).
        params: the op's parameters by name. p, border, fill and draw are added.
    """
    return _register(GeometryOp, (), params, moves_inside=moves_inside, uniforms=uniforms)


def remap(*, uniforms: tuple[str, ...] = (), prepare: Function | None = None, **params: Param[Any]) -> Decorator:
    """Declare an op that moves pixels with a PyTorch function: `function(x, y, size, **values) -> x, y`.

    The function maps the coordinates of output pixels to source coordinates. Coordinates are in pixels from the center
    of images of `size`, (height, width), and may lie between pixels or outside the image. x points right, y down. `x`,
    `y` and the results are (N, rows, columns) float32 tensors. Drawn values are (N, 1, 1) tensors. Prepared values keep
    their shape. Consecutive geometry and remap steps need only one resampling. Masks, boxes and keypoints also move.

    Args:
        uniforms: names of additional drawn values, uniform in [0, 1).
        prepare: see `local`.
        params: the op's parameters by name. p, border, fill and draw are added.
    """
    return _register(RemapOp, ("x", "y"), params, uniforms=uniforms, prepare=prepare)


def color(*, uniforms: tuple[str, ...] = (), channels: ChannelSupport = "rgb", **params: Param[Any]) -> Decorator:
    """Declare an op that maps colors with a matrix on (R, G, B, 1) in 0..255: `function(**values) -> (N, 3, 4)`.

    Drawn values are (N,) arrays. Without drawn values, return a single (3, 4) matrix. An (N, 3, 7) matrix acts on (R,
    G, B, mean R, mean G, mean B, 1), with the mean color of the image. (N, K, 3, 4) or (N, K, 3, 7) are K matrices in
    order of application. By default, the K matrices are multiplied. With `aug.fuse=false` or `aug.clip=each`, they are
    applied one by one.

    Args:
        uniforms: names of additional drawn values, uniform in [0, 1).
        channels: the images that the op supports. "rgb" needs red, green and blue, see `data.rgb`. "any" promises that
            the matrix maps each channel separately and in the same way, so its first row can be applied to any number
            of channels. "separable" also adds the parameter per_channel. With "separate", drawn values are (N,
            channels) arrays, and the function returns a factor and an offset, (N, channels) each, instead of a matrix.
        params: the op's parameters by name. p is added.
    """
    return _register(ColorOp, (), params, uniforms=uniforms, channels=channels)


def local(
    *,
    uniforms: tuple[str, ...] = (),
    prepare: Function | None = None,
    neutral: Mapping[str, Any] = MappingProxyType({}),
    random: bool = False,
    checkpoints: bool = True,
    moves: bool = True,
    channels: ChannelSupport = "rgb",
    **params: Param[Any],
) -> Decorator:
    """Declare an op made of DALI operators: `function(images, dali, **values) -> DALI node`.

    Images and results are (height, width, 3) uint8. If `channels` allows other channels, images may also be
    float32 from 0 to 255, and results are clipped to that range. `dali` is a `Dali` of
    `augment.pipeline.graph.operators`, with DALI's `fn` and `types`, and the `size`, (height, width). Drawn values are
    DALI nodes on the CPU, one value per sample.

    Args:
        uniforms: names of additional drawn values, uniform in [0, 1).
        prepare: NumPy function `(size, **values) -> {name: (N, ...) array}`, with size = (height, width). `function`
            then takes these arrays instead of the drawn values.
        neutral: drawn or prepared values that leave every bit of an image unchanged, for ops that are cheap on the GPU.
            Samples that skip the op may get these values instead of a mask.
        random: whether the op draws random numbers in DALI. Pass `**dali.random` to each operator that draws.
        checkpoints: whether DALI can checkpoint the op's operators. False makes resuming an epoch slower.
        moves: false promises that no pixel moves, so masks, boxes and keypoints stay valid. With such targets, a local
            op that moves pixels fails. Declare it with `geometry` or `remap` instead.
        channels: the images that the op supports. "rgb" needs red, green and blue, see `data.rgb`. "any" supports any
            channels. "separable" also adds the parameter per_channel. If it is true, drawn values are (channels,)
            nodes.
        params: the op's parameters by name. p is added.
    """
    return _register(
        LocalOp, ("images", "dali"), params, uniforms=uniforms, prepare=prepare, neutral=neutral, random=random,
        checkpoints=checkpoints, moves="other" if moves else None, channels=channels,
    )  # fmt: skip


def numpy_op(
    *, uniforms: tuple[str, ...] = (), moves: bool = True, channels: ChannelSupport = "rgb", **params: Param[Any]
) -> Decorator:
    """Declare an op on one image in NumPy: `function(image, **values)`. Images are (height, width, 3) uint8.

    Drawn values are floats. The function runs on the CPU, image by image, and holds the interpreter lock. If there is a
    GPU, images are copied to the CPU and back. The other arguments are as for `local`.
    """
    return _wrapped("numpy_function", "image", params, uniforms=uniforms, moves=moves, channels=channels, on_cpu=True)


def torch_op(
    *, uniforms: tuple[str, ...] = (), moves: bool = True, channels: ChannelSupport = "rgb", **params: Param[Any]
) -> Decorator:
    """Declare an op on a batch in PyTorch: `function(images, **values)`. Images are (N, height, width, 3) uint8.

    Drawn values are (N,) float32 tensors on the images' device, where the function runs. Stacking each batch takes
    time, and the function holds the interpreter lock. The other arguments are as for `local`.
    """
    return _wrapped("torch_function", "images", params, uniforms=uniforms, moves=moves, channels=channels)


def _wrapped(runner: str, leading: str, params: dict[str, Param[Any]], *, moves: bool, **fields: Any) -> Decorator:
    """Register a plain function as a local op that calls it with the method `runner` of `dali`."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def run(images: Any, dali: Any, **values: Any) -> Any:
            return getattr(dali, runner)(function, images, values)

        _register(LocalOp, (leading,), params, moves="other" if moves else None, **fields)(run)
        return function

    return decorate


def batch(
    *,
    uniforms: tuple[str, ...] = (),
    prepare: Function | None = None,
    neutral: Mapping[str, Any] = MappingProxyType({}),
    writes: bool = True,
    parts: Function | None = None,
    blends: bool = False,
    **params: Param[Any],
) -> Decorator:
    """Declare an op that mixes samples: `function(images, partners, **values) -> images, share`.

    Images and their partners are normalized (N, C, height, width) float tensors. The partner of a sample is the next
    sample of the batch. The partner of the last sample is the first. `share`, (N,), is each sample's own share of the
    mixed target. If K following samples contribute, it is (N, 1 + K): the sample's own share, then the shares of the
    following samples. Drawn values are (N,) tensors. The function may write to all its arguments.

    Args:
        uniforms: names of additional drawn values, uniform in [0, 1).
        prepare: see `local`.
        neutral: drawn or prepared values that leave every bit of an image unchanged. Each sample's own share is then 1.
        writes: false promises that the op does not write to its arguments. This saves a copy.
        parts: NumPy function `(size, **values) -> (N, 1 + K, 7)` of the drawn or prepared values. It describes which
            parts of the sample itself and of the K following samples the mixed image shows, so that masks and boxes can
            follow. The seven numbers are left, top, right and bottom edge of a rectangle in pixels, a scale s, and
            shifts x and y. A point (u, v) from the top left corner of the sample appears at (s u + x, s v + y). A
            rectangle without area shows nothing. The sample itself is visible where no other rectangle covers it. An op
            without `parts` fails on data with boxes. An op with `parts` needs `neutral`.
        blends: whether several samples are visible at the same position, which masks cannot represent.
        params: the op's parameters by name. p is added.
    """
    if parts and not neutral:
        raise ValueError("parts needs neutral, the values for samples that skip the op")
    return _register(
        BatchOp, ("images", "partners"), params, uniforms=uniforms, prepare=prepare, neutral=neutral, writes=writes,
        parts=parts, blends=blends,
    )  # fmt: skip


def policy(**params: Param[Any]) -> Decorator:
    """Declare an op that expands to other steps: `function(**values) -> mapping of steps`, written as in YAML.

    Args:
        params: the op's parameters by name, passed as configured. p is added.
    """
    return _register(PolicyOp, (), params)


def combinator(
    slots: Function, *, weighted: bool = False, numbers: int | None = None, **params: Param[Any]
) -> Decorator:
    """Declare an op that chooses among nested steps: `function(weights, uniform, **values) -> (N, slots)`.

    The result is the index of the step that runs in each slot, or -1 for no step. `weights` is a (steps,) array.
    `uniform` has random numbers in [0, 1), (N, steps), or (N, numbers) if `numbers` is given. Drawn values are (N,)
    arrays.

    Args:
        slots: function `(weights, **params)` that returns {index of a step: share of samples} for each slot.
        weighted: whether nested steps may have weights.
        numbers: number of columns of `uniform`. Default: one for each step.
        params: the op's parameters by name. p is added.
    """
    return _register(PolicyOp, ("weights", "uniform"), params, slots=slots, weighted=weighted, numbers=numbers)


def find_op(name: str, key: str, other: str | None = None) -> Op:
    if name not in _OPS:
        raise UserError(
            f"{key}: unknown op '{name}'.{suggest(name, _OPS, {name: other})} {plugin_hint('op', 'aug.plugins')}"
        )
    return _OPS[name]
