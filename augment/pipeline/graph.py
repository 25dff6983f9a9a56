"""The parts of a DALI graph: decoding, cropping, and the operators of each kind of stage."""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import nvidia.dali.fn
import nvidia.dali.math
import nvidia.dali.types
from nvidia.dali.data_node import DataNode

from augment.params import Interval
from augment.recipe.plan import Plan
from augment.recipe.stage import Stage
from augment.support.errors import UserError

# DALI's stubs know no keyword dictionaries, and nothing of what its own `if` is made of.
fn: Any = nvidia.dali.fn
math: Any = nvidia.dali.math
types: Any = nvidia.dali.types

Node = Any  # a DALI DataNode: the package has no types
RANDOM_STATE = "random state"  # name of a fed value; no parameter of an op has a blank in it
Device = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class Placement:
    """Where decoding runs and what it may take.

    Attributes:
        device: where the image is after decoding; all that follows runs there.
        decode: "mixed" decodes JPEGs partly on the GPU, "cpu" on the CPU.
        cache: MiB of GPU memory for decoded images; 0 for none.
        prefetch: batches to prefetch.
        hw_decoder_load: share of the JPEGs for the GPU's hardware decoder, which rounds differently.
        auto: whether `decode` was left to a trial.
        load_auto: whether `hw_decoder_load` was left to `place`.
        reason: what was chosen and why, if anything was; for people.
    """

    device: Device = "cpu"
    decode: Literal["cpu", "mixed"] = "mixed"
    cache: int = 0
    prefetch: int = 2
    hw_decoder_load: float = 0.65
    auto: bool = False
    load_auto: bool = False
    reason: str = field(default="", compare=False)

    @property
    def caches(self) -> bool:
        """Whether decoded images are kept in GPU memory."""
        return self.device == "gpu" and self.decode == "mixed" and self.cache > 0

    @property
    def decoding(self) -> list[str | float | bool] | None:
        """What determines the pixels of a decoded image; what was chosen for the machine does not count."""
        if self.device == "cpu":
            return None
        chosen = ["auto"] if self.auto else [self.decode, self.cache > 0]
        return [*chosen, "auto" if self.load_auto else self.hw_decoder_load]


class Dali:
    """What a local op needs of DALI, so that it need not import it.

    Attributes:
        fn: DALI's operators.
        types: DALI's types.
        device: where the images are, cpu or gpu.
        size: side of the images in pixels.
    """

    fn = fn
    types = types

    def __init__(self, device: Device, size: int, seed: int | None, key: str) -> None:
        self.device = device
        self.size = size
        self._seed, self._key = seed, key
        self._state: Node | None = None
        self._taken = 0

    @property
    def random(self) -> dict[str, Any]:
        """What an operator that draws takes: `dali.fn.noise.gaussian(images, stddev=std, **dali.random)`.

        It is something else each time, so that operators draw independently.
        """
        number, self._taken = self._taken, self._taken + 1
        if self._state is None:
            return {"seed": self.seed + number}
        return {"_random_state": self._state ^ types.Constant(number, dtype=types.UINT32) if number else self._state}

    @property
    def seed(self) -> int:
        """The seed of an operator that draws; `random` also works in `augment.Transform`.

        Raises:
            UserError: the op does not declare that it draws; or in a `Transform`, whose calls have random states.
        """
        if self._seed is None:
            allowed = "**dali.random, in an op that declares random=True"
            raise UserError(f"{self._key}: its random draws in DALI cannot be repeated. Allowed: {allowed}.")
        return self._seed

    def with_state(self, state: Node) -> "Dali":
        """Return the same with a random state that is fed for each batch, (words,) uint32, in place of the seed."""
        fed = copy(self)
        fed._state = state
        return fed

    def here(self, value: Node) -> Node:
        """Bring a value to the device where the images are, as operators ask for that take it as an input."""
        return value.gpu() if self.device == "gpu" else value

    def numpy_function(self, function: Callable[..., Any], images: Node, values: Mapping[str, Any]) -> Node:
        """Apply `function(image, **values)` to each image, (size, size, 3) uint8 to the same, on the CPU."""
        drawn, fixed = _split(values)

        def call(image: Any, *given: Any) -> Any:
            own = np.array(image)  # other views may read it, too
            result = function(own, **fixed, **{n: v.item() for n, v in zip(drawn, given, strict=True)})
            return _same(None if result is None else np.asarray(result), image, function)

        on_cpu = images.cpu() if self.device == "gpu" else images
        changed = fn.python_function(on_cpu, *drawn.values(), function=call, num_outputs=1, output_layouts=["HWC"])
        return self.here(changed)

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


