"""From a plan to a DALI pipeline, put together from the parts in augment/graph.py.

    pictures -> decode and crop -> (size, size, 3) uint8 -> one operator a stage -> normalize -> float HWC

A graph also hands out each sample's index, by which the loader looks up its target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nvidia.dali import fn, types
from nvidia.dali.pipeline import OperatorConcurrency, Pipeline

from augment import dataset
from augment.feed import Feed
from augment.graph import Dali, Device, Node, Picture, Placement, apply, normalize
from augment.picture_feed import PictureFeed
from augment.plan import Plan
from augment.sampler import Sampler, derive_seed
from augment.stored import are_paths, are_raw

READER = "reader"
ENCODED = "encoded"


@dataclass(frozen=True)
class Shard:
    """Which part of an epoch this process reads."""

    rank: int = 0
    world_size: int = 1


def build_pipeline(
    plan: Plan,
    files: Sequence[dataset.Picture],
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
) -> Pipeline:
    """Build the DALI pipeline of a plan; each run gives one batch, the last one of an epoch padded.

    Args:
        plan: what is done to the pictures.
        files: the pictures; a sample's index is its place here.
        batch_size: samples in a batch.
        seed: of the run; shuffle, crop and steps each derive their own from it.
        epoch: the first epoch that is read.
        placement: where decoding and augmentation run, by default on the CPU.
        shard: which part of each epoch to read; all of it by default.
        threads: CPU threads.
        half: float16 in place of float32.
        raw: leave out the normalization: uint8 pictures, for pictures and tests.
        checkpoint: state to go on from, of a pipeline that was built with the same arguments.

    Returns:
        A pipeline whose outputs are the images of each view, (batch, size, size, 3), normalized float HWC, and at last
        the index, (batch, 1) int32. Batch stages are not in it: they need the targets.
    """
    shard, placement = shard or Shard(), placement or Placement()
    pipeline = Pipeline(
        batch_size=batch_size,
        num_threads=threads,
        device_id=0 if placement.device == "gpu" else None,
        prefetch_queue_depth=placement.prefetch,
        # The executor whose outputs stay valid for as long as somebody holds them.
        exec_dynamic=True,
        # Else the many small operators of a batch queue up behind each other, also those of different batches.
        concurrency=OperatorConcurrency.FULL,
        enable_checkpointing=plan.checkpoints,
        checkpoint=checkpoint,
        seed=_dali_seed(seed, plan.split, "pipeline", epoch, shard.rank),
    )
    with pipeline:
        stored, index = _read(plan, files, batch_size=batch_size, seed=seed, epoch=epoch, shard=shard)
        views: list[Node] = []
        for view in range(plan.views.count):
            where = (epoch, shard.rank, *([view] if view else []))
            if view == 0 or plan.views.crop == "own":
                picture = Picture(stored, placement, _dali_seed(seed, plan.split, "crop", *where), raw=are_raw(files))
                cropped = plan.crop.op.function(picture, plan.size, **plan.crop.op.values(plan.crop.params, {}))
            feed = Feed(
                Sampler(plan, seed, shard.rank, view),
                batch_size=batch_size,
                batches=batches_per_epoch(len(files), batch_size, shard.world_size),
                epoch=epoch,
                fixed=plan.split == "val",
                neutral=placement.device == "gpu",
            )
            images = cropped
            for stage, fed in zip(plan.image_stages, _external(feed), strict=True):
                step = stage.steps[0].key
                dali = Dali(placement.device, plan.size, _dali_seed(seed, plan.split, "noise", step, *where))
                images = apply(images, stage, fed, dali)
            views.append(images if raw else normalize(images, plan, half=half))
        pipeline.set_outputs(*views, index.gpu() if placement.device == "gpu" else index)
    return pipeline


def build_transform(plan: Plan, *, device: Device, batch_size: int, threads: int) -> Pipeline:
    """Build the graph of a plan that draws nothing, without files: to be serialized and fed elsewhere.

    Args:
        plan: what is done to the pictures; a crop that is not random, and no steps.
        device: where it will run. The GPU is named when the graph is loaded, so none is needed here.
        batch_size: the largest batch.
        threads: CPU threads.

    Returns:
        A pipeline with an input named "encoded", the bytes of encoded pictures, (length,) uint8 each, and one output,
        (batch, 3, size, size) float32, normalized: the same values as `build_pipeline`, plane by plane.
    """
    assert not plan.stages
    assert not plan.crop.op.random
    # One batch ahead: a pipeline that is fed by hand has no second one to prefetch.
    pipeline = Pipeline(
        batch_size=batch_size, num_threads=threads, device_id=None, prefetch_queue_depth=1, exec_dynamic=True
    )
    with pipeline:
        encoded = fn.external_source(name=ENCODED, dtype=types.UINT8, ndim=1)
        picture = Picture(encoded, Placement(device), seed=0)
        images = plan.crop.op.function(picture, plan.size, **plan.crop.op.values(plan.crop.params, {}))
        pipeline.set_outputs(normalize(images, plan, half=False, layout="CHW"))
    return pipeline


def _read(
    plan: Plan, files: Sequence[dataset.Picture], *, batch_size: int, seed: int, epoch: int, shard: Shard
) -> tuple[Node, Node]:
    """Return the nodes of the pictures, as they are stored, and of their indices, (1,) int32 each."""
    if not are_paths(files):
        feed = PictureFeed(
            files,
            batch_size=batch_size,
            batches=batches_per_epoch(len(files), batch_size, shard.world_size),
            epoch=epoch,
            shuffle=None if plan.split == "val" else (seed, plan.split, "shuffle"),
            rank=shard.rank,
            world_size=shard.world_size,
        )
        stored, index = fn.external_source(
            feed,
            num_outputs=2,
            batch=True,
            batch_info=True,
            dtype=[types.UINT8, types.INT32],
            ndim=[feed.ndim, 1],
            layout=[feed.layout, ""],
        )
        return stored, index
    encoded, index = fn.readers.file(
        name=READER,
        files=[str(file) for file in files],
        labels=list(range(len(files))),
        shard_id=shard.rank,
        num_shards=shard.world_size,
        pad_last_batch=True,
        **_order(plan, seed, epoch),
    )
    return encoded, index


def feed_pictures(feed: PictureFeed) -> Node:
    """Return the node of a feed's pictures, encoded or, if all are stored so, decoded."""
    # Not both outputs with one unused, of which DALI warns.
    return fn.external_source(
        lambda info: feed(info)[0],
        batch=True,
        batch_info=True,
        dtype=types.UINT8,
        ndim=feed.ndim,
        layout=feed.layout,
    )


def _external(feed: Feed) -> list[dict[str, Node]]:
    """Return for each stage the nodes of the values that are fed to it."""
    names = feed.names()
    dtypes = [_TYPES[values.dtype.name] for values in feed.values(0)]
    if not dtypes:
        return [{} for _ in names]
    nodes = iter(fn.external_source(feed, num_outputs=len(dtypes), batch=True, batch_info=True, dtype=dtypes))
    return [{name: next(nodes) for name in stage} for stage in names]


_TYPES = {
    "float32": types.FLOAT,
    "bool": types.BOOL,
    "int8": types.INT8,
    "int16": types.INT16,
    "int32": types.INT32,
    "int64": types.INT64,
    "uint8": types.UINT8,
    "uint16": types.UINT16,
    "uint32": types.UINT32,
    "uint64": types.UINT64,
}


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
