"""A recipe as a function of images in memory, for training loops that read their own images."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from multiprocessing import current_process
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from nvidia.dali import fn, types
from nvidia.dali.pipeline import OperatorConcurrency, Pipeline
from torch import Tensor
from torch.utils.data import get_worker_info
from torch.utils.dlpack import from_dlpack

from augment.data.targets.keypoints import FlipPairs
from augment.data.targets.kind import Kind
from augment.params import Interval, Size
from augment.params.pixel_format import PixelFormat
from augment.pipeline.arguments import check_arguments, torch_device, warn_of_ranks
from augment.pipeline.geometry.batch_assembly import BatchMaker, Mixer
from augment.pipeline.geometry.frames import COLUMNS, random_windows
from augment.pipeline.graph.decoding import GraphImage, OutputFormat, Placement
from augment.pipeline.graph.operators import RANDOM_STATE, Dali, GraphSource, add_views
from augment.pipeline.graph.parameter_feed import DrawAheadOfCalls, FedValues, stage_values
from augment.pipeline.images_in_memory import InputImages, check_encoded, kind_of, plain_kind, read_images, read_targets
from augment.pipeline.kernels.decoded_images import KernelTransform
from augment.pipeline.kernels.instructions import program_of
from augment.recipe.op_kinds import Array
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import CALL, Sampler, SampleRange
from augment.recipe.stage import Stage
from augment.recipe.steps import SplitName
from augment.support.dali_versions import STORED_TYPES, Node
from augment.support.device import to_device
from augment.support.errors import UserError
from augment.support.process import cores
from augment.support.seeds import derive_seed
from augment.support.user_code import public, reject_in_op

if TYPE_CHECKING:
    from augment.cli.compose import Recipe

_IMAGES = "images"


class Transform:
    """Applies a recipe to batches of images in memory.

    A call's parameters are a pure function of the seed, split, rank, step and call number, and the image's position in
    the batch. Earlier calls, the device and the batch size do not change them. Random crop windows have the same
    distribution as in a loader, but are drawn differently.

    In a worker process of a PyTorch DataLoader, the parameters also depend on the worker's seed. PyTorch changes this
    seed in each epoch, unless workers are persistent. In a copy of the transform in any other process, the parameters
    also depend on the name of the process in `multiprocessing`.

    Args:
        recipe: a recipe from `augment.load_recipe`.
        split: the split whose steps are applied, train or val.
        device: the device that transforms and returns images, "cuda" or "cpu". "auto" uses a GPU if there is one.
        seed: the seed of the draws. Default: the seed of the recipe.
        rank: the rank of this process among the processes that share a seed.
        classes: number of classes. A recipe that mixes samples needs it if targets are class indices.
        half: return float16 instead of float32.
        threads: CPU threads. Default: one per core, at most 16.
        frames: also return frames if a call has targets, see `Batch`. Masks, boxes and keypoints always add frames.
        flip_pairs: pairs of left and right keypoints, which are swapped in mirrored images, or [] without pairs.
            Required for keypoints if the recipe mirrors images.
        pixels: the pixel format of the images, such as `augment.PixelFormat.of(10, "uint16")`. Default: 8-bit RGB.

    Attributes:
        position: number of the next call. Set it to repeat a call or to resume.

    Raises:
        UserError: the device is not available, or an op draws random values that cannot be repeated.
    """

    @public
    def __init__(
        self,
        recipe: "Recipe",
        split: SplitName = "train",
        *,
        device: torch.device | str = "auto",
        seed: int | None = None,
        rank: int = 0,
        classes: int | None = None,
        half: bool = False,
        threads: int | None = None,
        frames: bool = False,
        flip_pairs: Sequence[tuple[int, int]] | None = None,
        pixels: PixelFormat | None = None,
    ) -> None:
        check_arguments(recipe, classes=classes, half=half, rank=rank, seed=seed, threads=threads)
        self.plan = build_plan(recipe.aug if pixels is None else replace(recipe.aug, pixels=pixels), split)
        self.position = 0
        self._device = torch_device(device)
        self._seed = recipe.seed if seed is None else seed
        self._rank = rank
        self._classes = classes
        self._flip_pairs: FlipPairs = None
        if flip_pairs is not None:
            self._flip_pairs = tuple((int(left), int(right)) for left, right in flip_pairs)
        self._form = OutputFormat(half, frames=frames)
        self._placement = Placement().on(self._device, threads or min(16, cores()))
        self._graphs: dict[str, Any] = {}
        self._lock, self._process, self._home = Lock(), os.getpid(), current_process().name
        if split == "train":
            warn_of_ranks(rank=rank)
        self._graph("cpu", 1)  # raises errors of the recipe now

    def __repr__(self) -> str:
        return f"Transform({self.plan.split}, {self._device})"

    def _repr_html_(self) -> str:
        """Draw the plan, for notebooks."""
        return f"<p>{self!r}</p>{self.plan._repr_html_()}"

    def __getstate__(self) -> dict[str, Any]:
        # The process that unpickles this transform builds its own pipelines, as a forked process does.
        return {**vars(self), "_process": 0, "_lock": None, "_graphs": {}, "_inherited": {}}

    @public
    def __call__(self, images: Any, targets: Any = None) -> Any:
        """Transform a batch.

        Args:
            images: a uint8 tensor or array, (N, height, width, 3) RGB, or a list. The items of a list are uint8 tensors
                or arrays, (height, width, 3), PIL images, or encoded images as bytes. If the transform runs on a GPU,
                tensors may be on the CPU or on this GPU. With another pixel format, tensors and arrays have the
                channels and the data type of the format.
            targets: for whole images, (N,) class indices, or (N, K) float labels or regression targets. Masks are
                (N, height, width) or a list of (height, width) integers. Objects are a list of dicts with boxes (K, 4),
                labels (K,) and optional torchvision keys. Keypoints are (N, P, 2) or (N, P, 3) floats or lists of
                numbers. A dict combines several kinds under any names. Masks, boxes and keypoints are in pixels of the
                stored images.

        Returns:
            Without targets, (N, channels, height, width) float32 or float16, normalized, in channels_last memory. If
            the recipe has several views, a tuple with such a tensor for each view. With targets, a `Batch`, whose
            `indices` are positions in `images`.

        Raises:
            UserError: images or targets are missing, or differ from this description.
        """
        read = read_images(images, self._device, self.plan.pixels)
        mixing = ", ".join(stage.steps[0].key for stage in self.plan.batch_stages)
        kind = kind_of(targets, self._flip_pairs)
        checked: Any
        if kind is None:
            checked = read_targets(targets, len(read), self._device, mixing=mixing, classes=self._classes)
        else:
            checked = kind.from_memory(targets, len(read))
            if not self._form.frames:
                self._form, self._graphs = replace(self._form, frames=True), {}
        if self._process != os.getpid():  # after a fork, pipelines have no threads, and freeing them would hang
            self._process, self._lock, self._graphs, self._inherited = os.getpid(), Lock(), {}, self._graphs
        with self._lock:
            views, windows = self._run(read)
            call, self.position = self.position, self.position + 1
            if checked is None:
                return views[0] if len(views) == 1 else tuple(views)
            maker = self._maker(kind or plain_kind(checked))
            indices = torch.arange(len(read), device=self._device)
            return maker.make(views, checked, indices, (windows, read.orientations), epoch=0, start=call * CALL)

    def _maker(self, kind: Kind) -> BatchMaker:
        made, identity = self._graphs.get("maker"), (type(kind), dict(vars(kind)))
        if made is None or made[0] != identity:
            drawn: dict[str, Any] = {"seed": self._seed, "rank": self._stream(), "ahead": DrawAheadOfCalls}
            mixer = Mixer(self.plan, kind, classes=self._classes or 0, **drawn) if self.plan.batch_stages else None
            made = identity, BatchMaker(self.plan, kind, frames=self._form.frames, mixer=mixer, **drawn)
            self._graphs["maker"] = made
        return made[1]

    def _stream(self) -> int:
        """Return the rank that seeds the draws. A copy of the transform in another process derives its own rank."""
        worker = get_worker_info()
        here = current_process().name if worker is None else worker.seed
        return self._rank if here == self._home else derive_seed(self._rank, here)

    def _run(self, read: InputImages) -> tuple[list[Tensor], list[Tensor]]:
        by_kernels = read.kind == "gpu" and isinstance(read.data, Tensor) and self._kernels_suffice
        kind = "kernels" if by_kernels else read.kind
        graph = self._graph(kind, len(read))
        try:
            return graph.run(read, self.position)
        except BaseException as error:
            # A pipeline cannot be used again after a failure, or after it was fed only some of its inputs.
            del self._graphs[kind]
            if isinstance(error, RuntimeError):
                reject_in_op(error)
                check_encoded(read)
            raise

    @cached_property
    def _kernels_suffice(self) -> bool:
        """Whether kernels can transform decoded images of one size on the GPU, without DALI."""
        return KernelTransform.supports(self.plan, self._placement)

    def _graph(self, kind: str, count: int) -> "_Graph | KernelTransform":
        """Return a graph that takes at least `count` images of a kind. Build the graph if necessary."""
        graph = self._graphs.get(kind)
        if graph is None or graph.batch_size < count:
            samplers = [Sampler(own, self._seed, self._stream(), n) for n, own in enumerate(self.plan.per_view)]
            if kind == "kernels":
                graph = KernelTransform(self.plan, self._device, self._form, samplers)
            else:
                graph = _Graph(self.plan, kind, count, self._placement, self._form, samplers)
            self._graphs[kind] = graph
        return graph


class _Graph(GraphSource):
    """The DALI pipeline of a plan for one kind of `InputImages`. Each call feeds it new random values.

    There is a sampler for each view. A call has at most `batch_size` images.
    """

    def __init__(
        self,
        plan: Plan,
        kind: str,
        batch_size: int,
        placement: Placement,
        form: OutputFormat,
        samplers: Sequence[Sampler],
    ) -> None:
        super().__init__(placement, program_of(plan, placement))
        self.batch_size = batch_size
        self._samplers, self._form = samplers, form
        self._common = [0, *(own.shared_results(plan) for own in plan.others)]
        self._crops: dict[int, _FedImage] = {}  # by the number of each view that has its own crop
        # The result of `_draw` for the next call.
        self._drawn: dict[SampleRange, tuple[dict[str, FedValues], list[FedValues]]] = {}
        self._pipeline = Pipeline(
            batch_size=batch_size,
            num_threads=placement.threads,
            device_id=placement.device_id,
            prefetch_queue_depth=1,
            exec_dynamic=True,
            concurrency=OperatorConcurrency.FULL,
        )
        with self._pipeline:
            stored = fn.external_source(
                name=_IMAGES,
                device="gpu" if kind == "gpu" else "cpu",
                dtype=types.UINT8 if kind == "encoded" else STORED_TYPES[plan.pixels.dtype],
                ndim=1 if kind == "encoded" else 3,
                layout="" if kind == "encoded" else "HWC",
            )
            views, windows, self._shown = add_views(plan, stored, self, form, decoded=kind != "encoded")
            self._pipeline.set_outputs(*views, *(windows if form.frames else []))
        for view, image in self._crops.items():
            own = samplers[view].plan
            if own.crop.op.random and image.draw is None:
                raise UserError(
                    f"{own.path}.{own.crop.key}: this op draws windows itself, so no call can be repeated. "
                    "Draw with source.random_position()."
                )

    def image(self, view: int, stored: Node, *, decoded: bool) -> GraphImage:
        name = f"{view} {self._samplers[view].plan.crop.key}"
        pixels, frames = self._samplers[view].plan.pixels, self._form.frames
        self._crops[view] = _FedImage(stored, self.placement, name, decoded=decoded, frames=frames, pixels=pixels)
        return self._crops[view]

    def values(self, view: int, stages: Sequence[Stage]) -> list[dict[str, Node]]:
        nodes = []
        for number, values in enumerate(self._stage_values(view, SampleRange(0, 0, 1))):
            nodes.append({name: fn.external_source(name=_input_name(view, number, name)) for name in values})
        return nodes

    def dali(self, view: int, stage: Stage) -> Dali:
        plan = self._samplers[view].plan
        return Dali(self.placement.device, plan.size, None, f"{plan.path}.{stage.steps[0].key}", plan.pixels)

    def run(self, images: InputImages, call: int) -> tuple[list[Tensor], list[Tensor]]:
        """Run call number `call`. Return each view, (N, C, height, width), and, with frames, its windows."""
        device = self.placement.torch_device
        stream = torch.cuda.current_stream(device) if self.placement.device == "gpu" else None
        where = SampleRange(0, call * CALL, len(images))
        for view, crop in self._crops.items():
            if crop.draw is not None:
                sampler = self._samplers[view]
                uniform = sampler.uniform(sampler.plan.crop.key, where, crop.columns)
                self._pipeline.feed_input(crop.name, crop.draw(uniform, images.sizes).astype(np.float32))
        drawn = self._drawn.pop(where, None) or self._draw(where)
        for name, values in drawn[0].items():
            with suppress(KeyError):  # DALI removes an input that no operator uses
                self._pipeline.feed_input(name, values)
        self._pipeline.feed_input(_IMAGES, images.data, cuda_stream=stream if images.kind == "gpu" else None)
        self._pipeline.schedule_run()
        # Draw the values of the next call while DALI works. The next call usually has the same number of images.
        following = SampleRange(0, (call + 1) * CALL, len(images))
        self._drawn = {following: self._draw(following)}
        # On the GPU, PyTorch's stream waits for the batch, and this thread does not.
        outputs = [from_dlpack(output.as_tensor()) for output in self._pipeline.outputs(stream)]
        made, windows = outputs[: len(self._samplers)], outputs[len(self._samplers) :]
        if self.program is not None:
            programs = to_device({str(view): values for view, values in enumerate(drawn[1])}, device).values()
            made = [self.program.run(*pair, self._form) for pair in zip(made, programs, strict=True)]
        return [image.permute(0, 3, 1, 2) for image in made], [windows[n] for n in self._shown] if windows else []

    def _draw(self, where: SampleRange) -> tuple[dict[str, FedValues], list[FedValues]]:
        """Return the values of all views' stages, by the names of their DALI inputs, and the program of each view."""
        fed = {
            _input_name(view, number, name): values
            for view in range(len(self._samplers))
            for number, stage in enumerate(self._stage_values(view, where))
            for name, values in stage.items()
        }
        return fed, [self.program.values(own, where) for own in self._samplers if self.program is not None]

    def _stage_values(self, view: int, where: SampleRange) -> list[dict[str, FedValues]]:
        """Return the values of the stages that DALI runs for a view.

        With a program, DALI runs the stages before the program. Otherwise, it runs the stages that the view does not
        share with the first view.
        """
        sampler = self._samplers[view]
        plan, draws, found = sampler.plan, sampler.draw(*where), []
        stages = plan.image_stages[max(0, self._common[view] - 1) :] if self.program is None else self.program.before
        for stage in stages:
            values = stage_values(stage, draws, plan.size, neutral=self.placement.device == "gpu")
            if stage.steps[0].op.random:
                # DALI reads only the first row, seven words, and derives a separate stream for each sample.
                words = sampler.uniform(f"{stage.steps[0].key}.noise", where._replace(size=1), 7)
                values[RANDOM_STATE] = np.tile((words * 2**32).astype(np.uint32), (where.size, 1))
            found.append(values)
        return found


