"""The kernel that runs the programs of samples, see `augment.pipeline.kernels.instructions`. It needs Triton."""

# Python types cannot describe Triton's language.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from augment.pipeline.kernels.jpeg import jpeg
from augment.pipeline.kernels.local_ops import (
    byte,
    correlate,
    downscale,
    erase,
    gaussian_blur,
    gaussian_noise,
    load,
    matrix_of,
    mean_color,
    source_of,
    store,
    within,
)
from augment.pipeline.kernels.opcodes import CODES, quantization_tables

# The codes of stages, from the table in `augment.pipeline.kernels.opcodes`.
(
    _GEOMETRY, _COLOR, _COLOR_OF_MEAN, _SHARPEN, _POSTERIZE, _SOLARIZE, _AUTOCONTRAST, _EQUALIZE,
    _BLUR, _MOTION, _NOISE, _JPEG, _DOWNSCALE, _ERASE,
) = map(tl.constexpr, CODES.values())  # fmt: skip

_BLOCK = 1024  # pixels at a time. With larger blocks, fewer samples would fit on a multiprocessor
_WARPS = 8


def launch(
    images: Tensor, programs: Tensor, out: Tensor, mean: Sequence[float], std: Sequence[float],
    *, stages: int, every_op: bool, plane: bool,
) -> None:  # fmt: skip
    """Run the program of each sample.

    Args:
        images: (N, height, width, 3) uint8, contiguous.
        programs: (N, numbers) float32: for each stage its code, the count of its values, and the values.
        out: the result, (N, height, width, 3), normalized float or unnormalized uint8.
        mean: mean of each channel in 0..255.
        std: standard deviation of each channel in 0..255.
        stages: number of stages.
        every_op: whether to also compile the ops that policies do not use.
        plane: whether to allocate float32 memory for one channel of each sample, which blur, JPEG and downscale need.
    """
    count, height, width = images.shape[:3]
    buffers = torch.empty((2, *images.shape), dtype=torch.uint8, device=images.device)
    tables = torch.empty((count, 3, 256), dtype=torch.uint8, device=images.device)
    room = 64 * -(-height // 8) * -(-width // 8)  # whole blocks of a JPEG
    planes = torch.empty((count, room), dtype=torch.float32, device=images.device) if plane else programs
    quantization = _quantization(images.device) if plane else programs
    scale = [1.0 / s for s in std]
    raw = out.dtype == torch.uint8
    with torch.cuda.device_of(images):
        _run[(count,)](
            images, buffers, tables, planes, quantization, programs, out,
            stages, programs.shape[1], room, height, width, *mean, *scale,
            raw=raw, every_op=every_op, block=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip


@cache
def _quantization(device: torch.device) -> Tensor:
    return torch.from_numpy(quantization_tables()).to(device)


@triton.jit(do_not_specialize=["stages", "numbers", "room", "height", "width"])
def _run(
    images, buffers, tables, planes, quantization, programs, out, stages, numbers, room, height, width,
    mean_r, mean_g, mean_b, scale_r, scale_g, scale_b,
    raw: tl.constexpr, every_op: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    area = height * width
    source = images + sample * area * 3
    other = tl.num_programs(0).to(tl.int64) * area * 3  # the distance between the two buffers
    table, plane = tables + sample * 768, planes + sample * room
    given = programs + sample * numbers
    at = 0
    for _ in range(stages):
        code, count = tl.load(given).to(tl.int32), tl.load(given + 1).to(tl.int32)
        given += 2
        if code != 0:
            target = buffers + sample * area * 3 + at * other
            if code == _GEOMETRY:
                _warp(source, target, given, height, width, block)
            elif code == _SHARPEN:
                correlate(source, target, given, 3, height, width, block)
            elif (code == _COLOR) | (code == _COLOR_OF_MEAN):
                _color(source, target, given, code == _COLOR_OF_MEAN, area, block)
            elif code <= _EQUALIZE:
                for channel in range(3):
                    _table(source + channel, table + 256 * channel, given, code, area, block)
                tl.debug_barrier()
                _look_up(source, target, table, area, block)
            elif every_op:
                _local(source, target, plane, quantization, given, code, height, width, block)
            # The next stage reads what other threads of the block wrote.
            tl.debug_barrier()
            source = target
            at = 1 - at
        given += count
    target = out + sample * area * 3
    for start in range(0, area, block):
        pixel = start + tl.arange(0, block)
        inside = pixel < area
        for channel in tl.static_range(3):
            level = tl.load(source + 3 * pixel + channel, mask=inside)
            if not raw:
                mean = mean_r if channel == 0 else mean_g if channel == 1 else mean_b
                scale = scale_r if channel == 0 else scale_g if channel == 1 else scale_b
                level = (level.to(tl.float32) - mean) * scale
            tl.store(target + 3 * pixel + channel, level, mask=inside)


@triton.jit
def _local(source, target, plane, quantization, given, code, height, width, block: tl.constexpr):
    if code == _BLUR:
        gaussian_blur(source, target, plane, given, height, width, block)
    elif code == _MOTION:
        correlate(source, target, given + 1, tl.load(given).to(tl.int32), height, width, block)
    elif code == _NOISE:
        gaussian_noise(source, target, given, height * width, block)
    elif code == _JPEG:
        jpeg(source, target, plane, quantization, given, height, width, block)
    elif code == _DOWNSCALE:
        downscale(source, target, plane, given, height, width, block)
    else:
        erase(source, target, given, height, width, block)


@triton.jit
def _warp(source, target, m, height, width, block: tl.constexpr):
    a, b, c, d, e, f, g, h, i = matrix_of(m)
    border, fill = tl.load(m + 9).to(tl.int32), tl.load(m + 10)
    for start in range(0, height * width, block):
        pixel = start + tl.arange(0, block)
        kept = pixel < height * width
        column, row, right_share, lower_share = source_of(a, b, c, d, e, f, g, h, i, pixel, width)
        red, green, blue = tl.zeros([block], tl.float32), tl.zeros([block], tl.float32), tl.zeros([block], tl.float32)
        for corner in range(4):
            u, v = column + corner % 2, row + corner // 2
            across = tl.where(corner % 2 == 1, right_share, 1 - right_share)
            share = across * tl.where(corner // 2 == 1, lower_share, 1 - lower_share)
            shown = (border != 0) | ((u >= 0) & (u < width) & (v >= 0) & (v < height))
            there = source + 3 * (within(v, height, border) * width + within(u, width, border))
            level_r, level_g, level_b = load(there, kept)
            red += share * tl.where(shown, level_r, fill)
            green += share * tl.where(shown, level_g, fill)
            blue += share * tl.where(shown, level_b, fill)
        store(target + 3 * pixel, red, green, blue, kept)


@triton.jit
def _offsets(source, m, area, block: tl.constexpr):
    """Apply a (3, 4) matrix to the mean color. Return the numbers to add to each channel."""
    r, g, b = mean_color(source, area, block)
    return (
        tl.load(m) * r + tl.load(m + 1) * g + tl.load(m + 2) * b + tl.load(m + 3),
        tl.load(m + 4) * r + tl.load(m + 5) * g + tl.load(m + 6) * b + tl.load(m + 7),
        tl.load(m + 8) * r + tl.load(m + 9) * g + tl.load(m + 10) * b + tl.load(m + 11),
    )


@triton.jit
def _color(source, target, m, of_mean, area, block: tl.constexpr):
    # `m` is a (3, 4) matrix, or a (3, 3) matrix followed by a (3, 4) matrix for the mean.
    if of_mean:
        add_r, add_g, add_b = _offsets(source, m + 9, area, block)
        row = 3
    else:
        add_r, add_g, add_b = tl.load(m + 3), tl.load(m + 7), tl.load(m + 11)
        row = 4
    for start in range(0, area, block):
        pixel = start + tl.arange(0, block)
        inside = pixel < area
        r, g, b = load(source + 3 * pixel, inside)
        red = tl.load(m) * r + tl.load(m + 1) * g + tl.load(m + 2) * b + add_r
        green = tl.load(m + row) * r + tl.load(m + row + 1) * g + tl.load(m + row + 2) * b + add_g
        blue = tl.load(m + 2 * row) * r + tl.load(m + 2 * row + 1) * g + tl.load(m + 2 * row + 2) * b + add_b
        store(target + 3 * pixel, red, green, blue, inside)


@triton.jit
def _table(source, table, given, code, area, block: tl.constexpr):
    """Write the lookup table of one channel, (256,)."""
    level = tl.arange(0, 256)
    new = level
    if code == _POSTERIZE:
        new = level & tl.load(given).to(tl.int32)
    elif code == _SOLARIZE:
        new = tl.where(level >= tl.load(given).to(tl.int32), 255 - level, level)
    elif code == _AUTOCONTRAST:
        lowest, highest = tl.full([block], 255, tl.int32), tl.zeros([block], tl.int32)
        for start in range(0, area, block):
            pixel = start + tl.arange(0, block)
            found = tl.load(source + 3 * pixel, mask=pixel < area, other=0).to(tl.int32)
            lowest = tl.minimum(lowest, tl.where(pixel < area, found, 255))
            highest = tl.maximum(highest, found)
        low, high = tl.min(lowest), tl.max(highest)
        stretched = byte((level - low).to(tl.float32) * (255.0 / tl.maximum(high - low, 1).to(tl.float32)))
        new = tl.where(high > low, stretched.to(tl.int32), level)
    else:
        counts = tl.zeros([256], tl.int32)
        for start in range(0, area, block):
            pixel = start + tl.arange(0, block)
            counts += tl.histogram(tl.load(source + 3 * pixel, mask=pixel < area, other=0).to(tl.int32), 256)
        beyond = (area + block - 1) // block * block - area
        counts -= tl.where(level == 0, beyond, 0)
        below = tl.cumsum(counts, 0)
        darkest = tl.min(tl.where(below > 0, below, area))
        spread = (below - darkest).to(tl.float32) * (255.0 / tl.maximum(area - darkest, 1).to(tl.float32))
        new = tl.where(darkest < area, byte(spread).to(tl.int32), level)
    tl.store(table + level, new.to(tl.uint8))


@triton.jit
def _look_up(source, target, table, area, block: tl.constexpr):
    for start in range(0, area, block):
        pixel = start + tl.arange(0, block)
        inside = pixel < area
        for channel in tl.static_range(3):
            level = tl.load(source + 3 * pixel + channel, mask=inside, other=0).to(tl.int32)
            tl.store(target + 3 * pixel + channel, tl.load(table + 256 * channel + level, mask=inside), mask=inside)
