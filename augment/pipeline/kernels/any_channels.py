"""Kernels for images with any number of channels, whose levels are bytes or floats. They need Triton.

Like the kernels for RGB, one kernel resizes windows, and another runs the programs of samples.

Each thread works on groups of neighboring channels of a pixel, which it reads at once. A group has `group_size`
channels. This is the largest power of 2 up to 8 that divides the number of channels, so no thread is idle.
"""

# Triton compiles these functions. Python types cannot describe Triton's language.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from functools import cache
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from augment.params import Size
from augment.params.pixel_format import PixelFormat
from augment.pipeline.kernels.local_ops import byte, filter_of, matrix_of, seed_of, source_of, within
from augment.pipeline.kernels.opcodes import CODES

_GEOMETRY, _COLOR, _COLOR_OF_MEAN, _NOISE = (
    tl.constexpr(CODES[name]) for name in ("geometry", "color", "color of mean", "gaussian_noise")
)
_TILE = 8192  # numbers in a tile


def resize_windows(images: Tensor, windows: Tensor, size: Size, pixels: PixelFormat) -> Tensor:
    """Resize a window of each image like DALI, and convert stored pixels to levels.

    Args:
        images: (N, height, width, C) in the format's data type, contiguous.
        windows: start and end, (y, x) in pixels, (N, 4) float32, contiguous.
        size: height and width of the results.
        pixels: the pixel format of the images.

    Returns:
        Levels, (N, *size, C) uint8 or float32.
    """
    dtype = torch.uint8 if pixels.is_bytes else torch.float32
    out = torch.empty((len(images), *size, pixels.channels), dtype=dtype, device=images.device)
    low, high = pixels.low or (0.0,) * pixels.channels, pixels.high or (255.0,) * pixels.channels
    scale = tuple(255 / (b - a) for a, b in zip(low, high, strict=True))
    group_size = gcd(pixels.channels, 8)
    with torch.cuda.device_of(images):
        _resize[(len(images), triton.cdiv(size.height * size.width * pixels.channels, _TILE // 8))](
            images, windows, out, _on_device(low, images.device), _on_device(scale, images.device),
            *images.shape[1:3], *size, channels=pixels.channels, group_size=group_size, block=_TILE // 8 // group_size,
        )  # fmt: skip
    return out


def launch(
    images: Tensor,
    programs: Tensor,
    out: Tensor,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    *,
    stages: int,
    raw: bool,
) -> None:
    """Run the program of each sample.

    Args:
        images: levels, (N, height, width, C) uint8 or float32, contiguous.
        programs: (N, numbers) float32: for each stage its code, the count of its values, and the values.
        out: the result, (N, height, width, C).
        mean: mean of each channel in 0..255.
        std: standard deviation of each channel in 0..255.
        stages: number of stages.
        raw: whether to write levels instead of normalized numbers.
    """
    count, height, width, channels = images.shape
    buffers = torch.empty((2, *images.shape), dtype=images.dtype, device=images.device)
    group_size = gcd(channels, 8)
    block = triton.next_power_of_2(max(_TILE, channels)) // group_size
    with torch.cuda.device_of(images):
        _run[(count,)](
            images, buffers, programs, out, _on_device(mean, images.device),
            _on_device(tuple(1 / value for value in std), images.device), stages, programs.shape[1], height, width,
            channels=channels, group_size=group_size, block=block, raw=raw, num_warps=32,
        )  # fmt: skip


@cache
def _on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return numbers as a tensor on a device. Later calls return the same tensor."""
    return torch.tensor(values, dtype=torch.float32, device=device)


@triton.jit(do_not_specialize=["windows", "height", "width", "rows", "columns"])
def _resize(
    images, windows, out, low, scale, height, width, rows, columns,
    channels: tl.constexpr, group_size: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * block + tl.arange(0, block)
    pixel = group // (channels // group_size)
    channel = (group % (channels // group_size) * group_size)[:, None] + tl.arange(0, group_size)[None, :]
    kept = (pixel < rows * columns)[:, None]
    source = images + sample * height * width * channels
    y, x, reach_y, reach_x, first_y, first_x, taps_y, taps_x = filter_of(windows + sample * 4, pixel, rows, columns)
    slope_y, slope_x = 1 / reach_y, 1 / reach_x
    offset_y, offset_x = first_y.to(tl.float32) - y, first_x.to(tl.float32) - x
    level, total = tl.zeros([block, group_size], tl.float32), tl.zeros([block], tl.float32)
    for row in range(taps_y):
        share_y = tl.maximum(1 - tl.abs(offset_y + row) * slope_y, 0.0)
        line = tl.minimum(tl.maximum(first_y + row, 0), height - 1) * width
        for column in range(taps_x):
            share = share_y * tl.maximum(1 - tl.abs(offset_x + column) * slope_x, 0.0)
            there = line + tl.minimum(tl.maximum(first_x + column, 0), width - 1)
            stored = tl.load(source + there[:, None] * channels + channel, mask=kept, other=0)
            level += share[:, None] * stored.to(tl.float32)
            total += share
    level = (level / total[:, None] - tl.load(low + channel)) * tl.load(scale + channel)
    target = out + sample * rows * columns * channels
    _store(target + pixel[:, None] * channels + channel, level, kept)


@triton.jit(do_not_specialize=["stages", "numbers", "height", "width"])
def _run(
    images, buffers, programs, out, mean, scale, stages, numbers, height, width,
    channels: tl.constexpr, group_size: tl.constexpr, block: tl.constexpr, raw: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    area = height * width
    source = images + sample * area * channels
    other = tl.num_programs(0).to(tl.int64) * area * channels  # the distance between the two buffers
    given = programs + sample * numbers
    at = 0
    for _ in range(stages):
        code, count = tl.load(given).to(tl.int32), tl.load(given + 1).to(tl.int32)
        given += 2
        if code != 0:
            target = buffers + sample * area * channels + at * other
            if code == _GEOMETRY:
                _warp(source, target, given, height, width, channels, group_size, block)
            elif (code == _COLOR) | (code == _COLOR_OF_MEAN):
                _color(source, target, given, code == _COLOR_OF_MEAN, area, channels, group_size, block)
            elif code == _NOISE:
                _noise(source, target, given, area, channels, group_size, block)
            else:
                _erase(source, target, given, height, width, channels, group_size, block)
            # The next stage reads what other threads of the block wrote.
            tl.debug_barrier()
            source = target
            at = 1 - at
        given += count
    target = out + sample * area * channels
    channel = _channel(channels, group_size, block)
    center, factor = tl.load(mean + channel), tl.load(scale + channel)
    for start in range(0, area, block * group_size // channels):
        _pixel, there, kept = _tile(start, area, channels, group_size, block)
        level = tl.load(source + there, mask=kept)
        if not raw:
            level = (level.to(tl.float32) - center) * factor
        tl.store(target + there, level, mask=kept)


@triton.jit
def _channel(channels: tl.constexpr, group_size: tl.constexpr, block: tl.constexpr):
    """Return the channel of each number in a tile, (block, group_size)."""
    return (tl.arange(0, block) % (channels // group_size) * group_size)[:, None] + tl.arange(0, group_size)[None, :]


@triton.jit
def _tile(start, area, channels: tl.constexpr, group_size: tl.constexpr, block: tl.constexpr):
    """Return the groups of a tile.

    Returns:
        The pixel of each group, (block,), the positions of its numbers, (block, group_size), and whether it counts,
        (block, 1).
    """
    pixel = start + tl.arange(0, block) // (channels // group_size)
    # The last groups of a tile are left out if they would not be a whole pixel.
    kept = (pixel < area) & (pixel < start + block * group_size // channels)
    return pixel, pixel[:, None] * channels + _channel(channels, group_size, block), kept[:, None]


@triton.jit
def _store(target, level, kept):
    """Clip levels, round them if they are bytes, and write them."""
    if target.dtype.element_ty == tl.uint8:
        tl.store(target, byte(level), mask=kept)
    else:
        tl.store(target, tl.minimum(tl.maximum(level, 0.0), 255.0), mask=kept)


@triton.jit
def _warp(source, target, m, height, width, channels: tl.constexpr, group_size: tl.constexpr, block: tl.constexpr):
    a, b, c, d, e, f, g, h, i = matrix_of(m)
    border, fill = tl.load(m + 9).to(tl.int32), tl.load(m + 10)
    channel = _channel(channels, group_size, block)
    for start in range(0, height * width, block * group_size // channels):
        pixel, there, kept = _tile(start, height * width, channels, group_size, block)
        column, row, right_share, lower_share = source_of(a, b, c, d, e, f, g, h, i, pixel, width)
        level = tl.zeros([block, group_size], tl.float32)
        for corner in tl.static_range(4):  # unrolled, so that the four reads do not wait for each other
            u, v = column + corner % 2, row + corner // 2
            across = tl.where(corner % 2 == 1, right_share, 1 - right_share)
            share = across * tl.where(corner // 2 == 1, lower_share, 1 - lower_share)
            shown = (border != 0) | ((u >= 0) & (u < width) & (v >= 0) & (v < height))
            found = within(v, height, border) * width + within(u, width, border)
            read = tl.load(source + found[:, None] * channels + channel, mask=kept, other=0).to(tl.float32)
            level += share[:, None] * tl.where(shown[:, None], read, fill)
        _store(target + there, level, kept)


@triton.jit
def _sums(source, area, channels: tl.constexpr, group_size: tl.constexpr, block: tl.constexpr):
    """Return partial sums over pixels, (block, group_size). The caller adds the sums of each channel."""
    total = tl.zeros([block, group_size], tl.float32)
    for start in range(0, area, block * group_size // channels):
        _pixel, there, kept = _tile(start, area, channels, group_size, block)
        total += tl.load(source + there, mask=kept, other=0).to(tl.float32)
    return total


@triton.jit
def _color(source, target, m, of_mean, area, channels: tl.constexpr, group_size: tl.constexpr, block: tl.constexpr):
    # `m` is a (C, C + 1) matrix, or a (C, C) matrix followed by a (C, C + 1) matrix for the mean.
    channel = _channel(channels, group_size, block)
    step = channels + 1
    if of_mean:
        total = _sums(source, area, channels, group_size, block)
        step = channels
        offsets = m + channels * channels + channel * (channels + 1)
        add = tl.load(offsets + channels)
        for other in range(channels):
            add += tl.load(offsets + other) * (tl.sum(tl.where(channel == other, total, 0.0)) / area)
    else:
        add = tl.load(m + channel * step + channels)
    gain = tl.load(m + channel * (step + 1))
    weights = tl.zeros([block, group_size], tl.float32)  # of other channels
    for other in range(channels):
        weights += tl.where(channel == other, 0.0, tl.abs(tl.load(m + channel * step + other)))
    if tl.sum(weights) == 0:  # most color steps do not mix channels
        for start in range(0, area, block * group_size // channels):
            pixel, there, kept = _tile(start, area, channels, group_size, block)
            level = tl.load(source + there, mask=kept, other=0).to(tl.float32)
            _store(target + there, add + level * gain, kept)
    else:
        for start in range(0, area, block * group_size // channels):
            pixel, there, kept = _tile(start, area, channels, group_size, block)
            level = add
            for other in range(channels):
                read = tl.load(source + pixel[:, None] * channels + other, mask=kept, other=0).to(tl.float32)
                level += read * tl.load(m + channel * step + other)
            _store(target + there, level, kept)


@triton.jit
def _noise(source, target, given, area, channels: tl.constexpr, group_size: tl.constexpr, block: tl.constexpr):
    # `given` holds the standard deviation and a seed.
    std, seed = tl.load(given), seed_of(given + 1)
    for start in range(0, area, block * group_size // channels):
        _pixel, there, kept = _tile(start, area, channels, group_size, block)
        level = tl.load(source + there, mask=kept, other=0).to(tl.float32)
        _store(target + there, level + std * tl.randn(seed, there), kept)


@triton.jit
def _erase(source, target, given, height, width, channels: tl.constexpr, group_size: tl.constexpr, block: tl.constexpr):
    # `given` holds the top, left, height and width of a rectangle, the number of a fill, a level and a seed.
    top, left = tl.load(given).to(tl.int32), tl.load(given + 1).to(tl.int32)
    bottom, right = top + tl.load(given + 2).to(tl.int32), left + tl.load(given + 3).to(tl.int32)
    fill, seed = tl.load(given + 4).to(tl.int32), seed_of(given + 6)
    value = tl.zeros([block, group_size], tl.float32) + tl.load(given + 5)
    if fill == 1:
        channel = _channel(channels, group_size, block)
        total = _sums(source, height * width, channels, group_size, block)
        for other in range(channels):
            mean = tl.sum(tl.where(channel == other, total, 0.0)) / (height * width)
            value = tl.where(channel == other, mean, value)
    for start in range(0, height * width, block * group_size // channels):
        pixel, there, kept = _tile(start, height * width, channels, group_size, block)
        x, y = pixel % width, pixel // width
        hole = (x >= left) & (x < right) & (y >= top) & (y < bottom)
        level = tl.load(source + there, mask=kept, other=0).to(tl.float32)
        filled = value
        if fill == 2:
            filled = 255 * tl.rand(seed, there)
        _store(target + there, tl.where(hole[:, None], filled, level), kept)
