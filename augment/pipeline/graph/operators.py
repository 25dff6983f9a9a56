"""The operators of a DALI graph that run the stages of a plan, and what local ops need of DALI."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from nvidia.dali.data_node import DataNode

from augment.params import Size
from augment.pipeline.geometry.remap import resample
from augment.pipeline.graph.decoding import Device, Form, GraphImage, Placement
from augment.pipeline.kernels.instructions import Program
from augment.recipe.plan import Plan
from augment.recipe.stage import Stage
from augment.support.dali_versions import Node, drawing_from, fn, merge, split, types
from augment.support.errors import UserError

RANDOM_STATE = "random state"  # name of a fed value; no parameter of an op has a blank in it


class Dali:
    """What a local op needs of DALI, so that it need not import it."""

    fn = fn
    types = types

    def __init__(self, device: Device, size: Size, seed: int | None, key: str) -> None:
        self.device = device
        self.size = size
        self._seed, self._key = seed, key
        self.state: Node | None = None  # fed for each batch, (words,) uint32, in place of the seed
        self._taken = 0

    @property
    def random(self) -> dict[str, Any]:
        """What an operator that draws takes: `dali.fn.noise.gaussian(images, stddev=std, **dali.random)`.

        It is something else each time, so that operators draw independently.

        Raises:
            UserError: the op does not declare that it draws.
        """
        number, self._taken = self._taken, self._taken + 1
        if self.state is not None:
            return drawing_from(self.state ^ types.Constant(number, dtype=types.UINT32) if number else self.state)
        if self._seed is None:
            allowed = "**dali.random, in an op that declares random=True"
            raise UserError(f"{self._key}: its random draws in DALI cannot be repeated. Allowed: {allowed}.")
        return {"seed": self._seed + number}

    def here(self, value: Node) -> Node:
        """Bring a value to the device where the images are, as operators ask for that take it as an input."""
        return value.gpu() if self.device == "gpu" else value

    def numpy_function(self, function: Callable[..., Any], images: Node, values: Mapping[str, Any]) -> Node:
        """Apply `function(image, **values)` to each image, (height, width, 3) uint8 to the same, on the CPU."""
        drawn, fixed = _split(values)

        def call(image: Any, *given: Any) -> Any:
            own = np.array(image)  # other views may read it, too
            result = function(own, **fixed, **{n: v.item() for n, v in zip(drawn, given, strict=True)})
            return _same(None if result is None else np.asarray(result), image, function)

        on_cpu = images.cpu() if self.device == "gpu" else images
        return self.here(
            fn.python_function(on_cpu, *drawn.values(), function=call, num_outputs=1, output_layouts=["HWC"])
        )

    def torch_function(self, function: Callable[..., Any], images: Node, values: Mapping[str, Any]) -> Node:
        """Apply `function(images, **values)` to each batch, (N, size, size, 3) uint8 to the same, where it is."""
        import torch

        drawn, fixed = _split(values)

        def call(batch: list[Any], *given: list[Any]) -> list[Any]:
            columns = {n: torch.stack([torch.as_tensor(v) for v in c]) for n, c in zip(drawn, given, strict=True)}
            stacked = torch.stack([torch.as_tensor(image) for image in batch])
            result = _same(function(stacked, **fixed, **columns), stacked, function)
            return list(result if self.device == "gpu" else result.numpy())

        options: Any = {"function": call, "num_outputs": 1, "output_layouts": ["HWC"], "batch_processing": True}
        if self.device == "cpu":
            return fn.python_function(images, *drawn.values(), **options)
        from nvidia.dali.plugin.pytorch import fn as torch_fn

        return torch_fn.torch_python_function(images, *map(self.here, drawn.values()), device="gpu", **options)


def _split(values: Mapping[str, Any]) -> tuple[dict[str, Node], dict[str, Any]]:
    """Separate drawn values, which are nodes, from fixed ones."""
    drawn = {name: value for name, value in values.items() if isinstance(value, DataNode)}
    return drawn, {name: value for name, value in values.items() if name not in drawn}


def _same(result: Any, given: Any, function: Callable[..., Any]) -> Any:
    """Return the result of a user's function if it is of the shape and type of what it was given."""
    if result is None:
        raise TypeError(f"op '{function.__name__}' returned nothing. Allowed: the changed images")
    made, allowed = (f"{tuple(np.shape(some))} {getattr(some, 'dtype', type(some))}" for some in (result, given))
    if made != allowed:
        raise TypeError(f"op '{function.__name__}' made {made} of {allowed}; an op keeps shape and type")
    return result


