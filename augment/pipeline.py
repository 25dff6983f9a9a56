"""From a plan to a DALI graph. The only module that builds graphs.

    files -> decode and crop -> (size, size, 3) uint8 -> one operator a stage -> normalize -> float HWC

A graph also hands out each sample's index, by which the loader looks up its target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline

from augment.params import Interval
from augment.plan import Plan, Stage
from augment.sampler import Sampler, derive_seed

Node = Any  # a DALI DataNode: the package has no types
Device = Literal["cpu", "gpu"]
Matrix = NDArray[np.float32]

READER = "reader"

# Samples whose parameters are drawn at once: one vectorized step for several batches costs little more than for one.
_BLOCK = 4096


@dataclass(frozen=True)
class Shard:
    """Which part of an epoch this process reads."""

    rank: int = 0
    world_size: int = 1


class Feed:
    """The matrices of every batch, for DALI's external_source: a pure function of the batch's number.

    Args:
        sampler: draws the parameters of the plan's steps.
        batch_size: samples in a batch.
        batches: batches in an epoch, the padded last one included.
        epoch: epoch of batch 0.
        fixed: stay in that epoch for ever, as validation does.
    """

    def __init__(self, sampler: Sampler, *, batch_size: int, batches: int, epoch: int, fixed: bool) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._batches = batches
        self._epoch = epoch
        self._fixed = fixed
        self._together = max(1, _BLOCK // batch_size)
        self._block: tuple[tuple[int, int], list[Matrix]] | None = None

    def __call__(self, info: types.BatchInfo) -> list[Matrix]:
        """Return for each stage the matrices of batch `info.iteration`, as the operator of the stage takes them."""
        return self.matrices(info.iteration)

    def matrices(self, iteration: int) -> list[Matrix]:
        """Return for each stage (batch_size, 3, 3) or (batch_size, 3, 4) float32 of the batch of that number."""
        passed, batch = divmod(iteration, self._batches)
        epoch = self._epoch + (0 if self._fixed else passed)
        number, offset = divmod(batch, self._together)
        if self._block is None or self._block[0] != (epoch, number):
            self._block = (epoch, number), self._draw(epoch, number * self._together)
        rows = slice(offset * self._batch_size, (offset + 1) * self._batch_size)
        return [matrix[rows] for matrix in self._block[1]]

    def _draw(self, epoch: int, batch: int) -> list[Matrix]:
        count = min(self._together, self._batches - batch) * self._batch_size
        draws = self._sampler.draw(epoch, batch * self._batch_size, count)
        plan = self._sampler.plan
        return [_for_operator(stage, stage.matrix(draws, plan.size), plan.size) for stage in plan.stages]


def _for_operator(stage: Stage, matrix: NDArray[np.float64], size: int) -> Matrix:
    """Turn a stage's matrices into what its DALI operator takes.

    A warp asks, for each pixel of the result, where it comes from, in pixels from the center of the top left one.
    """
    if stage.kind == "geometry":
        middle = (size - 1) / 2
        there = np.array([[1, 0, middle], [0, 1, middle], [0, 0, 1]])
        back = np.array([[1, 0, -middle], [0, 1, -middle], [0, 0, 1]])
        # Halves of pixels are exact, so the identity stays the identity: a skipped sample is not resampled.
        matrix = there @ np.linalg.inv(matrix) @ back
    return np.ascontiguousarray(matrix, np.float32)


class Picture:
    """What a crop op asks of the graph: the encoded picture, decoded and resized in one way or another."""

    def __init__(self, encoded: Node, device: Device, seed: int) -> None:
        self._encoded = encoded
        self._decoder = {
            "device": "mixed" if device == "gpu" else "cpu",
            "output_type": types.RGB,
            # The hardware decoder rounds differently: another share of it would be another picture.
            **({"hw_decoder_load": 0.65} if device == "gpu" else {}),
        }
        self._seed = seed

    def decode(self) -> Node:
        """Return the whole picture, (height, width, 3) uint8 RGB, upright as its EXIF block says."""
        return fn.decoders.image(self._encoded, **self._decoder)

    def decode_random_window(self, area_range: Interval, aspect_range: Interval) -> Node:
        """Return a random window, (height, width, 3) uint8 RGB; DALI draws it, by the crop's own seed."""
        return fn.decoders.image_random_crop(
            self._encoded,
            random_area=list(area_range),
            random_aspect_ratio=list(aspect_range),
            num_attempts=10,
            seed=self._seed,
            **self._decoder,
        )

    def centered_square(self, image: Node, scale: float) -> tuple[Node, Node]:
        """Return start and end, (y, x) in pixels, of a centered square of `scale` times the short side."""
        sides = fn.cast(image.shape(), dtype=types.FLOAT)[:2]
        side = scale * fn.reductions.min(sides)
        return (sides - side) / 2, (sides + side) / 2

    def resize(self, image: Node, size: int, window: tuple[Node, Node] | None = None) -> Node:
        """Return the window of a picture, by default all of it, as (size, size, 3) uint8; antialiased."""
        roi = {} if window is None else {"roi_start": window[0], "roi_end": window[1]}
        return fn.resize(image, size=[size, size], interp_type=types.INTERP_LINEAR, antialias=True, **roi)


