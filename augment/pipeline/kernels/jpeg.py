"""JPEG compression artifacts in the kernel, equal to the artifacts of DALI's GPU operator."""

# Python types cannot describe Triton's language.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from augment.pipeline.kernels.local_ops import byte, load, store, within

# sqrt(2) * cos(k * pi / 16) for k = 1, 2, 3, 5, 6, 7, and 1 / sqrt(8).
_A, _B, _C = tl.constexpr(1.387039845322148), tl.constexpr(1.306562964876377), tl.constexpr(1.175875602419359)
_D, _E, _F = tl.constexpr(0.785694958387102), tl.constexpr(0.541196100146197), tl.constexpr(0.275899379282943)
_NORM = tl.constexpr(0.3535533905932737)


@triton.jit
def jpeg(source, target, plane, tables, given, height, width, block: tl.constexpr):
    """Quantize luma, and chroma at half the resolution, as JPEG does. `given` holds the quality, from 0 to 100."""
    table = tables + 128 * tl.load(given).to(tl.int32)
    _compress(source, target, plane, table, 0, False, height, width, block)
    for channel in range(1, 3):
        _compress(source, target, plane, table + 64, channel, True, height, width, block)
    for start in range(0, height * width, block):
        pixel = start + tl.arange(0, block)
        kept = pixel < height * width
        luma, cb, cr = load(target + 3 * pixel, kept)
        cb -= 128
        cr -= 128
        store(target + 3 * pixel, luma + 1.402 * cr, luma - 0.34413629 * cb - 0.71413629 * cr, luma + 1.772 * cb, kept)


