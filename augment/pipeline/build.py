"""Build DALI pipelines from plans, with the parts in augment/pipeline/graph.py.

    images -> decode and crop -> (size, size, 3) uint8 -> one operator a stage -> normalize -> float HWC

On a GPU a kernel takes the place of the stages and the normalization of policies, see `augment.pipeline.program`.

A graph also hands out each sample's index, by which the loader looks up its target.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import OperatorConcurrency, Pipeline
from nvidia.dali.tensors import TensorCPU, TensorListCPU
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from augment.data import dataset
from augment.data.images import are_decoded, are_paths
from augment.pipeline.feed import Feed
from augment.pipeline.graph import Dali, Device, GraphImage, Node, Placement, apply, normalize
from augment.pipeline.image_feed import ImageFeed, stood_in
from augment.pipeline.program import Program, ProgramFeed, kernels_run
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler
from augment.support.seeds import derive_seed

READER = "reader"
ENCODED = "encoded"


@dataclass(frozen=True)
class Shard:
    """Which part of an epoch this process reads."""

    rank: int = 0
    world_size: int = 1

    def samples(self, total: int) -> int:
        """Return how many of `total` samples this process reads."""
        return (self.rank + 1) * total // self.world_size - self.rank * total // self.world_size

    def counts(self, total: int, start: int, most: int) -> list[int]:
        """Return how many samples each process has from a position in its shard on, up to `most`.

        Args:
            total: number of samples in an epoch.
            start: the position.
            most: the highest count, such as that of a full batch.
        """
        shards = [Shard(rank, self.world_size).samples(total) for rank in range(self.world_size)]
        return [min(max(count - start, 0), most) for count in shards]


def build_pipeline(
    plan: Plan,
    files: Sequence[dataset.ImageRef],
    *,
    batch_size: int,
    seed: int,
    epoch: int = 0,
    placement: Placement | None = None,
    shard: Shard | None = None,
    threads: int = 2,
    half: bool = False,
    raw: bool = False,
    checkpoint: str | None = None,
    stand_ins: Mapping[int, int] = MappingProxyType({}),
    gpu: int = 0,
) -> Pipeline:
    """Build the DALI pipeline of a plan; each run gives one batch, the last one of an epoch padded.

    Args:
        plan: what is done to the images.
        files: the images; a sample's index is its position here.
        batch_size: samples in a batch.
        seed: the run's seed; shuffle, crop and steps each derive their own from it.
        epoch: the first epoch that is read.
        placement: where decoding and augmentation run, by default on the CPU.
        shard: which part of each epoch to read; all of it by default.
        threads: CPU threads.
        half: float16 in place of float32.
        raw: leave out the normalization: uint8 images, for figures and tests.
        checkpoint: state to resume from, of a pipeline that was built with the same arguments, but for `stand_ins`.
        stand_ins: maps the index of a sample to that of the sample that is read instead.
        gpu: number of the GPU, if the placement needs one.

    Returns:
        A pipeline whose outputs are the images of each view, (batch, size, size, 3), normalized float HWC, and
        last the index, (batch, 1) int32. Batch stages are not in it: they need the targets.
    """
    shard, placement = shard or Shard(), placement or Placement()
    pipeline = _Pipeline(
        batch_size=batch_size,
        num_threads=threads,
        device_id=gpu if placement.device == "gpu" else None,
        prefetch_queue_depth=placement.prefetch,
        # The executor whose outputs stay valid for as long as somebody holds them.
        exec_dynamic=True,
        # Else the many small operators of a batch queue up behind each other, also those of different batches.
        concurrency=OperatorConcurrency.FULL,
        enable_checkpointing=plan.checkpoints,
        checkpoint=checkpoint,
        seed=_dali_seed(seed, plan.split, "pipeline", epoch, shard.rank),
    )
    program = program_of(plan, placement, gpu)
    if program is not None:
        pipeline.finish = partial(_finish, program, half=half, raw=raw)
    with pipeline:
        order = {"batch_size": batch_size, "seed": seed, "epoch": epoch, "shard": shard, "stand_ins": stand_ins}
        stored, index = _read(plan, files, placement, **order)
        raw_files = are_decoded(files)
        if is_decoded_once(plan) and not raw_files:
            stored, raw_files = GraphImage(stored, placement, seed=0).decode(), True
        views: list[Node] = []
        programs: list[Node] = []
        first: list[Node] = []  # the results of the first view: its crop's, and those of each stage after it
        for number, own in enumerate(plan.per_view):
            made = first[: own.in_common(plan)] if number else []
            seeds = partial(_view_seed, own, number, seed, epoch, shard.rank)
            if not made:
                image = GraphImage(stored, placement, seeds("crop", own.crop.key), raw=raw_files)
                made.append(own.crop.op.function(image, own.size, **own.crop.op.values(own.crop.params, {})))
            stages = own.image_stages[len(made) - 1 :]
            feed = (Feed if program is None else partial(ProgramFeed, program))(
                Sampler(replace(own, stages=stages), seed, shard.rank, number),
                batch_size=batch_size,
                batches=batches_per_epoch(len(files), batch_size, shard.world_size),
                epoch=epoch,
                fixed=plan.split == "val",
                neutral=placement.device == "gpu",
            )
            if program is not None:
                views.append(made[0])
                programs += [fed["program"] for fed in _external(feed)]
                continue
            for stage, fed in zip(stages, _external(feed), strict=True):
                step = stage.steps[0].key
                noise = seeds("noise", step, step) if stage.steps[0].op.random else None
                made.append(apply(made[-1], stage, fed, Dali(placement.device, own.size, noise, f"{own.path}.{step}")))
            views.append(made[-1] if raw else normalize(made[-1], own, half=half))
            first = first or made
        small = [*programs, index]
        pipeline.set_outputs(*views, *(node.gpu() if placement.device == "gpu" else node for node in small))
    return pipeline


def is_decoded_once(plan: Plan) -> bool:
    """Whether views cut their windows out of one decoded image; up to two windows are cheaper to decode apart."""
    return bool(plan.views.named) and sum(not own.in_common(plan) for own in plan.others) > 1


def _view_seed(plan: Plan, view: int, seed: int, epoch: int, rank: int, what: str, step: str, *names: str) -> int:
    """Return the seed of what DALI draws for a step of a view."""
    own = view and step.split(".")[0] not in plan.shared
    return _dali_seed(seed, plan.split, what, *names, epoch, rank, *([view] if own else []))


class _Pipeline(Pipeline):  # type: ignore[misc]
    """A pipeline, and what is done to its outputs.

    Attributes:
        finish: takes and returns the outputs as tensors.
    """

    finish: Callable[[list[Tensor]], list[Tensor]] | None = None


def outputs_of(pipeline: Pipeline, stream: Any) -> list[Tensor]:
    """Return the outputs of a scheduled run: the images of each view and the index, see `build_pipeline`.

    Args:
        pipeline: made by `build_pipeline`.
        stream: PyTorch's stream on which they are used, None on the CPU. Nothing waits for the GPU here.
    """
    outputs = [from_dlpack(output.as_tensor()) for output in pipeline.outputs(stream)]
    return outputs if pipeline.finish is None else pipeline.finish(outputs)


def program_of(plan: Plan, placement: Placement, gpu: int) -> Program | None:
    """Return what a kernel does on a GPU in place of DALI's operators, None for plans that it does not run."""
    alike = plan.views.crop == "own" and not plan.views.named
    program = Program.of(plan) if placement.device == "gpu" and alike else None
    return program if program is not None and kernels_run(gpu, every_op=program.every_op) else None


