"""Images that are decoded already: their pipelines have no decoder, which takes seconds to create for a GPU."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from augment.data.dataset import ImageRef
from augment.data.images import MemoryImage, name_of, open_image


def pixels_of(image: ImageRef) -> NDArray[np.uint8]:
    """Return an image as (height, width, 3) uint8, RGB."""
    with open_image(image) as opened:
        return np.asarray(opened.convert("RGB"))


def decoded(images: Sequence[ImageRef]) -> tuple[MemoryImage, ...]:
    """Decode images into memory; one that is given several times is decoded once."""
    found = {image: _decode(image) for image in dict.fromkeys(images)}
    return tuple(found[image] for image in images)


def _decode(image: ImageRef) -> MemoryImage:
    return image if isinstance(image, MemoryImage) else MemoryImage(name_of(image), pixels_of(image))


def for_device(images: Sequence[ImageRef], device: torch.device) -> tuple[ImageRef, ...]:
    """Return images as pipelines of a device start fast: as they are for the CPU, decoded for the GPU.

    Tests of what happens to files (reading, shuffling, decoding) pass the files themselves.
    """
    return tuple(images) if device.type == "cpu" else decoded(images)
