"""The DALI operators that run the stages of a plan, and the DALI interface of local ops."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from nvidia.dali.data_node import DataNode

from augment.params import Size
from augment.params.pixel_format import RGB, PixelFormat
from augment.pipeline.geometry.remap import resample
from augment.pipeline.graph.colors import change_colors
from augment.pipeline.graph.decoding import Device, GraphImage, OutputFormat, Placement
from augment.pipeline.kernels.instructions import Program
from augment.recipe.plan import Plan
from augment.recipe.stage import Stage
from augment.support.dali_versions import Node, fn, math, merge, random_state_argument, split, types
from augment.support.errors import UserError

_MAX_CHANNELS = 4  # the largest number of channels that some of DALI's GPU operators support

# The name under which the state of a local op's random generators is fed. The space in the name keeps it apart from the
# parameters of ops.
RANDOM_STATE = "random state"


class Dali:
    """DALI's functions and types, passed to local ops so that their modules need not import DALI."""

    fn = fn
    math = math
    types = types

    def __init__(self, device: Device, size: Size, seed: int | None, key: str, pixels: PixelFormat = RGB) -> None:
        self.device = device
        self.size = size
        self.pixels = pixels
        self._seed, self._key = seed, key
        self.state: Node | None = None  # the state of random generators, (words,) uint32, which replaces the seed
        self._taken = 0

    @property
    def random(self) -> dict[str, Any]:
        """Arguments of a random operator, as in `dali.fn.noise.gaussian(images, stddev=std, **dali.random)`.

        Each access returns different arguments, so that operators draw independently.

        Raises:
            UserError: the op does not declare random=True.
        """
        number, self._taken = self._taken, self._taken + 1
        if self.state is not None:
            return random_state_argument(
                self.state ^ types.Constant(number, dtype=types.UINT32) if number else self.state
            )
        if self._seed is None:
            raise UserError(
                f"{self._key}: its random draws in DALI cannot be repeated. Declare the op with random=True and pass "
                "**dali.random to the operator."
            )
        return {"seed": self._seed + number}

    def here(self, value: Node) -> Node:
        """Move a value to the device of the images, where operators expect their inputs."""
        return value.gpu() if self.device == "gpu" else value

    def in_channel_groups(self, operator: Callable[[Node, int], Node], images: Node) -> Node:
        """Apply `operator(images, channels)` to at most four channels at a time."""
        bounds = channel_bounds(self.pixels.channels)
        if len(bounds) == 2:
            return operator(images, self.pixels.channels)
        groups = [operator(images[:, :, first:end], end - first) for first, end in pairwise(bounds)]
        return fn.cat(*groups, axis=2)

    def numpy_function(self, function: Callable[..., Any], images: Node, values: Mapping[str, Any]) -> Node:
        """Apply `function(image, **values)` to each image on the CPU. The function must keep shape and data type."""
        drawn, fixed = _split(values)

        def call(image: Any, *given: Any) -> Any:
            own = np.array(image)  # a copy, because other views may read the image
            # With per_channel, a value is an array of one number for each channel.
            values = {n: v.item() if v.ndim == 0 else v for n, v in zip(drawn, map(np.asarray, given), strict=True)}
            result = function(own, **fixed, **values)
            return _same(None if result is None else np.asarray(result), image, function)

        on_cpu = images.cpu() if self.device == "gpu" else images
        return self.here(
            fn.python_function(on_cpu, *drawn.values(), function=call, num_outputs=1, output_layouts=["HWC"])
        )

    def torch_function(self, function: Callable[..., Any], images: Node, values: Mapping[str, Any]) -> Node:
        """Apply `function(images, **values)` to batches on their device. The function must keep shape and data type."""
        import torch

        drawn, fixed = _split(values)

        def stack(samples: list[Any]) -> torch.Tensor:
            return torch.stack([torch.as_tensor(sample) for sample in samples])

        def call(batch: list[Any], *given: list[Any]) -> list[Any]:
            columns = {name: stack(column) for name, column in zip(drawn, given, strict=True)}
            stacked = stack(batch)
            result = _same(function(stacked, **fixed, **columns), stacked, function)
            return list(result if self.device == "gpu" else result.numpy())

        options: Any = {"function": call, "num_outputs": 1, "output_layouts": ["HWC"], "batch_processing": True}
        if self.device == "cpu":
            return fn.python_function(images, *drawn.values(), **options)
        from nvidia.dali.plugin.pytorch import fn as torch_fn

        return torch_fn.torch_python_function(images, *map(self.here, drawn.values()), device="gpu", **options)


