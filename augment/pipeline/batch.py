"""The batch that a loader yields."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from augment.data.display import Limits, displayable
from augment.params.pixel_format import RGB
from augment.recipe.plan import Plan


@dataclass  # not frozen: Lightning moves batches between devices by assigning to their fields
class Batch:
    """The images and targets that the model gets. It unpacks to `images, targets`.

    Attributes:
        images: (N, 3, height, width) float32 or float16, normalized, in channels_last memory.
        targets: (N,) int64 class indices. Mixed samples have (N, classes) float32, the share of each class. Labels and
            regression targets are (N, K) float32. Masks are (N, height, width) int64, keypoints (N, P, 3) float32.
            Objects are a list of N dicts of tensors, see `augment.data.targets`. Several kinds are in a dict.
        indices: (N,) int64, each sample's position in the split's files.
        views: all views of each sample, each like `images`, which is the first view.
        share: this rank's share of the samples that all ranks have at this step, in [0, 1]. A rank that has no samples
            left in the epoch repeats its last sample with share 0, so that all ranks make the same number of batches.
            Scores ignore that batch.
        frames: (N, 3, 3) float64 on the CPU, the matrices from stored pixels to pixels of `images`, see
            `augment.pipeline.geometry.frames`. None unless requested. A mosaic has the frame of its first tile.
        view_frames: the frames of all views, each like `frames`, which belongs to the first view.
        view_targets: with masks, boxes or keypoints: the targets of all views, each like `targets`.
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


def as_pixels(images: Tensor, plan: Plan | None, limits: Limits | None = None) -> NDArray[np.uint8]:
    """Convert images as fed, (N, channels, height, width), to displayable uint8 RGB, (N, height, width, 3).

    Without a plan, the images are RGB in [0, 1]. See `augment.data.display.displayable` for `limits`.
    """
    return displayable(as_levels(images, plan), plan.pixels if plan else RGB, limits)


def as_levels(images: Tensor, plan: Plan | None) -> NDArray[Any]:
    """Convert images as fed, (N, channels, height, width), to levels, (N, height, width, channels).

    See `PixelFormat.levels`. Without a plan, the images are RGB in [0, 1].
    """
    if images.dtype != torch.uint8:
        tiny = 255 * torch.finfo(images.dtype).eps
        images = images.float()
        mean, std = (plan.mean, plan.std) if plan else ((0.0,), (1.0,))
        images = images * images.new_tensor(std).view(-1, 1, 1) + images.new_tensor(mean).view(-1, 1, 1)
        images = (images * 255).nan_to_num()
        if plan is None or plan.pixels.is_bytes:
            images = images.round().clamp(0, 255).to(torch.uint8)
        else:
            images = images.where(images > tiny, 0)  # exactly 0 where it was 0 before the normalization
    return images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