class GraphSource(ABC):
    """What is drawn for the views of a plan, as nodes of a graph; a kernel may run a program after it."""

    def __init__(self, placement: Placement, program: Program | None) -> None:
        self.placement, self.program = placement, program

    @abstractmethod
    def image(self, view: int, stored: Node, *, raw: bool) -> GraphImage:
        """Return the image that the crop of a view is given; `raw`: it is stored decoded."""

    @abstractmethod
    def values(self, view: int, stages: Sequence[Stage]) -> list[dict[str, Node]]:
        """Return for each stage of a view the nodes of its values, see `apply`."""

    @abstractmethod
    def dali(self, view: int, stage: Stage) -> Dali:
        """Return what a stage of a view needs of DALI."""


def add_views(
    plan: Plan, stored: Node, source: GraphSource, form: Form, *, raw: bool
) -> tuple[list[Node], list[Node], list[int]]:
    """Add the views of a plan to a graph, of images that are stored encoded or, if `raw`, decoded.

    Returns:
        The images of each view, (height, width, 3), uint8 if a kernel does the rest; and with frames the windows of
        crops, see `GraphImage`, and the position of each view's window among them.
    """
    # Up to two windows are cheaper to decode apart than to cut out of one decoded image.
    if plan.views.named and not raw and sum(not own.in_common(plan) for own in plan.others) > 1:
        stored, raw = GraphImage(stored, source.placement, seed=0).decode(), True
    views: list[Node] = []
    windows: list[Node] = []
    shown: list[int] = []
    first: list[Node] = []  # the results of the first view: its crop's, and those of each stage after it
    for number, own in enumerate(plan.per_view):
        made = first[: own.in_common(plan)] if number else []
        shown.append(0 if made else len(windows))
        if not made:
            image = source.image(number, stored, raw=raw)
            made.append(own.crop.op.function(image, own.size, **own.crop.op.values(own.crop.params, {})))
            if form.frames and image.window is None:
                raise UserError(
                    f"{own.path}.{own.crop.key}: the op '{own.crop.op.name}' does not say which window of the image it "
                    "shows. Allowed: crops that resize what source.decode() returns by source.resize."
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
    """Apply a stage to (height, width, 3) uint8 images.

    It is fed its values of each sample, on the CPU; with `applied`, only those samples are touched.
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
    mode, fill = stage.border
    return fn.experimental.warp_perspective(
        images,
        dali.here(values["matrix"]),
        border_mode=mode,
        fill_value=[float(fill)] * 3,
        pixel_origin="center",
        interp_type=types.INTERP_LINEAR,
    )


def _remap(images: Node, stage: Stage, values: Mapping[str, Node], dali: Dali) -> Node:
    return dali.torch_function(partial(resample, stage), images, values)


def _color(images: Node, stage: Stage, values: Mapping[str, Node], dali: Dali) -> Node:
    if not stage.chained:
        return _linear(images, values["matrix"], values.get("mean_matrix"), types.UINT8)
    images = fn.cast(images, dtype=types.UINT16)  # an operator cannot change from one integer type to another
    for link in range(sum(name.startswith("matrix ") for name in values)):
        images = _linear(images, values[f"matrix {link}"], values.get(f"mean_matrix {link}"), types.UINT16)
    return fn.cast(images, dtype=types.UINT8)


def _linear(images: Node, matrix: Node, mean_matrix: Node | None, dtype: Any) -> Node:
    """Apply a matrix to each pixel, and another one to the mean of the image; clip the sum to an integer type."""
    if mean_matrix is None:
        return fn.coord_transform(images, MT=matrix, dtype=dtype)
    offset = fn.coord_transform(fn.reductions.mean(images, axes=[0, 1], keep_dims=True), MT=mean_matrix)
    return fn.cast(fn.coord_transform(images, M=matrix, dtype=types.FLOAT) + offset, dtype=dtype)


def _local(images: Node, stage: Stage, values: Mapping[str, Node], dali: Dali) -> Node:
    step, drawn = stage.steps[0], dict(values)
    dali.state = drawn.pop(RANDOM_STATE, None)
    return step.op.function(images, dali, **step.op.fixed(step.params), **drawn)


def normalize(images: Node, plan: Plan, *, half: bool, layout: str = "HWC") -> Node:
    """Turn (height, width, 3) uint8 into float of a layout, by mean and standard deviation."""
    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT16 if half else types.FLOAT,
        output_layout=layout,
        mean=[255 * m for m in plan.mean],
        std=[255 * s for s in plan.std],
    )