def _apply(images: Node, stage: Stage, matrix: Node, device: Device) -> Node:
    if stage.kind == "color":
        return fn.coord_transform(images, MT=matrix, dtype=types.UINT8)
    mode, fill = stage.border
    return fn.experimental.warp_perspective(
        images,
        matrix.gpu() if device == "gpu" else matrix,
        border_mode=mode,
        fill_value=[float(fill)] * 3,
        pixel_origin="center",
        interp_type=types.INTERP_LINEAR,
    )


def _normalize(images: Node, plan: Plan, half: bool) -> Node:
    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT16 if half else types.FLOAT,
        output_layout="HWC",
        mean=[255 * m for m in plan.mean],
        std=[255 * s for s in plan.std],
    )


def build_pipeline(
    plan: Plan,
    files: Sequence[Path],
    *,
    batch_size: int,
    seed: int,
    epoch: int = 0,
    device: Device = "cpu",
    shard: Shard | None = None,
    threads: int = 2,
    prefetch: int = 2,
    half: bool = False,
    raw: bool = False,
    checkpoint: str | None = None,
) -> Pipeline:
    """Build the DALI pipeline of a plan; each run gives one batch, the last one of an epoch padded.

    Args:
        plan: what is done to the pictures.
        files: paths of the encoded pictures; a sample's index is its place here.
        batch_size: samples in a batch.
        seed: of the run; shuffle, crop and steps each derive their own from it.
        epoch: the first epoch that is read.
        device: where decoding and augmentation run; "gpu" reads encoded pictures on the CPU.
        shard: which part of each epoch to read; all of it by default.
        threads: CPU threads.
        prefetch: batches prepared ahead.
        half: float16 in place of float32.
        raw: leave out the normalization: uint8 pictures, for pictures and tests.
        checkpoint: state to go on from, of a pipeline that was built with the same arguments.

    Returns:
        A pipeline with two outputs: images, (batch, size, size, 3), normalized float HWC, and index, (batch, 1) int32.
    """
    shard = shard or Shard()
    train = plan.split == "train"
    feed = Feed(
        Sampler(plan, seed, shard.rank),
        batch_size=batch_size,
        batches=batches_per_epoch(len(files), batch_size, shard.world_size),
        epoch=epoch,
        fixed=not train,
    )

    pipeline = Pipeline(
        batch_size=batch_size,
        num_threads=threads,
        device_id=0 if device == "gpu" else None,
        prefetch_queue_depth=prefetch,
        # The executor whose outputs stay valid for as long as somebody holds them.
        exec_dynamic=True,
        enable_checkpointing=True,
        checkpoint=checkpoint,
        seed=_dali_seed(seed, plan.split, "pipeline", epoch, shard.rank),
    )
    with pipeline:
        encoded, index = fn.readers.file(
            name=READER,
            files=[str(file) for file in files],
            labels=list(range(len(files))),
            shard_id=shard.rank,
            num_shards=shard.world_size,
            pad_last_batch=True,
            **_order(plan, seed, epoch),
        )
        picture = Picture(encoded, device, _dali_seed(seed, plan.split, "crop", epoch, shard.rank))
        images = plan.crop.op.function(picture, plan.size, **plan.crop.op.values(plan.crop.params, {}))
        if plan.stages:
            matrices = fn.external_source(
                feed, num_outputs=len(plan.stages), batch=True, batch_info=True, dtype=types.FLOAT
            )
            for stage, matrix in zip(plan.stages, matrices, strict=True):
                images = _apply(images, stage, matrix, device)
        if device == "gpu":
            index = index.gpu()
        pipeline.set_outputs(images if raw else _normalize(images, plan, half), index)
    return pipeline


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
