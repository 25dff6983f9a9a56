"""What real DALI makes of files, and how pictures are compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from augment.config import SplitName, parse_aug
from augment.graph import Placement
from augment.pipeline import batches_per_epoch, build_pipeline
from augment.plan import Plan, build_plan

SIZE = 64
SEED = 11
Pixels = NDArray[Any]


def plan_of(steps: dict[str, Any], split: SplitName = "val", size: int = SIZE, **aug: object) -> Plan:
    return build_plan(parse_aug({"size": size, split: steps, **aug}), split)


def run(
    plan: Plan,
    files: Sequence[Path],
    device: torch.device,
    *,
    batch_size: int | None = None,
    epochs: int = 1,
    seed: int = SEED,
    raw: bool = True,
    prefetch: int = 2,
    **options: Any,
) -> tuple[Pixels, Pixels]:
    """Return what a pipeline makes of whole epochs: (epochs x files, size, size, 3), and the index of each file."""
    placement = Placement("gpu" if device.type == "cuda" else "cpu", prefetch=prefetch)
    batch_size = batch_size or len(files)
    pipeline = build_pipeline(plan, files, batch_size=batch_size, seed=seed, placement=placement, raw=raw, **options)
    images: list[Pixels] = []
    indices: list[Pixels] = []
    for _ in range(epochs):
        batches = [pipeline.run() for _ in range(batches_per_epoch(len(files), batch_size, 1))]
        # What follows the last file of an epoch is padding.
        for rows, column in ((images, 0), (indices, 1)):
            rows.append(np.concatenate([np.asarray(b[column].as_cpu().as_tensor()) for b in batches])[: len(files)])
    return np.concatenate(images), np.concatenate(indices)[:, 0]


def pixels(steps: dict[str, Any], files: Sequence[Path], device: torch.device, **aug: Any) -> Pixels:
    """Return the pictures of the val split, in the order of the files."""
    images, indices = run(plan_of(steps, **aug), files, device)
    assert indices.tolist() == list(range(len(files)))
    return images.astype(int)


def read(files: Sequence[Path]) -> Pixels:
    return np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files]).astype(int)


def assert_close(result: Pixels, expected: Pixels, *, most: float, mean: float) -> None:
    """Compare pictures: no value further off than `most`, of no picture more than `mean` on average."""
    off = np.abs(np.asarray(result, float) - np.asarray(expected, float))
    assert off.max() <= most
    assert off.reshape(len(off), -1).mean(axis=1).max() <= mean
