"""Builds DALI pipelines from plans.

    images -> decode and crop -> (height, width, channels) levels -> the operators of each stage -> normalize -> floats

On a GPU, a single Triton kernel can run stages and the normalization, see `augment.pipeline.kernels.instructions`.

A pipeline also outputs the index of each sample, with which the loader looks up the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import OperatorConcurrency, Pipeline
from nvidia.dali.tensors import TensorCPU, TensorListCPU
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from augment.data.images import ImageRef, Paths, are_decoded, are_paths, as_paths
from augment.pipeline.graph.decoding import GraphImage, OutputFormat, Placement
from augment.pipeline.graph.operators import Dali, GraphSource, add_views
from augment.pipeline.graph.parameter_feed import Feed
from augment.pipeline.graph.sample_order import ImageFeed, Reading
from augment.pipeline.kernels.instructions import Program, ProgramFeed, program_of
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler, SampleRange
from augment.recipe.stage import Stage
from augment.support.dali_versions import STORED_TYPES, Node


@dataclass(frozen=True)
class Outputs:
    """The outputs of a pipeline for one batch of N samples.

    Attributes:
        views: the images of each view, (N, height, width, channels), normalized float, or uint8.
        index: the index of each sample, (N, 1) int32.
        windows: with frames, the window of each view, (N, 6) int32 or float32 on the CPU, see `GraphImage`.
        cpu_index: with frames, a copy of `index` on the CPU. Otherwise `index` itself.
        loaded: masks, boxes or keypoints, if any.
    """

    views: list[Tensor]
    index: Tensor
    windows: list[Tensor]
    cpu_index: Tensor
    loaded: list[Any] = field(default_factory=list)

    def first(self, count: int) -> "Outputs":
        views = [view[:count] for view in self.views]
        windows = [window[:count] for window in self.windows]
        return Outputs(views, self.index[:count], windows, self.cpu_index[:count], self.loaded[:count])


class BuiltPipeline(Pipeline):  # type: ignore[misc]
    form: OutputFormat
    program: Program | None  # the program that a kernel runs after the graph, if any
    windows: list[int]  # with frames: the position of each view's window among the windows in the outputs

    def take_outputs(self, stream: Any) -> Outputs:
        """Return the outputs of a scheduled run, for use on a PyTorch stream (None on the CPU), without waiting."""
        outputs = [output.as_tensor() for output in self.outputs(stream)]
        # With frames, a GPU pipeline also has CPU outputs. Copy them, because DLPack cannot share their pinned memory.
        pinned = TensorCPU if stream is not None else ()
        given = [torch.tensor(np.asarray(o)) if isinstance(o, pinned) else from_dlpack(o) for o in outputs]
        count = len(self.windows)
        views, rest = given[:count], given[count:]
        if self.program is not None:
            programs, rest = rest[:count], rest[count:]
            views = [self.program.run(*pair, self.form) for pair in zip(views, programs, strict=True)]
        if not self.form.frames:
            return Outputs(views, rest[0], [], rest[0])
        return Outputs(views, rest[0], [rest[2 + number] for number in self.windows], rest[1])

    def close(self) -> None:
        """Wait for the batches in progress, and stop the pipeline's threads."""
        self._shutdown()


def build_pipeline(
    plan: Plan,
    reading: Reading,
    placement: Placement | None = None,
    form: OutputFormat | None = None,
    checkpoint: str | None = None,
) -> BuiltPipeline:
    """Build the DALI pipeline of a plan, by default on the CPU.

    Each run of the pipeline yields a batch. The last batch of an epoch is padded. The pipeline does not run batch
    stages, because they need targets. A checkpoint must come from a pipeline with the same arguments.
    """
    placement, form = placement or Placement(), form or OutputFormat()
    pipeline = BuiltPipeline(
        batch_size=reading.batch_size,
        num_threads=placement.threads,
        device_id=placement.device_id,
        prefetch_queue_depth=placement.prefetch,
        # With this executor, outputs stay valid as long as there is a reference to them.
        exec_dynamic=True,
        # Otherwise the many small operators would wait for each other, even across batches.
        concurrency=OperatorConcurrency.FULL,
        enable_checkpointing=plan.checkpoints,
        checkpoint=checkpoint,
        seed=reading.dali_seed(plan.split, "pipeline", reading.epoch, reading.shard.rank),
    )
    pipeline.form, pipeline.program = form, program_of(plan, placement)
    with TemporaryFile() as listed:
        with pipeline:
            stored, index = _read(plan, reading, placement, listed)
            source = _LoaderSource(plan, reading, placement, form, pipeline.program)
            views, windows, pipeline.windows = add_views(plan, stored, source, form, decoded=are_decoded(reading.files))
            small = [*source.programs, index]
            moved = [node.gpu() for node in small] if placement.device == "gpu" else small
            pipeline.set_outputs(*views, *moved, *([index, *windows] if form.frames else []))
        pipeline.build()
    return pipeline


def render(plan: Plan, files: Sequence[ImageRef], seed: int) -> NDArray[np.uint8]:
    """Apply a plan of the val split to files on the CPU. Return (N, height, width, 3) uint8 in the order of `files`."""
    pipeline = build_pipeline(plan, Reading(files, len(files), seed), form=OutputFormat(raw=True))
    return np.array(pipeline.run()[0].as_tensor())


