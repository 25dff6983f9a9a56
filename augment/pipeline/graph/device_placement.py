"""Chooses the decoder and the size of its cache, from `aug.decode` and `aug.cache`."""

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
    """Choose where images are decoded, for batches on a device.

    With two splits, `files` must be the images of both, because all pipelines of a process share one cache.
    """
    if device.type != "cuda":
        return Placement(prefetch=aug.prefetch, threads=threads)
    if are_decoded(files):
        reason = "decode and cache: not used, because the images are stored decoded"
        return Placement("gpu", "mixed", 0, aug.prefetch, reason=reason).on(device, threads)
    pixels, cache, reason = _pixels(files), 0, ""
    if aug.cache != "off" and not are_paths(files):
        reason = "cache: off, because it works only if each image is a separate file with a UTF-8 name"
    elif aug.cache != "off" and aug.decode != "cpu":
        need = 1.1 * 3 * pixels * len(files) / 2**20  # MiB. Add 10%, because `pixels` is an estimate
        half = 0 if isinstance(aug.cache, int) else torch.cuda.mem_get_info(device)[0] / 2**21
        cache = aug.cache if isinstance(aug.cache, int) else int(min(half, need)) + 1
        reason = f"cache: {cache:,} MiB of GPU memory. All {len(files):,} decoded images need about {need:,.0f} MiB"
    return Placement(
        decode=aug.decode,
        cache=cache,
        prefetch=aug.prefetch,
        hw_decoder_load=_hardware_share(pixels, threads) if aug.hw_decoder_load is None else aug.hw_decoder_load,
        load_auto=aug.hw_decoder_load is None,
        reason=reason,
    ).on(device, threads)


def _pixels(files: Sequence[ImageRef]) -> float:
    """Estimate the mean number of pixels per image from the headers of about 100 images."""
    found = []
    some = files[:: max(1, len(files) // 100)]
    for file in [file for file in some if _is_here(file)] or some[:1]:
        # An unreadable image is reported or skipped later, when its batch is made.
        with suppress(*DECODER_ERRORS, UserError), open_image(file) as image:
            found.append(image.width * image.height)
    return fmean(found or [0])


def _is_here(image: ImageRef) -> bool:
    """Return whether an image can be read without downloading a shard."""
    file = getattr(image, "file", None)
    return file is None or file.is_here


def _hardware_share(pixels: float, threads: int) -> float:
    """Return the share of JPEGs that keeps the hardware decoder and the CPU threads busy for the same time.

    The CPU thread that feeds the hardware decoder takes 80 us per JPEG. The other CPU threads take 8 ns per pixel. Both
    times were measured on an H200 with photos of 50,000 and 190,000 pixels. The share has a limit, because the hardware
    decoder takes longer for very large images.
    """
    others = 8e-9 * pixels / threads
    return min(0.65, round(others / (others + 80e-6), 2))
