"""Choose where images are decoded and how many decoded ones are cached, from `aug.decode` and `aug.cache`."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean
from typing import Literal

import torch
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline

from augment.data import dataset
from augment.data.faults import DECODER_ERRORS
from augment.data.images import are_decoded, are_paths, open_image
from augment.pipeline.build import feed_images
from augment.pipeline.graph import GraphImage, Placement
from augment.pipeline.reading import ImageFeed, Reading
from augment.recipe.steps import Aug
from augment.support.errors import UserError

_MIB = 2**20

# The trial: batches that are decoded to warm up, and to be timed.
_WARM, _TIMED, _TRIAL_BATCH = 3, 12, 128


def place(
    aug: Aug, files: Sequence[dataset.ImageRef], device: torch.device, *, threads: int, trial: bool = True
) -> Placement:
    """Return where images are decoded, of batches that are made on a device with CPU threads.

    The images are those of both splits if there are two: all pipelines of a process share one cache, of one size.
    Without a trial, `aug.decode=auto` is "mixed".
    """
    if device.type != "cuda":
        return Placement(prefetch=aug.prefetch, threads=threads)
    if are_decoded(files):
        reason = "decode and cache: nothing to do, for the images are stored decoded"
        return Placement("gpu", "mixed", 0, aug.prefetch, reason=reason).on(device, threads)
    load = _hardware_share(files, threads) if aug.hw_decoder_load is None else aug.hw_decoder_load
    placement = Placement("gpu", "mixed", 0, aug.prefetch, load, aug.decode == "auto", aug.hw_decoder_load is None)
    placement = placement.on(device, threads)
    decode: Literal["cpu", "mixed"] = "cpu" if aug.decode == "cpu" else "mixed"
    reasons = []
    if aug.decode == "auto" and trial:
        decode, reason = _try_both(placement, files)
        reasons.append(reason)
    cache = cache_size(aug.cache, files, device) if decode == "mixed" and are_paths(files) else 0
    if aug.cache != "off" and not are_paths(files):
        reasons.append("cache: off, for it knows images by paths in UTF-8, and these have none")
    if cache:
        need = decoded_bytes(files) / _MIB
        reasons.append(
            f"cache: {cache:,} MiB of GPU memory; all {len(files):,} images, decoded, take about {need:,.0f}"
        )
    return replace(placement, decode=decode, cache=cache, reason="\n".join(reasons))


def cache_size(cache: int | str, files: Sequence[dataset.ImageRef], device: torch.device | None = None) -> int:
    """Return the MiB of GPU memory for decoded images, of `aug.cache`: "off", "gpu" or MiB."""
    if isinstance(cache, int):
        return cache
    if cache == "off":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    return min(free // 2, decoded_bytes(files)) // _MIB + 1


def decoded_bytes(files: Sequence[dataset.ImageRef]) -> int:
    """Estimate, from the headers of some, how many bytes the images take as RGB; a tenth more than they did."""
    return int(1.1 * 3 * _pixels(files) * len(files))


def _pixels(files: Sequence[dataset.ImageRef]) -> float:
    """Return how many pixels the images have on average, from the headers of some."""
    found = []
    for file in files[:: max(1, len(files) // 100)]:
        # What cannot be read is reported, or skipped, when its batch is made.
        with suppress(*DECODER_ERRORS, UserError), open_image(file) as image:
            found.append(image.width * image.height)
    return fmean(found or [0])


def _hardware_share(files: Sequence[dataset.ImageRef], threads: int) -> float:
    """Return the share of the JPEGs for which the hardware decoder takes as long as the CPU threads for the rest.

    The thread that feeds it takes 80 us for a JPEG, another thread 8 ns for each pixel, measured with photos of 50,000
    and 190,000 pixels on an H200 (docs/speed.md). Very large ones take it longer, too, so its share is limited.
    """
    others = 8e-9 * _pixels(files) / threads
    return min(0.65, round(others / (others + 80e-6), 2))


def _try_both(placement: Placement, files: Sequence[dataset.ImageRef]) -> tuple[Literal["cpu", "mixed"], str]:
    """Decode some images in both ways; return the faster one, and what was measured."""
    ways: tuple[Literal["cpu", "mixed"], ...] = ("mixed", "cpu")
    speeds = {way: _decoding_speed(replace(placement, decode=way), files) for way in ways}
    faster = max(ways, key=lambda way: speeds[way])
    shown = ", ".join(f"{way} {speed:,.0f} img/s" for way, speed in speeds.items())
    return faster, f"decode: {faster}, for a trial of decoding alone gave {shown}"


def _decoding_speed(placement: Placement, files: Sequence[dataset.ImageRef]) -> float:
    pipeline = Pipeline(
        batch_size=_TRIAL_BATCH,
        num_threads=placement.threads,
        device_id=placement.device_id,
        exec_dynamic=True,
        prefetch_queue_depth=2,
    )
    with pipeline:
        if are_paths(files):
            names = [str(file) for file in files[: (_WARM + _TIMED) * _TRIAL_BATCH]]
            encoded, _ = fn.readers.file(files=names, pad_last_batch=True, dont_use_mmap=True)
        else:
            encoded = feed_images(ImageFeed(Reading(files, _TRIAL_BATCH, seed=0)))
        pipeline.set_outputs(GraphImage(encoded, placement, seed=0).decode())
    for batches in (_WARM, _TIMED):
        start = time.perf_counter()
        for _ in range(batches):
            pipeline.run()
        if placement.device == "gpu":
            torch.cuda.synchronize(placement.gpu)
    return _TIMED * _TRIAL_BATCH / (time.perf_counter() - start)