def _finish(program: Program, outputs: list[Tensor], **options: bool) -> list[Tensor]:
    *both, index = outputs
    views = len(both) // 2
    pairs = zip(both[:views], both[views:], strict=True)
    return [*(program.run(images, programs, **options) for images, programs in pairs), index]


def build_transform(plan: Plan, *, device: Device, batch_size: int, threads: int) -> Pipeline:
    """Build the graph of a plan that draws nothing, without files: to be serialized and fed elsewhere.

    Args:
        plan: what is done to the images; a crop that is not random, and no steps.
        device: where it will run. The GPU is named when the graph is loaded, so none is needed here.
        batch_size: the largest batch.
        threads: CPU threads.

    Returns:
        A pipeline with an input named "encoded", the bytes of encoded images, (length,) uint8 each, and one output,
        (batch, 3, size, size) float32, normalized: the same values as `build_pipeline`, plane by plane.
    """
    assert not plan.stages
    assert not plan.crop.op.random
    # A pipeline that is fed by hand has no further batch to prefetch.
    pipeline = Pipeline(
        batch_size=batch_size, num_threads=threads, device_id=None, prefetch_queue_depth=1, exec_dynamic=True
    )
    with pipeline:
        encoded = fn.external_source(name=ENCODED, dtype=types.UINT8, ndim=1)
        image = GraphImage(encoded, Placement(device), seed=0, peek=True)
        images = plan.crop.op.function(image, plan.size, **plan.crop.op.values(plan.crop.params, {}))
        pipeline.set_outputs(normalize(images, plan, half=False, layout="CHW"))
    return pipeline


