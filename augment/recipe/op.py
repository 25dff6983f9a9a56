"""The op registry. An op is declared once, by a decorator on its function. Everything else is derived from it.

Validation, error messages, the op table, previews, benchmark rows and the tests of every op come from the declaration.
A function in a module that `aug.plugins` lists is an op, too (docs/extending.md):

    @color(amount_range=Range(default=(0, 1), within=(0, 1), doc="share of the gray that is mixed in"))
    def fade(amount):
        "Blend each pixel with its gray."
        return ...  # (N, 3, 4)

The function's name is the op's name, its docstring the help text, and the decorator's keywords are its parameters. Of
each `Range` a value is drawn for every sample: `amount_range` passes `amount`, an (N,) array. All other parameters are
passed as they are configured, once for all samples.
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
    ColorOp,
    CropOp,
    Function,
    GeometryOp,
    LocalOp,
    Op,
    PolicyOp,
    RemapOp,
)
from augment.support.errors import UserError, suggest
from augment.support.user_code import refuse_second

Decorator = Callable[[Function], Function]

_OPS: dict[str, Op] = {}

# Read-only view of all ops by name, in the order of the op table: by kind, and by declaration.
OPS: Mapping[str, Op] = MappingProxyType(_OPS)


def _register(kind: type[Op], given: tuple[str, ...], params: dict[str, Param[Any]], **fields: Any) -> Decorator:
    """Return the decorator that declares an op. `given` lists the function's first arguments, before its values."""
    common = dict(kind.common)
    if fields.get("moves_inside"):
        del common["border"], common["fill"]
    if "draw" in common and not (fields.get("uniforms") or any(isinstance(param, Range) for param in params.values())):
        del common["draw"]

    def decorate(function: Function) -> Function:
        importlib.import_module("augment.recipe.ops")  # first, so that a name that they have is refused here
        name = function.__name__
        refuse_second("op", name, _OPS[name].function if name in _OPS else None, function)
        if not function.__doc__:
            raise ValueError(f"op '{name}' needs a docstring, which is its help text")
        if taken := params.keys() & {*common, "op", "p", "steps", "weight"}:
            raise ValueError(f"op '{name}': {', '.join(sorted(taken))} is there in every step of a {kind.kind} op")
        if plain := [f"{n}={p!r}" for n, p in params.items() if not isinstance(p, Param)]:
            raise ValueError(
                f"op '{name}': {plain[0]} declares no parameter. Allowed: Number(...), Range(...) and the like."
            )
        op = kind(name, {**common, **params}, function, cleandoc(function.__doc__), **fields)
        prepare = fields.get("prepare")
        called, first = (prepare, ()) if prepare else (function, given)
        size = ("size",) if prepare or kind in (GeometryOp, RemapOp) else ()
        values = (*size, *op.draws, *op.uniforms, *op.fixed(op.params))
        try:
            signature(called).bind(*first, **dict.fromkeys(values))
        except TypeError as error:
            raise ValueError(f"op '{name}' must take ({', '.join((*first, *values))}): {error}") from None
        _OPS[name] = op
        in_order = sorted(_OPS.items(), key=lambda item: KINDS.index(item[1].kind))
        _OPS.clear()
        _OPS.update(in_order)
        return function

    return decorate


def crop(*, random: bool = False, **params: Param[Any]) -> Decorator:
    """Declare an op that turns an image of any size into one of `size`: `function(source, size, **values)`.

    `source` is a `GraphImage` of `augment.pipeline.graph.decoding`, which decodes and resizes. `size` is (height,
    width). Values are the configured parameters. The function returns a DALI node, (height, width, 3) uint8. A recipe
    has at most one crop: its first step, without p.

    Args:
        random: whether it draws random numbers in DALI.
        params: the op's parameters by name.
    """
    return _register(CropOp, ("source", "size"), params, random=random)