def _split(values: Mapping[str, Any]) -> tuple[dict[str, Node], dict[str, Any]]:
    """Separate drawn values, which are nodes, from fixed values."""
    drawn = {name: value for name, value in values.items() if isinstance(value, DataNode)}
    return drawn, {name: value for name, value in values.items() if name not in drawn}


def _same(result: Any, given: Any, function: Callable[..., Any]) -> Any:
    """Return the result of a user's function after checking that it has the shape and type of the input."""
    code = getattr(function, "__code__", None)  # functions in C have none
    where = f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
    if result is None:
        raise TypeError(f"op '{function.__name__}' returned nothing. Return the changed images{where}.")
    made, allowed = (f"{tuple(np.shape(some))} {getattr(some, 'dtype', type(some))}" for some in (result, given))
    if made != allowed:
        raise TypeError(f"op '{function.__name__}' returned {made} for {allowed}. Keep the shape and the type{where}.")
    return result


class GraphSource(ABC):
    """Supplies a graph with random values for the views of a plan. A kernel runs `program`, if any, after the graph."""

    def __init__(self, placement: Placement, program: Program | None) -> None:
        self.placement, self.program = placement, program

    @abstractmethod
    def image(self, view: int, stored: Node, *, decoded: bool) -> GraphImage:
        """Return the input of a view's crop. `decoded` means that `stored` is already decoded."""

    @abstractmethod
    def values(self, view: int, stages: Sequence[Stage]) -> list[dict[str, Node]]:
        """Return the values of each stage of a view as nodes by name, see `apply`."""

    @abstractmethod
    def dali(self, view: int, stage: Stage) -> Dali:
        """Return the `dali` argument of a stage's op."""


def add_views(
    plan: Plan, stored: Node, source: GraphSource, form: OutputFormat, *, decoded: bool
) -> tuple[list[Node], list[Node], list[int]]:
    """Add the views of a plan to a graph. `decoded` means that images are stored decoded.

    Returns:
        The images of each view, (height, width, channels). They are uint8 if a kernel runs after the graph.
        The window of each different crop, see `GraphImage`, or None without frames.
        The position of each view's window among these windows.
    """
    # Decoding up to two windows is cheaper than decoding the whole image.
    if plan.views.named and not decoded and sum(not own.shared_results(plan) for own in plan.others) > 1:
        stored, decoded = GraphImage(stored, source.placement, seed=0).decode(), True
    views: list[Node] = []
    windows: list[Node] = []
    shown: list[int] = []
    first: list[Node] = []  # the results of the first view's crop and stages
    for number, own in enumerate(plan.per_view):
        made = first[: own.shared_results(plan)] if number else []
        shown.append(0 if made else len(windows))
        if not made:
            image = source.image(number, stored, decoded=decoded)
            made.append(own.crop.op.function(image, own.size, **own.crop.op.values(own.crop.params, {})))
            if form.frames and image.window is None:
                raise UserError(
                    f"{own.path}.{own.crop.key}: the window that the op '{own.crop.op.name}' shows is unknown. "
                    "Resize the result of source.decode() with source.resize()."
                )
            windows.append(image.window)
        program = source.program
        stages = own.image_stages[len(made) - 1 :] if program is None else program.before
        for stage, values in zip(stages, source.values(number, stages), strict=True):
            made.append(apply(made[-1], stage, values, source.dali(number, stage)))
        first = first or made
        views.append(made[-1] if form.raw or program is not None else normalize(made[-1], own, half=form.half))
    return views, windows, shown