def image_feed(
    plan: Plan,
    files: Sequence[dataset.ImageRef],
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    shard: Shard,
    stand_ins: Mapping[int, int],
) -> ImageFeed:
    """Return the feed of images that are not files of their own; the arguments are those of `build_pipeline`."""
    return ImageFeed(
        files,
        batch_size=batch_size,
        batches=batches_per_epoch(len(files), batch_size, shard.world_size),
        epoch=epoch,
        shuffle=None if plan.split == "val" else (seed, plan.split, "shuffle"),
        rank=shard.rank,
        world_size=shard.world_size,
        stand_ins=stand_ins,
    )


def next_indices(plan: Plan, files: Sequence[dataset.ImageRef], batches: Iterable[int], **order: Any) -> list[int]:
    """Return the images of some batches, by their numbers since the pipeline was built; none if only DALI knows them.

    Args:
        plan: what is done to the images.
        files: the images.
        batches: the numbers.
        order: the other arguments of `image_feed`.
    """
    if are_paths(files):
        return []
    feed = image_feed(plan, files, **order)
    return [index for batch in batches for index in feed.indices(batch).tolist()]


def _read(plan: Plan, files: Sequence[dataset.ImageRef], placement: Placement, **order: Any) -> tuple[Node, Node]:
    """Return the nodes of the images, as they are stored, and of their indices, (1,) int32 each."""
    if not are_paths(files):
        feed = image_feed(plan, files, **order)
        stored, index = fn.external_source(
            lambda info: _next_images(feed, info),
            num_outputs=2,
            batch=True,
            batch_info=True,
            no_copy=True,  # see ImageFeed
            dtype=[types.UINT8, types.INT32],
            ndim=[feed.ndim, 1],
        )
        return stored, index
    read, shard = stood_in(len(files), order["stand_ins"]).tolist(), order["shard"]
    encoded, index = fn.readers.file(
        name=READER,
        files=[str(files[index]) for index in read],
        labels=read,
        shard_id=shard.rank,
        num_shards=shard.world_size,
        pad_last_batch=True,
        # A mapped file that is truncated meanwhile would end the process, and to map a small one takes longer than to
        # read it: 16 against 10 us for 10 kB on two cores.
        dont_use_mmap=True,
        skip_cached_images=placement.caches,  # reading them would take longer than the augmentation
        **_order(plan, order["seed"], order["epoch"]),
    )
    return encoded, index


def feed_images(feed: ImageFeed) -> Node:
    """Return the node of a feed's images, encoded or, if all are stored so, decoded."""
    # Not both outputs with one unused, of which DALI warns.
    return fn.external_source(
        lambda info: _next_images(feed, info)[0],
        batch=True,
        batch_info=True,
        no_copy=True,
        dtype=types.UINT8,
        ndim=feed.ndim,
    )


def _next_images(feed: ImageFeed, info: Any) -> tuple[TensorListCPU, NDArray[np.int32]]:
    """Return what the feed does, the images as DALI's list, which refers to them: it looks at arrays for longer."""
    images, index = feed(info)
    tensors = [TensorCPU(image, feed.layout) for image in images]
    return TensorListCPU(tensors, feed.layout, contiguous=False), index  # type: ignore[call-overload]


def _external(feed: Feed) -> list[dict[str, Node]]:
    """Return for each stage the nodes of the values that are fed to it."""
    names = feed.names()
    dtypes = [_TYPES[values.dtype.name] for values in feed.values(0)]
    if not dtypes:
        return [{} for _ in names]
    nodes = iter(fn.external_source(feed, num_outputs=len(dtypes), batch=True, batch_info=True, dtype=dtypes))
    return [{name: next(nodes) for name in stage} for stage in names]


_KINDS = (types.FLOAT, types.BOOL, types.INT8, types.INT16, types.INT32, types.INT64,
          types.UINT8, types.UINT16, types.UINT32, types.UINT64)  # fmt: skip
_TYPES = {np.dtype(types.to_numpy_type(kind)).name: kind for kind in _KINDS}


def _order(plan: Plan, seed: int, epoch: int) -> dict[str, Any]:
    if plan.split == "val":
        return {"stick_to_shard": True}
    # All ranks must shuffle alike, so the rank has no part in this seed.
    return {"shuffle_after_epoch": True, "shuffle_after_epoch_seed": _dali_seed(seed, plan.split, "shuffle", epoch)}


def batches_per_epoch(samples: int, batch_size: int, world_size: int) -> int:
    """Batches that DALI makes for each shard: the largest shard's, the others are padded."""
    largest = -(-samples // world_size)
    return -(-largest // batch_size)


def _dali_seed(*parts: int | str) -> int:
    return derive_seed(*parts) % 2**31
