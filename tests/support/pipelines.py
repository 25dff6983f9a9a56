"""What real DALI makes of files, and how images are compared."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from decoded import for_device
from rendering import SEED, SIZE, Pixels, plan_of, read

from augment.data.dataset import ImageRef
from augment.pipeline.graph.build import BuiltPipeline, build_pipeline
from augment.pipeline.graph.decoding import OutputFormat, Placement
from augment.pipeline.graph.sample_order import RankShard, Reading
from augment.recipe.plan import Plan

__all__ = ["SEED", "SIZE", "Pixels", "assert_close", "pixels", "plan_of", "read", "run"]


def run(
    plan: Plan,
    files: Sequence[ImageRef],
    device: torch.device,
    *,
    batch_size: int | None = None,
    seed: int = SEED,
    raw: bool = True,
    half: bool = False,
    decode: bool = False,
    epoch: int = 0,
    shard: RankShard | None = None,
) -> tuple[Pixels, Pixels]:
    """Return what a pipeline makes of an epoch: (files, size, size, 3), and the index of each file.

    Args:
        decode: hand the files themselves to a pipeline on the GPU too, see `for_device`.
    """
    if not decode:
        files = for_device(files, device)
    placement = Placement("gpu" if device.type == "cuda" else "cpu", threads=2)
    batch_size = batch_size or len(files)
    reading = Reading(files, batch_size, seed, epoch, shard or RankShard())
    pipeline = build_pipeline(plan, reading, placement, OutputFormat(half, raw))
    pipeline.build()
    stream = torch.cuda.current_stream() if device.type == "cuda" else None
    batches = [_outputs(pipeline, stream) for _ in range(-(-len(files) // batch_size))]
    # What follows the last file of an epoch is padding.
    images, indices = (np.concatenate(column)[: len(files)] for column in zip(*batches, strict=True))
    return images, indices[:, 0]


def _outputs(pipeline: BuiltPipeline, stream: Any) -> list[Pixels]:
    pipeline.schedule_run()
    made = pipeline.take_outputs(stream)
    return [output.cpu().numpy().copy() for output in (made.views[0], made.index)]


def pixels(
    steps: dict[str, Any], files: Sequence[ImageRef], device: torch.device, *, decode: bool = False, **aug: Any
) -> Pixels:
    """Return the images of the val split, in the order of the files."""
    images, indices = run(plan_of(steps, **aug), files, device, decode=decode)
    assert indices.tolist() == list(range(len(files)))
    return images.astype(int)


def assert_close(result: Pixels, expected: Pixels, *, most: float, mean: float) -> None:
    """Compare images: no value further off than `most`, of no image more than `mean` on average."""
    off = np.abs(np.asarray(result, float) - np.asarray(expected, float))
    assert off.max() <= most
    assert off.reshape(len(off), -1).mean(axis=1).max() <= mean