class _LoaderSource(GraphSource):
    """Supplies a loader's graph with random values. DALI draws windows and noise. `Feed` draws all other values."""

    def __init__(
        self, plan: Plan, reading: Reading, placement: Placement, form: OutputFormat, program: Program | None
    ) -> None:
        super().__init__(placement, program)
        self._plans, self._reading, self._form = plan.per_view, reading, form
        self.programs: list[Node] = []  # the programs of each view, if a kernel runs them

    def image(self, view: int, stored: Node, *, decoded: bool) -> GraphImage:
        seed = self._seed(view, "crop", self._plans[view].crop.key)
        pixels = self._plans[view].pixels
        return GraphImage(stored, self.placement, seed, decoded=decoded, frames=self._form.frames, pixels=pixels)

    def values(self, view: int, stages: Sequence[Stage]) -> list[dict[str, Node]]:
        plan, reading = self._plans[view], self._reading
        sampler = Sampler(replace(plan, stages=tuple(stages)), reading.seed, reading.shard.rank, view)
        if self.program is not None:
            (fed,) = _external(ProgramFeed(self.program, sampler, reading))
            self.programs.append(fed["program"])
        return _external(Feed(sampler, reading, neutral=self.placement.device == "gpu"))

    def dali(self, view: int, stage: Stage) -> Dali:
        plan, step = self._plans[view], stage.steps[0]
        noise = self._seed(view, "noise", step.key, step.key) if step.op.random else None
        return Dali(self.placement.device, plan.size, noise, f"{plan.path}.{step.key}", plan.pixels)

    def _seed(self, view: int, what: str, step: str, *names: str) -> int:
        plan, reading = self._plans[view], self._reading
        own = [view] if view and step.split(".")[0] not in plan.shared else []
        return reading.dali_seed(plan.split, what, *names, reading.epoch, reading.shard.rank, *own)


def _read(plan: Plan, reading: Reading, placement: Placement, listed: IO[bytes]) -> tuple[Node, Node]:
    """Return the nodes of the stored images and of their indices, (1,) int32 each."""
    shard = reading.shard
    # DALI's file reader cannot announce indices before it reads the images, but `ImageFeed` can.
    files = as_paths(reading.files) if reading.announce is None else None
    if files is None or not are_paths(files):
        feed = ImageFeed(reading, None if plan.split == "val" else (reading.seed, plan.split, "shuffle"))
        stored, index = fn.external_source(
            lambda info: _next_images(feed, info),
            num_outputs=2,
            batch=True,
            batch_info=True,
            no_copy=True,  # see ImageFeed
            dtype=[STORED_TYPES[feed.dtype], types.INT32],
            ndim=[feed.ndim, 1],
        )
        return (fn.io.file.read(stored, dont_use_mmap=True) if feed.by_path else stored), index
    order: dict[str, Any] = {"stick_to_shard": True}
    if plan.split == "train":
        # All ranks must use the same order, so this seed does not depend on the rank.
        seed = reading.dali_seed(plan.split, "shuffle", reading.epoch)
        order = {"shuffle_after_epoch": True, "shuffle_after_epoch_seed": seed}
    encoded, index = fn.readers.file(
        name="reader",  # the reader's name in checkpoints
        **_listed(files, listed),
        shard_id=shard.rank,
        num_shards=shard.world_size,
        pad_last_batch=True,
        # If a mapped file were truncated, the process would crash. Mapping a small file is also slower than reading it:
        # 16 us instead of 10 us for 10 kB on two cores.
        dont_use_mmap=True,
        skip_cached_images=placement.caches,  # reading their files would take longer than the augmentation
        **order,
    )
    return encoded, index


def _listed(files: Paths, listed: IO[bytes]) -> dict[str, Any]:
    """Write paths and their indices to the file `listed`.

    Return the arguments with which DALI reads the images: this file, or a list if a name does not fit its format.

    In a list argument, a million paths would take a gigabyte of memory.
    """
    for start in range(0, len(files), 65536):
        names = files.names[start : start + 65536].tolist()
        lines = b"".join([b"%b %d\n" % (name, index) for index, name in enumerate(names, start)])
        # The file format excludes names with a line feed, or with white space at their end.
        if lines.count(b"\n") > len(names) or any(name[-1:].isspace() for name in names):
            return {"files": list(files.texts())}  # DALI then numbers the images itself
        listed.write(lines)
    listed.flush()
    return {"file_list": f"/proc/self/fd/{listed.fileno()}", "file_root": ""}


def _next_images(feed: ImageFeed, info: Any) -> tuple[TensorListCPU, NDArray[np.int32]]:
    """Return the images and indices of a batch. DALI reads its own tensors faster than NumPy arrays."""
    images, index = feed(info)
    tensors = [TensorCPU(image, feed.layout) for image in images]
    return TensorListCPU(tensors, feed.layout, contiguous=False), index  # type: ignore[call-overload]


def _external(feed: Feed) -> list[dict[str, Node]]:
    """Add a feed to the graph. Return the nodes of each stage's values, by name."""
    stages = feed.by_stage(SampleRange(0, 0, 1))
    count = sum(map(len, stages))
    nodes = iter(fn.external_source(feed, num_outputs=count, batch=True, batch_info=True) if count else ())
    return [dict(zip(stage, nodes, strict=False)) for stage in stages]  # each zip takes the next nodes