@triton.jit
def _compress(source, target, plane, table, channel, chroma: tl.constexpr, height, width, block: tl.constexpr):
    """Compress luma or one chroma channel in blocks, and write the result into a channel of the target."""
    cell: tl.constexpr = 2 if chroma else 1  # image pixels along the side of a chroma pixel
    rows, columns = ((height + cell - 1) // cell + 7) // 8 * 8, ((width + cell - 1) // cell + 7) // 8 * 8
    for start in range(0, rows * columns, block):
        number = start + tl.arange(0, block)
        inside = number < rows * columns
        x, y = number % columns, number // columns
        if chroma:
            r, g, b = (
                _quarter(source, x, y, height, width, inside),
                _quarter(source + 1, x, y, height, width, inside),
                _quarter(source + 2, x, y, height, width, inside),
            )
            blue, red = -0.16873589 * r - 0.33126411 * g + 0.5 * b, 0.5 * r - 0.41868759 * g - 0.08131241 * b
            level = tl.where(channel == 1, blue, red) + 128
        else:
            r, g, b = load(source + 3 * (within(y, height, 0) * width + within(x, width, 0)), inside)
            level = 0.299 * r + 0.587 * g + 0.114 * b
        tl.store(plane + number, byte(level).to(tl.float32) - 128, mask=inside)
    tl.debug_barrier()
    _transform_blocks(plane, table, rows, columns, block // 4)
    for start in range(0, height * width, block):
        pixel = start + tl.arange(0, block)
        kept = pixel < height * width
        there = plane + pixel // width // cell * columns + pixel % width // cell
        tl.store(target + 3 * pixel + channel, byte(tl.load(there, mask=kept, other=0) + 128), mask=kept)
    tl.debug_barrier()


@triton.jit
def _quarter(source, x, y, height, width, inside):
    """Return the mean of 2 x 2 pixels of a channel, rounded with halves to even."""
    total = tl.zeros_like(x)
    for corner in tl.static_range(4):
        u, v = within(2 * x + corner % 2, width, 0), within(2 * y + corner // 2, height, 0)
        total += tl.load(source + 3 * (v * width + u), mask=inside, other=0).to(tl.int32)
    return ((total + 1 + (total // 4) % 2) // 4).to(tl.float32)


@triton.jit
def _transform_blocks(plane, table, rows, columns, block: tl.constexpr):
    """Quantize the cosine transform of each 8 x 8 block in place, in three passes: rows, columns, and rows again.

    Each thread works on its own row or column of eight numbers, so threads wait only between the passes.
    """
    count = rows * columns // 8
    _transform_rows(plane, count, False, block)
    for start in range(0, count, block):
        number = start + tl.arange(0, block)
        column = plane + number // columns * 8 * columns + number % columns
        steps = table + number % 8
        a, b, c, d, e, f, g, h = _load_eight(column, columns, number < count)
        a, b, c, d, e, f, g, h = _cosines(a, b, c, d, e, f, g, h)
        a, b, c, d = _quantize(a, steps), _quantize(b, steps + 8), _quantize(c, steps + 16), _quantize(d, steps + 24)
        e, f = _quantize(e, steps + 32), _quantize(f, steps + 40)
        g, h = _quantize(g, steps + 48), _quantize(h, steps + 56)
        a, b, c, d, e, f, g, h = _levels(a, b, c, d, e, f, g, h)
        _store_eight(column, columns, a, b, c, d, e, f, g, h, number < count)
    tl.debug_barrier()
    _transform_rows(plane, count, True, block)


@triton.jit
def _transform_rows(plane, count, inverse: tl.constexpr, block: tl.constexpr):
    """Replace the eight levels of each row by their cosine transform, or invert it."""
    for start in range(0, count, block):
        number = start + tl.arange(0, block)
        row = plane + 8 * number
        a, b, c, d, e, f, g, h = _load_eight(row, 1, number < count)
        if inverse:
            a, b, c, d, e, f, g, h = _levels(a, b, c, d, e, f, g, h)
        else:
            a, b, c, d, e, f, g, h = _cosines(a, b, c, d, e, f, g, h)
        _store_eight(row, 1, a, b, c, d, e, f, g, h, number < count)
    tl.debug_barrier()


@triton.jit
def _quantize(value, step):
    size = tl.load(step)
    number = value / size
    return size * tl.where(number < 0, -tl.floor(0.5 - number), tl.floor(number + 0.5))


@triton.jit
def _load_eight(at, step, inside):
    a, b = tl.load(at, mask=inside, other=0), tl.load(at + step, mask=inside, other=0)
    c, d = tl.load(at + 2 * step, mask=inside, other=0), tl.load(at + 3 * step, mask=inside, other=0)
    e, f = tl.load(at + 4 * step, mask=inside, other=0), tl.load(at + 5 * step, mask=inside, other=0)
    g, h = tl.load(at + 6 * step, mask=inside, other=0), tl.load(at + 7 * step, mask=inside, other=0)
    return a, b, c, d, e, f, g, h


@triton.jit
def _store_eight(at, step, a, b, c, d, e, f, g, h, inside):
    tl.store(at, a, mask=inside)
    tl.store(at + step, b, mask=inside)
    tl.store(at + 2 * step, c, mask=inside)
    tl.store(at + 3 * step, d, mask=inside)
    tl.store(at + 4 * step, e, mask=inside)
    tl.store(at + 5 * step, f, mask=inside)
    tl.store(at + 6 * step, g, mask=inside)
    tl.store(at + 7 * step, h, mask=inside)


@triton.jit
def _cosines(a, b, c, d, e, f, g, h):
    """Return the cosine transform of eight levels."""
    ah, bg, cf, de = a + h, b + g, c + f, d + e
    p, q, r, s = a - h, b - g, c - f, d - e
    even, odd, outer, inner = ah + de, bg + cf, ah - de, bg - cf
    return (
        (even + odd) * _NORM,
        (p * _A + q * _C + r * _D + s * _F) * _NORM,
        (outer * _B + inner * _E) * _NORM,
        (p * _C - q * _F - r * _A - s * _D) * _NORM,
        (even - odd) * _NORM,
        (p * _D - q * _A + r * _F + s * _C) * _NORM,
        (outer * _E - inner * _B) * _NORM,
        (p * _F - q * _D + r * _C - s * _A) * _NORM,
    )


@triton.jit
def _levels(a, b, c, d, e, f, g, h):
    """Invert the cosine transform of eight levels."""
    sums, differences = a + e, a - e
    wide, narrow = c * _B + g * _E, c * _E - g * _B
    p, q, r, s = sums + wide, differences + narrow, differences - narrow, sums - wide
    t, u = b * _A + d * _C + f * _D + h * _F, b * _C - d * _F - f * _A - h * _D
    v, w = b * _D - d * _A + f * _F + h * _C, b * _F - d * _D + f * _C - h * _A
    return (
        (p + t) * _NORM,
        (q + u) * _NORM,
        (r + v) * _NORM,
        (s + w) * _NORM,
        (s - w) * _NORM,
        (r - v) * _NORM,
        (q - u) * _NORM,
        (p - t) * _NORM,
    )
