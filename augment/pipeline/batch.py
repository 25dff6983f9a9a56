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
    """The images and targets that the model gets. A batch unpacks to `images, targets`.

    Attributes:
        images: (N, channels, height, width) float32 or float16, normalized, in channels_last memory.
        targets: class indices are (N,) int64, or the share of each class, (N, classes) float32, in mixed samples.
            Labels and regression targets are (N, K) float32, masks (N, height, width) int64, keypoints (N, P, 3)
            float32. Objects are a list of N dicts of tensors, see `augment.data.targets`. A dict holds several kinds.
        indices: (N,) int64, the index of each sample in the split.
        views: all views of each sample, each like `images`, which is the first view.
        share: this rank's share of the samples that all ranks have at this step, in [0, 1]. All ranks make the same
            number of batches. A rank without samples left in the epoch repeats its last sample with share 0. Metrics
            ignore that batch.
        frames: (N, 3, 3) float64 on the CPU, the matrices that map stored pixels to pixels of `images`, see
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
    """Convert model input, (N, channels, height, width), to uint8 RGB for display, (N, height, width, 3).

    Without a plan, the images are RGB in [0, 1]. See `augment.data.display.displayable` for `limits`.
    """
    return displayable(as_levels(images, plan), plan.pixels if plan else RGB, limits)


def as_levels(images: Tensor, plan: Plan | None) -> NDArray[Any]:
    """Undo the normalization of model input, (N, channels, height, width). Return (N, height, width, channels).

    The result is in levels from 0 to 255, see `PixelFormat.levels`. Without a plan, the images are RGB in [0, 1].
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
            images = images.where(images > tiny, 0)  # rounding must not turn level 0 into another level
    return images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