def geometry(*, moves_inside: bool = False, uniforms: tuple[str, ...] = (), **params: Param[Any]) -> Decorator:
    """Declare an op that moves pixels by a matrix: `function(size, **values) -> (N, 3, 3)`.

    For N samples and images of `size`, (height, width), the matrix maps source to destination in pixels, with the
    origin in the middle of the image, x right and y down. Drawn values are (N,) arrays. Without any, return a single
    (3, 3) matrix.

    Args:
        moves_inside: whether the result shows nothing beyond the edges, as for a flip. Such an op has no border.
        uniforms: names of further drawn values, uniform in [0, 1).
        params: the op's parameters by name. p, border, fill and draw are added.
    """
    return _register(GeometryOp, (), params, moves_inside=moves_inside, uniforms=uniforms)


def remap(*, uniforms: tuple[str, ...] = (), prepare: Function | None = None, **params: Param[Any]) -> Decorator:
    """Declare an op that moves pixels by a function in PyTorch: `function(x, y, size, **values) -> x, y`.

    For places of the result it returns those of the image that they show, in pixels, with the origin in the middle of
    images of `size`, (height, width), x right and y down. x and y are (N, rows, columns) float32 tensors of any
    places, also between pixels and beyond the edges, and so is what it returns. Drawn values are (N, 1, 1) tensors,
    prepared ones as they were made. Geometry and remaps that follow each other are one resampling; masks, boxes and
    points follow.

    Args:
        uniforms: names of further drawn values, uniform in [0, 1).
        prepare: see `local`.
        params: the op's parameters by name. p, border, fill and draw are added.
    """
    return _register(RemapOp, ("x", "y"), params, uniforms=uniforms, prepare=prepare)


def color(*, uniforms: tuple[str, ...] = (), **params: Param[Any]) -> Decorator:
    """Declare an op that maps colors by a matrix on (R, G, B, 1) in 0..255: `function(**values) -> (N, 3, 4)`.

    Drawn values are (N,) arrays. Without any, return a single (3, 4) matrix. An (N, 3, 7) matrix acts on
    (R, G, B, mean R, mean G, mean B, 1), with the mean color of the image. (N, K, 3, 4) or (N, K, 3, 7) are K matrices
    in order of application. Without fusion, they are applied one by one.

    Args:
        uniforms: names of further drawn values, uniform in [0, 1).
        params: the op's parameters by name. p is added.
    """
    return _register(ColorOp, (), params, uniforms=uniforms)


def local(
    *,
    uniforms: tuple[str, ...] = (),
    prepare: Function | None = None,
    neutral: Mapping[str, Any] = MappingProxyType({}),
    random: bool = False,
    checkpoints: bool = True,
    moves: bool = True,
    **params: Param[Any],
) -> Decorator:
    """Declare an op made of DALI operators: `function(images, dali, **values) -> DALI node`.

    Images are (height, width, 3) uint8, before and after. `dali` is a `Dali` of
    `augment.pipeline.graph.operators`, with DALI's `fn` and `types`, and the `size`, (height, width). Drawn values are
    DALI nodes on the CPU, one value per sample.

    Args:
        uniforms: names of further drawn values, uniform in [0, 1).
        prepare: NumPy function `(size, **values) -> {name: (N, ...) array}` that computes what `function` takes in
            place of the drawn values; the size is (height, width).
        neutral: drawn or prepared values with which the op changes no bit, for an op that is cheap on the GPU.
        random: whether it draws random numbers in DALI: each operator that does takes `**dali.random`.
        checkpoints: whether DALI can checkpoint its operators. False makes resuming an epoch slower.
        moves: false promises that each pixel stays where it is, and with it what masks, boxes and points mark; an op
            that moves some is refused where there are any, unless it is declared by `remap`.
        params: the op's parameters by name. p is added.
    """
    return _register(
        LocalOp, ("images", "dali"), params, uniforms=uniforms, prepare=prepare, neutral=neutral, random=random,
        checkpoints=checkpoints, moves="other" if moves else None,
    )  # fmt: skip


