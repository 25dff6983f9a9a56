"""What a loader hands out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from augment.recipe.plan import Plan


@dataclass  # not frozen: Lightning moves batches between devices by assigning to their fields
class Batch:
    """The images and targets that the model gets; unpacks to `images, targets`.

    Attributes:
        images: (N, 3, height, width) float32 or float16, normalized, in channels_last memory.
        targets: (N,) int64 class indices; if samples were mixed, (N, classes) float32, the share of each class. Labels
            and numbers are (N, K) float32. Masks are (N, height, width) int64, points (N, P, 3) float32, and objects a
            list of N dicts of tensors, see `augment.data.targets`; several kinds are a dict of these.
        indices: (N,) int64, each sample's position in the split's files.
        views: all views of each sample, each in the form of `images`, which is the first one.
        share: this rank's share of the samples in the batches of all ranks at this step, in [0, 1]. 0: this rank has
            no samples left in the epoch and repeats its last one, alone, so that all ranks make the same number of
            batches; scores leave it out.
        frames: (N, 3, 3) float64 on the CPU, from pixels of the stored images to those of `images`, see
            `augment.pipeline.geometry.frames`; None unless they are asked for. Of a mosaic, that of its first tile.
        view_frames: the frames of all views, each in the form of `frames`, which are those of the first one.
        view_targets: with masks, boxes or points: the targets of all views, each in the form of `targets`.
    """

    images: Tensor
    targets: Any
    indices: Tensor
    views: tuple[Tensor, ...] = ()
    share: float = 1.0
    frames: Tensor | None = None
    view_frames: tuple[Tensor, ...] = ()
    view_targets: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Any]:
        yield self.images
        yield self.targets


def as_pixels(images: Tensor, plan: Plan | None) -> NDArray[np.uint8]:
    """Return images as fed, (N, 3, height, width), as (N, height, width, 3); without a plan they are in [0, 1]."""
    if images.dtype != torch.uint8:
        images = images.float()
        mean, std = (images.new_tensor(v).view(-1, 1, 1) for v in ((plan.mean, plan.std) if plan else ((0.0,), (1.0,))))
        images = ((images * std + mean) * 255).nan_to_num().round().clamp(0, 255).to(torch.uint8)
    return images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
