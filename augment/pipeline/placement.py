"""Choose where images are decoded and how many decoded ones are cached, from `aug.decode` and `aug.cache`."""

from collections.abc import Sequence
from contextlib import suppress
from statistics import fmean

import torch

from augment.data.dataset import ImageRef
from augment.data.faults import DECODER_ERRORS
from augment.data.images import are_decoded, are_paths, open_image
from augment.pipeline.graph import Placement
from augment.recipe.steps import Aug
from augment.support.errors import UserError

_MIB = 2**20


def place(aug: Aug, files: Sequence[ImageRef], device: torch.device, *, threads: int) -> Placement:
    """Return where images are decoded, of batches that are made on a device with CPU threads.

    The images are those of both splits if there are two: all pipelines of a process share one cache, of one size.
    """
    if device.type != "cuda":
        return Placement(prefetch=aug.prefetch, threads=threads)
    if are_decoded(files):
        reason = "decode and cache: nothing to do, for the images are stored decoded"
        return Placement("gpu", "mixed", 0, aug.prefetch, reason=reason).on(device, threads)
    reasons, cache = [], 0
    if aug.cache != "off" and not are_paths(files):
        reasons.append("cache: off, for it knows images by paths in UTF-8, and these have none")
    elif aug.cache != "off" and aug.decode != "cpu":
        cache, need = cache_size(aug.cache, files, device), decoded_bytes(files) / _MIB
        reasons.append(
            f"cache: {cache:,} MiB of GPU memory; all {len(files):,} images, decoded, take about {need:,.0f}"
        )
    return Placement(
        decode="cpu" if aug.decode == "cpu" else "mixed",
        cache=cache,
        prefetch=aug.prefetch,
        hw_decoder_load=_hardware_share(files, threads) if aug.hw_decoder_load is None else aug.hw_decoder_load,
        auto=aug.decode == "auto",
        load_auto=aug.hw_decoder_load is None,
        reason="\n".join(reasons),
    ).on(device, threads)


def cache_size(cache: int | str, files: Sequence[ImageRef], device: torch.device | None = None) -> int:
    """Return the MiB of GPU memory for decoded images, of `aug.cache`: "gpu" or MiB."""
    if isinstance(cache, int):
        return cache
    free, _ = torch.cuda.mem_get_info(device)
    return min(free // 2, decoded_bytes(files)) // _MIB + 1


def decoded_bytes(files: Sequence[ImageRef]) -> int:
    """Estimate, from the headers of some, how many bytes the images take as RGB; a tenth more than they did."""
    return int(1.1 * 3 * _pixels(files) * len(files))


def _pixels(files: Sequence[ImageRef]) -> float:
    """Return how many pixels the images have on average, from the headers of some."""
    found = []
    for file in files[:: max(1, len(files) // 100)]:
        # What cannot be read is reported, or skipped, when its batch is made.
        with suppress(*DECODER_ERRORS, UserError), open_image(file) as image:
            found.append(image.width * image.height)
    return fmean(found or [0])


def _hardware_share(files: Sequence[ImageRef], threads: int) -> float:
    """Return the share of the JPEGs for which the hardware decoder takes as long as the CPU threads for the rest.

    The thread that feeds it takes 80 us for a JPEG, another thread 8 ns for each pixel, measured with photos of 50,000
    and 190,000 pixels on an H200 (docs/speed.md). Very large ones take it longer, too, so its share is limited.
    """
    others = 8e-9 * _pixels(files) / threads
    return min(0.65, round(others / (others + 80e-6), 2))
