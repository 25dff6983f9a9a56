"""Decoding, cropping and resizing in a DALI graph."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from augment.params import Interval, Size
from augment.params.pixel_format import RGB, PixelFormat
from augment.support.dali_versions import Node, fn, math, types

Device = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class Placement:
    """The device of a pipeline, and the settings of its decoder."""

    device: Device = "cpu"  # the device of decoded images and of all later operators
    decode: str = "mixed"  # "mixed" decodes JPEGs partly on the GPU, "cpu" on the CPU
    cache: int = 0  # MiB of GPU memory for decoded images. 0 disables the cache
    prefetch: int = 2  # number of batches
    hw_decoder_load: float = 0.65  # share of JPEGs for the GPU's hardware decoder, which rounds in its own way
    load_auto: bool = False  # whether `hw_decoder_load` was chosen automatically. A resumed run then keeps the choice
    reason: str = field(default="", compare=False)  # an explanation of automatic choices, for users
    threads: int = field(default=2, compare=False)  # number of CPU threads
    gpu: int = field(default=0, compare=False)  # number of the GPU

    def on(self, device: torch.device, threads: int) -> "Placement":
        """Return a copy of these settings for a device and a number of CPU threads."""
        is_gpu = device.type == "cuda"
        # "cuda" without a number is PyTorch's current GPU, which can differ in the thread that builds the pipeline.
        gpu = torch.cuda.current_device() if is_gpu and device.index is None else device.index or 0
        return replace(self, device="gpu" if is_gpu else "cpu", threads=threads, gpu=gpu)

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda", self.gpu) if self.device == "gpu" else torch.device("cpu")

    @property
    def device_id(self) -> int | None:
        return self.gpu if self.device == "gpu" else None

    @property
    def caches(self) -> bool:
        """Whether DALI keeps decoded images in GPU memory."""
        return self.device == "gpu" and self.decode == "mixed" and self.cache > 0

    @property
    def decoding(self) -> list[str | float | bool] | None:
        """The settings that determine the pixels of a decoded image. An automatic choice is "auto". None on the CPU."""
        if self.device == "cpu":
            return None
        return [self.decode, self.cache > 0, "auto" if self.load_auto else self.hw_decoder_load]


@dataclass(frozen=True)
class OutputFormat:
    """The data type of output images, and additional outputs."""

    half: bool = False  # float16 instead of float32
    raw: bool = False  # uint8 images without normalization, for figures and tests
    frames: bool = False  # also output the window of the image that each sample shows


class GraphImage:
    """An image in a DALI graph, with the operators that a crop op uses.

    Args:
        stored: the image, encoded or decoded.
        placement: where the image is decoded.
        seed: the seed of DALI's random draws.
        decoded: whether `stored` is already decoded.
        peek: whether to read the height and width from the encoded header, instead of copying them from the GPU.
        frames: whether to set `window`.
        pixels: the pixel format. Resizing converts stored pixels to levels from 0 to 255.

    Attributes:
        window: the height and width of the upright image, then the top, left, bottom and right edges of the crop window
            in pixels, (6,) int32 or float32. None if the op resized an image other than the result of `decode`.
    """

    def __init__(
        self,
        stored: Node,
        placement: Placement,
        seed: int,
        *,
        decoded: bool = False,
        peek: bool = False,
        frames: bool = False,
        pixels: PixelFormat = RGB,
    ) -> None:
        self._pixels = pixels
        self.window: Node | None = None
        self._stored = stored
        self._is_decoded = decoded
        self._peek = peek
        self._frames = frames
        self._placement = placement
        self._mixed = placement.device == "gpu" and placement.decode == "mixed" and not decoded
        self._decoder: dict[str, Any] = {"device": "mixed" if self._mixed else "cpu", "output_type": types.RGB}
        if self._mixed:
            self._decoder["hw_decoder_load"] = placement.hw_decoder_load
        self._cached = placement.caches and not decoded
        self._seed = seed
        self._whole: Node | None = None

    def decode(self) -> Node:
        """Return the whole upright image in its own size and pixel format: (height, width, 3) uint8 for 8-bit RGB."""
        cache = {"cache_size": self._placement.cache, "cache_type": "threshold"} if self._cached else {}
        image = self._stored if self._is_decoded else fn.decoders.image(self._stored, **self._decoder, **cache)
        self._whole = self._on_device(image)
        return self._whole

    def resize_random_window(self, size: Size, area_range: Interval, aspect_range: Interval) -> Node:
        """Return a random window as (height, width, channels) levels. DALI draws the window with the crop's seed.

        The operator that crops does not output its window. So with frames, a second operator draws the same window.
        Decoding does not wait for it.
        """
        window = {"random_area": list(area_range), "random_aspect_ratio": list(aspect_range), "num_attempts": 10}
        drawn = {"seed": self._seed, **window}
        whole = self.decode() if self._cached or self._is_decoded else None  # the cache holds whole images
        if self._frames:
            shape = fn.peek_image_shape(self._stored) if whole is None else whole.shape()
            anchor, sides = fn.random_crop_generator(shape, **drawn)
            self.window = fn.cat(fn.cast(shape, dtype=types.INT32)[:2], anchor, anchor + sides)
        if whole is not None:
            return self._levels(fn.random_resized_crop(whole, **_resize_arguments(size), **self._floats, **drawn))
        return self._resized(
            self._on_device(fn.decoders.image_random_crop(self._stored, **drawn, **self._decoder)), size
        )

    def centered_window(self, image: Node, size: Size, scale: float) -> tuple[Node, Node]:
        """Return the start and the end, (y, x) in pixels, of a centered window with the aspect ratio of `size`.

        `scale` is the length of the window's sides, relative to the largest such window.
        """
        sides = self._sides(image)
        if size.is_square:  # this needs fewer operators
            window = scale * fn.reductions.min(sides)
        else:
            proportions = _of_each_side(size.proportions)
            window = scale * fn.reductions.min(sides / proportions) * proportions
        return (sides - window) / 2, (sides + window) / 2

    def resize(self, image: Node, size: Size, window: tuple[Node, Node] | None = None) -> Node:
        """Resize a window of an image with antialiasing. Return (height, width, channels) levels.

        The default is the whole image.
        """
        if self._frames and image is self._whole:
            sides = self._sides(image)
            self.window = fn.cat(sides, *(window or (sides * 0, sides)))
        if window is None:
            return self._resized(image, size)
        return self._resized(image, size, roi_start=window[0], roi_end=window[1])

    def random_window(self, size: Size, scale: float, padding: float, border: str, fill: int) -> Node:
        """Return a window of fixed scale at a random position as (height, width, channels) levels.

        Args:
            size: the size of the result.
            scale: the length of the window's sides, relative to the largest window with the aspect ratio of `size`.
            padding: how far the window may reach beyond the image, relative to the window's sides.
            border: the border mode beyond the image.
            fill: the gray level of a constant border.
        """
        whole = self.decode()
        least = [round(side / scale) for side in size]
        image = self._resized(whole, least, mode="not_smaller")
        beyond = [round(padding * side) for side in size]
        sides = fn.cast(image.shape(), dtype=types.FLOAT)[:2]
        positions = sides - _of_each_side([side - 2 * more for side, more in zip(size, beyond, strict=True)]) + 1
        # Use floor, because a cast rounds: the first position would be half as likely, and the window could start a
        # pixel too far.
        start = fn.cast(math.floor(self.random_position() * positions), dtype=types.INT32) - _of_each_side(beyond)
        if self._frames:
            self._show_cut(whole, sides, start, size, fn.reductions.max(_of_each_side(least) / self._sides(whole)))
        return self._cut(image, start, size, border, fill)

    def random_position(self) -> Node:
        """Return two numbers in [0, 1), which DALI draws with the crop's seed."""
        return fn.random.uniform(range=[0.0, 1.0], shape=[2], seed=self._seed)

    def letterbox(self, size: Size, border: str, fill: int) -> Node:
        """Resize the whole image to fit into `size`, and center it. Return (height, width, channels) levels."""
        whole = self.decode()
        image = self._resized(whole, size, mode="not_larger")
        if self._peek:
            sides = self._sides(whole)
            resized = math.floor(sides * fn.reductions.min(_of_each_side(size) / sides) + 0.5)
            sides = fn.cast(math.max(resized, 1.0), dtype=types.INT32)
        else:
            sides = fn.cast(image.shape(), dtype=types.INT32)[:2]
        start = -((_of_each_side(size) - sides) // 2)
        if self._frames:
            self._show_cut(whole, sides, start, size, fn.reductions.min(_of_each_side(size) / self._sides(whole)))
        return self._cut(image, start, size, border, fill)

    def _sides(self, image: Node) -> Node:
        """Return the height and width of the whole image as floats."""
        shape = fn.peek_image_shape(self._stored) if self._peek else image.shape()
        return fn.cast(shape, dtype=types.FLOAT)[:2]

    def _show_cut(self, whole: Node, sides: Node, start: Node, size: Size, scale: Node) -> None:
        """Set `window` for an image that was resized by `scale` to `sides`, and then cut at `start`.

        DALI rounds `sides`, but resizes by exactly `scale`. So the resized area has the same center as the image, but
        can be a fraction of a pixel larger or smaller.
        """
        original = self._sides(whole)
        first = original / 2 + (start - sides / 2) / scale
        self.window = fn.cat(original, first, first + _of_each_side(size) / scale)

    def _resized(self, image: Node, size: Sequence[int], **how: Any) -> Node:
        return self._levels(fn.resize(image, **_resize_arguments(size), **self._floats, **how))

    @property
    def _floats(self) -> dict[str, Any]:
        """The arguments of a resize operator that keep it from rounding, unless pixels are bytes."""
        return {} if self._pixels.is_bytes else {"dtype": types.FLOAT}

    def _levels(self, image: Node) -> Node:
        """Convert stored pixels to levels from 0 to 255."""
        if self._pixels.is_bytes:
            return image
        low, high = self._pixels.low, self._pixels.high
        scaled = fn.crop_mirror_normalize(
            image,
            dtype=types.FLOAT,
            output_layout="HWC",
            mean=list(low),
            std=[(top - bottom) / 255 for bottom, top in zip(low, high, strict=True)],
        )
        return math.clamp(scaled, 0.0, 255.0)

    def _cut(self, image: Node, start: Node, size: Size, border: str, fill: int) -> Node:
        policy = {"constant": "pad", "replicate": "edge"}.get(border, border)
        return fn.slice(
            image, start=start, shape=list(size), axes=[0, 1], out_of_bounds_policy=policy, fill_values=float(fill)
        )

    def _on_device(self, image: Node) -> Node:
        return image.gpu() if self._placement.device == "gpu" and not self._mixed else image


def _resize_arguments(size: Sequence[int]) -> dict[str, Any]:
    return {"size": list(size), "interp_type": types.INTERP_LINEAR, "antialias": True}


def _of_each_side(values: Sequence[float]) -> Any:
    """Return values for height and width as an operand. Two equal values become one number, which needs no operator."""
    if values[0] == values[1]:
        return values[0]
    whole = all(isinstance(value, int) for value in values)
    return types.Constant(list(values), dtype=types.INT32 if whole else types.FLOAT)
