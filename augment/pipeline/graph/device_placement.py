"""Choose where images are decoded and how many decoded ones are cached, from `aug.decode` and `aug.cache`."""

from collections.abc import Sequence
from contextlib import suppress
from statistics import fmean

import torch

from augment.data.dataset import ImageRef
from augment.data.image_faults import DECODER_ERRORS
from augment.data.images import are_decoded, are_paths, open_image
from augment.pipeline.graph.decoding import Placement
from augment.recipe.steps import Aug
from augment.support.errors import UserError


def place(aug: Aug, files: Sequence[ImageRef], device: torch.device, *, threads: int) -> Placement:
    """Return where images are decoded, of batches that are made on a device with CPU threads.

    The images are those of both splits if there are two: all pipelines of a process share one cache, of one size.
    """
    if device.type != "cuda":
        return Placement(prefetch=aug.prefetch, threads=threads)
    if are_decoded(files):
        reason = "decode and cache: nothing to do, for the images are stored decoded"
        return Placement("gpu", "mixed", 0, aug.prefetch, reason=reason).on(device, threads)
    pixels, cache, reason = _pixels(files), 0, ""
    if aug.cache != "off" and not are_paths(files):
        reason = "cache: off, for it knows images by paths in UTF-8, and these have none"
    elif aug.cache != "off" and aug.decode != "cpu":
        need = 1.1 * 3 * pixels * len(files) / 2**20  # MiB, a tenth more than what the headers of some say
        half = 0 if isinstance(aug.cache, int) else torch.cuda.mem_get_info(device)[0] / 2**21
        cache = aug.cache if isinstance(aug.cache, int) else int(min(half, need)) + 1
        reason = f"cache: {cache:,} MiB of GPU memory; all {len(files):,} images, decoded, take about {need:,.0f}"
    return Placement(
        decode="cpu" if aug.decode == "cpu" else "mixed",
        cache=cache,
        prefetch=aug.prefetch,
        hw_decoder_load=_hardware_share(pixels, threads) if aug.hw_decoder_load is None else aug.hw_decoder_load,
        auto=aug.decode == "auto",
        load_auto=aug.hw_decoder_load is None,
        reason=reason,
    ).on(device, threads)


def _pixels(files: Sequence[ImageRef]) -> float:
    """Return how many pixels the images have on average, from the headers of some."""
    found = []
    some = files[:: max(1, len(files) // 100)]
    for file in [file for file in some if _is_here(file)] or some[:1]:
        # What cannot be read is reported, or skipped, when its batch is made.
        with suppress(*DECODER_ERRORS, UserError), open_image(file) as image:
            found.append(image.width * image.height)
    return fmean(found or [0])


def _is_here(image: ImageRef) -> bool:
    """Whether an image can be read without fetching a shard."""
    file = getattr(image, "file", None)
    return file is None or file.is_here


def _hardware_share(pixels: float, threads: int) -> float:
    """Return the share of the JPEGs for which the hardware decoder takes as long as the CPU threads for the rest.

    The thread that feeds it takes 80 us for a JPEG, another thread 8 ns for each pixel, measured with photos of 50,000
    and 190,000 pixels on an H200. Very large ones take it longer, too, so its share is limited.
    """
    others = 8e-9 * pixels / threads
    return min(0.65, round(others / (others + 80e-6), 2))