def _input_name(view: int, stage: int, name: str) -> str:
    return f"{view} {stage} {name}"


class _FedImage(GraphImage):
    """A `GraphImage` whose random windows are drawn outside the graph."""

    def __init__(
        self, stored: Node, placement: Placement, name: str, *, decoded: bool, frames: bool, pixels: PixelFormat
    ) -> None:
        super().__init__(stored, placement, seed=0, decoded=decoded, frames=frames, pixels=pixels)
        self.name = name  # the name of the DALI input for the drawn values
        self.columns = 2  # number of values in [0, 1) to draw for each image
        # Converts the drawn values, (N, columns), and the image sizes to the input. None if the crop draws nothing.
        self.draw: Callable[[Array, Any], Array] | None = None

    def resize_random_window(self, size: Size, area_range: Interval, aspect_range: Interval) -> Node:
        self.columns = COLUMNS
        self.draw = lambda uniform, sizes: random_windows(uniform, sizes(), area_range, aspect_range)
        window = self._source()
        return self.resize(self.decode(), size, (window[:2], window[2:]))

    def random_position(self) -> Node:
        # The conversion to float32 must not round any number up to 1.
        self.draw = lambda uniform, sizes: np.minimum(uniform, 1 - 2**-24)
        return self._source()

    def _source(self) -> Node:
        return fn.external_source(name=self.name, dtype=types.FLOAT, ndim=1)