def apply(images: Node, stage: Stage, fed: Mapping[str, Node], dali: Dali) -> Node:
    """Apply a stage to (height, width, channels) images, which are uint8 or float32 levels.

    `fed` holds the stage's values for each sample, on the CPU. If `fed` has `applied`, the stage changes only samples
    for which `applied` is true. Values whose names start with "warp " belong to a warp that runs before the stage.
    """
    run = {"geometry": _warp, "remap": _remap, "color": _color, "local": _local}[stage.kind]
    warp = {name.removeprefix("warp "): value for name, value in fed.items() if name.startswith("warp ")}
    if warp:
        images = apply(images, replace(stage, kind="geometry"), warp, dali)
    values = {name: value for name, value in fed.items() if name != "applied" and not name.startswith("warp ")}
    if "applied" not in fed:
        return run(images, stage, values, dali)
    taken, passed = split(images, fed["applied"])
    some = {name: split(value, fed["applied"])[0] for name, value in values.items()}
    return merge(run(taken, stage, some, dali), passed, fed["applied"])


def _warp(images: Node, stage: Stage, values: Mapping[str, Node], dali: Dali) -> Node:
    (mode, fill), matrix = stage.border, dali.here(values["matrix"])

    def warp(some: Node, count: int) -> Node:
        return fn.experimental.warp_perspective(
            some,
            matrix,
            border_mode=mode,
            fill_value=[float(fill)] * count,
            pixel_origin="center",
            interp_type=types.INTERP_LINEAR,
        )

    return dali.in_channel_groups(warp, images)


def channel_bounds(channels: int) -> list[int]:
    """Return the bounds of groups of channels. On a GPU, DALI's warp takes 1, 3 or 4 channels, not 2."""
    bounds = [*range(0, channels, _MAX_CHANNELS), channels]
    if channels % _MAX_CHANNELS == 2:
        bounds.insert(-1, channels - 1)
    return bounds


def _remap(images: Node, stage: Stage, values: Mapping[str, Node], dali: Dali) -> Node:
    return dali.torch_function(partial(resample, stage), images, values)


def _color(images: Node, stage: Stage, values: Mapping[str, Node], dali: Dali) -> Node:
    if not dali.pixels.is_rgb:  # DALI's operator takes at most six channels
        return dali.torch_function(change_colors, images, values)
    if not stage.chained:
        return _linear(images, values["matrix"], values.get("mean_matrix"), types.UINT8)
    images = fn.cast(images, dtype=types.UINT16)  # coord_transform cannot convert one integer type to another
    for link in range(sum(name.startswith("matrix ") for name in values)):
        images = _linear(images, values[f"matrix {link}"], values.get(f"mean_matrix {link}"), types.UINT16)
    return fn.cast(images, dtype=types.UINT8)


def _linear(images: Node, matrix: Node, mean_matrix: Node | None, dtype: Any) -> Node:
    """Apply a matrix to each pixel. Add the product of `mean_matrix` and the mean color. Clip to an integer type."""
    if mean_matrix is None:
        return fn.coord_transform(images, MT=matrix, dtype=dtype)
    offset = fn.coord_transform(fn.reductions.mean(images, axes=[0, 1], keep_dims=True), MT=mean_matrix)
    return fn.cast(fn.coord_transform(images, M=matrix, dtype=types.FLOAT) + offset, dtype=dtype)


def _local(images: Node, stage: Stage, values: Mapping[str, Node], dali: Dali) -> Node:
    step, drawn = stage.steps[0], dict(values)
    dali.state = drawn.pop(RANDOM_STATE, None)
    changed = step.op.function(images, dali, **step.op.fixed(step.params), **drawn)
    return changed if dali.pixels.is_bytes else math.clamp(changed, 0.0, 255.0)


def normalize(images: Node, plan: Plan, *, half: bool, layout: str = "HWC") -> Node:
    """Normalize (height, width, channels) levels with the plan's mean and standard deviation. Return floats."""
    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT16 if half else types.FLOAT,
        output_layout=layout,
        mean=[255 * m for m in plan.mean],
        std=[255 * s for s in plan.std],
    )