class GraphImage:
    """What a crop op asks of the graph: the image, decoded and resized in one way or another.

    Args:
        stored: the image, encoded or not.
        placement: where it is decoded.
        seed: the seed of DALI's random draws.
        raw: whether it is stored decoded.
        peek: read sides from the encoded image, so that no executor has to copy them from the GPU.
    """

    def __init__(self, stored: Node, placement: Placement, seed: int, *, raw: bool = False, peek: bool = False) -> None:
        self._stored = stored
        self._raw = raw
        self._peek = peek
        self._placement = placement
        self._mixed = placement.device == "gpu" and placement.decode == "mixed" and not raw
        self._decoder: dict[str, Any] = {"device": "mixed" if self._mixed else "cpu", "output_type": types.RGB}
        if self._mixed:
            self._decoder["hw_decoder_load"] = placement.hw_decoder_load
        self._cached = placement.caches and not raw
        self._seed = seed

    def decode(self) -> Node:
        """Return the whole image, (height, width, 3) uint8 RGB, upright as its EXIF block says."""
        if self._raw:
            return self._here(self._stored)
        cache = {"cache_size": self._placement.cache, "cache_type": "threshold"} if self._cached else {}
        return self._here(fn.decoders.image(self._stored, **self._decoder, **cache))

    def resize_random_window(self, size: int, area_range: Interval, aspect_range: Interval) -> Node:
        """Return a random window as (size, size, 3) uint8; DALI draws it, by the crop's own seed."""
        window = {"random_area": list(area_range), "random_aspect_ratio": list(aspect_range), "num_attempts": 10}
        if self._cached or self._raw:
            # Only whole images are kept or stored, and another operator draws the windows.
            return fn.random_resized_crop(
                self.decode(),
                size=[size, size],
                interp_type=types.INTERP_LINEAR,
                antialias=True,
                seed=self._seed,
                **window,
            )
        image = fn.decoders.image_random_crop(self._stored, seed=self._seed, **window, **self._decoder)
        return self.resize(self._here(image), size)

    def centered_square(self, image: Node, scale: float) -> tuple[Node, Node]:
        """Return start and end, (y, x) in pixels, of a centered square of `scale` times the short side."""
        sides = self._sides(image)
        side = scale * fn.reductions.min(sides)
        return (sides - side) / 2, (sides + side) / 2

    def resize(self, image: Node, size: int, window: tuple[Node, Node] | None = None) -> Node:
        """Return the window of an image, by default all of it, as (size, size, 3) uint8; antialiased."""
        roi = {} if window is None else {"roi_start": window[0], "roi_end": window[1]}
        return fn.resize(image, size=[size, size], interp_type=types.INTERP_LINEAR, antialias=True, **roi)

    def random_square(self, size: int, scale: float, padding: float, border: str, fill: int) -> Node:
        """Return a square of fixed scale at a random position as (size, size, 3) uint8; by default DALI draws it.

        Args:
            size: side of the result in pixels.
            scale: side of the square over the short side.
            padding: how far it may reach beyond the edge, over its side.
            border: what lies there.
            fill: gray level there with border constant.
        """
        image = fn.resize(
            self.decode(), resize_shorter=round(size / scale), interp_type=types.INTERP_LINEAR, antialias=True
        )
        beyond = round(padding * size)
        sides = fn.cast(image.shape(), dtype=types.FLOAT)[:2]
        positions = sides - (size - 2 * beyond) + 1
        # A cast rounds, and would take the positions at both ends half as often as the others.
        start = fn.cast(math.floor(self.random_position() * positions), dtype=types.INT32) - beyond
        return self._cut(image, start, size, border, fill)

    def random_position(self) -> Node:
        """Return two numbers in [0, 1); DALI draws them, by the crop's seed."""
        return fn.random.uniform(range=[0.0, 1.0], shape=[2], seed=self._seed)

    def letterbox(self, size: int, border: str, fill: int) -> Node:
        """Return the whole image, its long side resized to fit, in the middle of (size, size, 3) uint8."""
        whole = self.decode()
        image = fn.resize(whole, resize_longer=size, interp_type=types.INTERP_LINEAR, antialias=True)
        if self._peek:
            sides = self._sides(whole)
            resized = math.floor(sides * (size / fn.reductions.max(sides)) + 0.5)
            sides = fn.cast(math.max(resized, 1.0), dtype=types.INT32)
        else:
            sides = fn.cast(image.shape(), dtype=types.INT32)[:2]
        return self._cut(image, -((size - sides) // 2), size, border, fill)

    def _sides(self, image: Node) -> Node:
        """Return the height and width of the whole image as floats."""
        shape = fn.peek_image_shape(self._stored) if self._peek else image.shape()
        return fn.cast(shape, dtype=types.FLOAT)[:2]

    def _cut(self, image: Node, start: Node, size: int, border: str, fill: int) -> Node:
        policy = {"constant": "pad", "replicate": "edge"}.get(border, border)
        return fn.slice(
            image, start=start, shape=[size, size], axes=[0, 1], out_of_bounds_policy=policy, fill_values=float(fill)
        )

    def _here(self, image: Node) -> Node:
        return image.gpu() if self._placement.device == "gpu" and not self._mixed else image


def apply(images: Node, stage: Stage, fed: Mapping[str, Node], dali: Dali) -> Node:
    """Apply a stage to (size, size, 3) uint8 images.

    Args:
        images: the images.
        stage: what is done to them.
        fed: its values of each sample, on the CPU; with `applied`, only those samples are touched.
        dali: where.
    """
    run = {"geometry": _warp, "color": _color, "local": _local}[stage.kind]
    values = {name: value for name, value in fed.items() if name != "applied"}
    if "applied" not in fed:
        return run(images, stage, values, dali)
    # The operators that DALI's own `if` is made of: they work outside of a traced function too.
    applied = fed["applied"]
    taken, passed = fn._conditional.split(images, predicate=applied)
    some = {name: fn._conditional.split(value, predicate=applied)[0] for name, value in values.items()}
    return fn._conditional.merge(run(taken, stage, some, dali), passed, predicate=applied)


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
    mean = fn.reductions.mean(images, axes=[0, 1], keep_dims=True)
    offset = fn.coord_transform(mean, MT=mean_matrix)
    return fn.cast(fn.coord_transform(images, M=matrix, dtype=types.FLOAT) + offset, dtype=dtype)


def _local(images: Node, stage: Stage, values: Mapping[str, Node], dali: Dali) -> Node:
    step = stage.steps[0]
    drawn = {name: value for name, value in values.items() if name != RANDOM_STATE}
    if RANDOM_STATE in values:
        dali = dali.with_state(values[RANDOM_STATE])
    return step.op.function(images, dali, **step.op.fixed(step.params), **drawn)


def normalize(images: Node, plan: Plan, *, half: bool, layout: str = "HWC") -> Node:
    """Turn (size, size, 3) uint8 into float of a layout, by mean and standard deviation."""
    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT16 if half else types.FLOAT,
        output_layout=layout,
        mean=[255 * m for m in plan.mean],
        std=[255 * s for s in plan.std],
    )