def numpy_op(*, uniforms: tuple[str, ...] = (), moves: bool = True, **params: Param[Any]) -> Decorator:
    """Declare an op on one image in NumPy: `function(image, **values)`, (height, width, 3) uint8 -> the same.

    Drawn values are floats. The function runs on the CPU, image by image, holding the interpreter lock; if there is a
    GPU, images are copied to the CPU and back. `uniforms`, `moves` and `params` are as for `local`.
    """
    return _wrapped("numpy_function", "image", params, uniforms=uniforms, moves=moves, on_cpu=True)


def torch_op(*, uniforms: tuple[str, ...] = (), moves: bool = True, **params: Param[Any]) -> Decorator:
    """Declare an op on a batch in PyTorch: `function(images, **values)`, (N, height, width, 3) uint8 -> the same.

    Drawn values are (N,) float32 tensors on the images' device, where the function runs. Each batch costs a stack and
    Python code that holds the interpreter lock. `uniforms`, `moves` and `params` are as for `local`.
    """
    return _wrapped("torch_function", "images", params, uniforms=uniforms, moves=moves)


def _wrapped(runner: str, given: str, params: dict[str, Param[Any]], *, moves: bool, **fields: Any) -> Decorator:
    """Register a plain function as a local op, to be called by the method `runner` of `dali`."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def run(images: Any, dali: Any, **values: Any) -> Any:
            return getattr(dali, runner)(function, images, values)

        _register(LocalOp, (given,), params, moves="other" if moves else None, **fields)(run)
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

    Images and their partners are (N, 3, height, width) float tensors, normalized; the partner of a sample is the next
    one of its batch, and the first one that of the last. `share`, (N,), is each sample's own share of the mixed target;
    or, (N, 1 + K), its own share and those of the K samples that follow it. Drawn values are (N,) tensors. It may write
    to all of these.

    Args:
        uniforms: names of further drawn values, uniform in [0, 1).
        prepare: see `local`.
        neutral: drawn or prepared values with which the op changes no bit, and each share is 1.
        writes: false promises that the op writes to nothing that it is given, and saves a copy of it.
        parts: NumPy function `(size, **values) -> (N, 1 + K, 7)`, of the drawn or prepared values: what the image shows
            of each sample and of the K that follow it. These are a rectangle (left, top, right and bottom edge in
            pixels; none if it has no area), a scale s, and shifts x and y: what is at (u, v) from the top left corner
            of the sample is at (s u + x, s v + y). A sample's own rectangle shows it where the others do not. Masks and
            boxes follow; without it, the op fails on data with boxes. It needs `neutral`.
        blends: whether several samples are seen in one place, which masks cannot follow.
        params: the op's parameters by name. p is added.
    """
    if parts and not neutral:
        raise ValueError("parts: needs neutral values, for samples that skip the op.")
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
    """Declare an op that chooses among steps nested in it: `function(weights, uniform, **values) -> (N, slots)`.

    The result holds the index of the step that runs in each slot, -1 for none. `weights` are (steps,), `uniform` are
    (N, steps) in [0, 1), drawn values are (N,) arrays.

    Args:
        slots: `(weights, **params)` -> for each slot {index of a step: share of samples}.
        weighted: whether nested steps may have weights.
        numbers: number of `uniform` columns that it uses. Default: all.
        params: the op's parameters by name. p is added.
    """
    return _register(PolicyOp, ("weights", "uniform"), params, slots=slots, weighted=weighted, numbers=numbers)


def find_op(name: str, key: str, other: str | None = None) -> Op:
    """Return an op by name."""
    if name not in _OPS:
        raise UserError(f"{key}: unknown op '{name}'.{suggest(name, _OPS, {name: other})}")
    return _OPS[name]
