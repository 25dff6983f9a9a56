"""Local ops of the kernel in `augment.pipeline.kernels.stages`, and functions that read and write pixels."""

# Python types cannot describe Triton's language.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def byte(value):
    """Round to the nearest integer and clip to 0..255."""
    return tl.minimum(tl.maximum(tl.floor(value + 0.5), 0.0), 255.0).to(tl.int32).to(tl.uint8)


@triton.jit
def store(target, red, green, blue, inside):
    tl.store(target, byte(red), mask=inside)
    tl.store(target + 1, byte(green), mask=inside)
    tl.store(target + 2, byte(blue), mask=inside)


@triton.jit
def load(source, inside):
    red = tl.load(source, mask=inside, other=0).to(tl.float32)
    green = tl.load(source + 1, mask=inside, other=0).to(tl.float32)
    return red, green, tl.load(source + 2, mask=inside, other=0).to(tl.float32)


@triton.jit
def within(position, size, border):
    """Map a position beyond the edge to the position inside the image that the border shows there.

    `border` is a code of `opcodes.BORDER_CODES`. Code 3 is a faster form of code 1 (reflect_101), for positions that
    are less than one side length beyond the edge.
    """
    if border == 3:
        position = tl.abs(position)
        position = tl.minimum(position, 2 * size - 2 - position)
    elif border == 1:
        period = 2 * size - 2
        position = tl.where(position < 0, -position, position) % period
        position = tl.minimum(position, period - position)
    return tl.minimum(tl.maximum(position, 0), size - 1)


@triton.jit
def filter_of(window, pixel, rows, columns):
    """Return the filter that resizes a window, for each output pixel.

    Returns:
        The filter's center, half its height and width, its first row and column, and its numbers of rows and columns.
        Each pair is (y, x), in image coordinates with pixel centers at integers.
    """
    top, left = tl.load(window), tl.load(window + 1)
    step_y, step_x = (tl.load(window + 2) - top) / rows, (tl.load(window + 3) - left) / columns
    reach_y, reach_x = tl.maximum(step_y, 1.0), tl.maximum(step_x, 1.0)
    y = top + ((pixel // columns).to(tl.float32) + 0.5) * step_y - 0.5
    x = left + ((pixel % columns).to(tl.float32) + 0.5) * step_x - 0.5
    first_y, first_x = tl.floor(y - reach_y).to(tl.int32) + 1, tl.floor(x - reach_x).to(tl.int32) + 1
    taps_y, taps_x = tl.ceil(2 * reach_y).to(tl.int32), tl.ceil(2 * reach_x).to(tl.int32)
    return y, x, reach_y, reach_x, first_y, first_x, taps_y, taps_x


@triton.jit
def matrix_of(m):
    """Read the nine numbers of a matrix once, before a loop over pixels."""
    return (
        tl.load(m), tl.load(m + 1), tl.load(m + 2), tl.load(m + 3), tl.load(m + 4),
        tl.load(m + 5), tl.load(m + 6), tl.load(m + 7), tl.load(m + 8),
    )  # fmt: skip


@triton.jit
def source_of(a, b, c, d, e, f, g, h, i, pixel, width):
    """Return the position in the source that each output pixel shows, by a (3, 3) matrix.

    Returns:
        The column and row of the upper left of the four pixels around the position, then the weights of the right and
        the lower pixels.
    """
    x, y = (pixel % width).to(tl.float32), (pixel // width).to(tl.float32)
    w = g * x + h * y + i
    # Limit the coordinates, because larger ones do not fit into an integer.
    from_x = tl.minimum(tl.maximum((a * x + b * y + c) / w, -1e6), 1e6)
    from_y = tl.minimum(tl.maximum((d * x + e * y + f) / w, -1e6), 1e6)
    left, top = tl.floor(from_x), tl.floor(from_y)
    return left.to(tl.int32), top.to(tl.int32), from_x - left, from_y - top


@triton.jit
def mean_color(source, area, block: tl.constexpr):
    red, green, blue = tl.zeros([block], tl.int32), tl.zeros([block], tl.int32), tl.zeros([block], tl.int32)
    for start in range(0, area, block):
        pixel = start + tl.arange(0, block)
        inside = pixel < area
        red += tl.load(source + 3 * pixel, mask=inside, other=0).to(tl.int32)
        green += tl.load(source + 3 * pixel + 1, mask=inside, other=0).to(tl.int32)
        blue += tl.load(source + 3 * pixel + 2, mask=inside, other=0).to(tl.int32)
    # Sum floats, because the sum of nine million bright pixels is too large for an int32.
    r, g, b = tl.sum(red.to(tl.float32)), tl.sum(green.to(tl.float32)), tl.sum(blue.to(tl.float32))
    return r / area, g / area, b / area


# --- blur and sharpening ---


@triton.jit
def correlate(source, target, weights, side, height, width, block: tl.constexpr):
    """Correlate the image with (side, side) weights."""
    border = tl.where(side // 2 < tl.minimum(height, width), 3, 1)
    for start in range(0, height * width, block):
        pixel = start + tl.arange(0, block)
        kept = pixel < height * width
        x, y = pixel % width, pixel // width
        red, green, blue = tl.zeros([block], tl.float32), tl.zeros([block], tl.float32), tl.zeros([block], tl.float32)
        for tap in range(side * side):
            weight = tl.load(weights + tap)
            if weight != 0:  # most weights of a motion blur are 0
                v, u = y + tap // side - side // 2, x + tap % side - side // 2
                r, g, b = load(source + 3 * (within(v, height, border) * width + within(u, width, border)), kept)
                red += weight * r
                green += weight * g
                blue += weight * b
        store(target + 3 * pixel, red, green, blue, kept)


@triton.jit
def gaussian_blur(source, target, plane, given, height, width, block: tl.constexpr):
    """Blur each channel horizontally into a plane of floats, then vertically into the target. `given` holds sigma."""
    sigma = tl.load(given)
    radius = tl.ceil(3 * sigma).to(tl.int32)
    falloff = tl.minimum(0.5 / (sigma * sigma), 1e9)  # finite, because it is also multiplied by 0
    total = 1.0
    for tap in range(1, radius + 1):
        total += 2 * tl.exp(-falloff * (tap * tap))
    for channel in range(3):
        for start in range(0, height * width, block):
            pixel = start + tl.arange(0, block)
            blurred = _blurred(source + channel, 3, pixel, True, radius, falloff, total, height, width, block)
            tl.store(plane + pixel, blurred, mask=pixel < height * width)
        tl.debug_barrier()
        for start in range(0, height * width, block):
            pixel = start + tl.arange(0, block)
            blurred = _blurred(plane, 1, pixel, False, radius, falloff, total, height, width, block)
            tl.store(target + 3 * pixel + channel, byte(blurred), mask=pixel < height * width)
        tl.debug_barrier()


@triton.jit
def _blurred(source, step, pixel, across: tl.constexpr, radius, falloff, total, height, width, block: tl.constexpr):
    """Return levels blurred horizontally (`across`) or vertically. `step` is the distance between pixels in memory."""
    x, y = pixel % width, pixel // width
    border = tl.where(radius < (width if across else height), 3, 1)
    level = tl.zeros([block], tl.float32)
    for tap in range(2 * radius + 1):
        offset = tap - radius
        weight = tl.exp(-falloff * (offset * offset)) / total
        if across:
            there = y * width + within(x + offset, width, border)
        else:
            there = within(y + offset, height, border) * width + x
        level += weight * tl.load(source + step * there, mask=pixel < height * width, other=0).to(tl.float32)
    return level


# --- noise and holes ---


@triton.jit
def seed_of(given):
    """Join the two halves of a sample's seed, 24 bits each."""
    return tl.load(given).to(tl.int64) + tl.load(given + 1).to(tl.int64) * 16777216


@triton.jit
def gaussian_noise(source, target, given, area, block: tl.constexpr):
    """Add normal noise. `given` holds the standard deviation and a seed."""
    std, seed = tl.load(given), seed_of(given + 1)
    for start in range(0, area, block):
        pixel = start + tl.arange(0, block)
        inside = pixel < area
        red, green, blue = load(source + 3 * pixel, inside)
        r, g, b, _ = tl.randn4x(seed, pixel)
        store(target + 3 * pixel, red + std * r, green + std * g, blue + std * b, inside)


@triton.jit
def erase(source, target, given, height, width, block: tl.constexpr):
    """Fill a rectangle with a level (code 0), the image's mean color (1) or noise (2).

    `given` holds top, left, height and width of the rectangle, the code, the level and a seed.
    """
    top, left = tl.load(given).to(tl.int32), tl.load(given + 1).to(tl.int32)
    bottom, right = top + tl.load(given + 2).to(tl.int32), left + tl.load(given + 3).to(tl.int32)
    fill, level, seed = tl.load(given + 4).to(tl.int32), tl.load(given + 5), seed_of(given + 6)
    red, green, blue = level, level, level
    if fill == 1:
        red, green, blue = mean_color(source, height * width, block)
    for start in range(0, height * width, block):
        pixel = start + tl.arange(0, block)
        kept = pixel < height * width
        x, y = pixel % width, pixel // width
        hole = (x >= left) & (x < right) & (y >= top) & (y < bottom)
        r, g, b = load(source + 3 * pixel, kept)
        if fill == 2:
            share_r, share_g, share_b, _ = tl.rand4x(seed, pixel)
            r, g, b = (
                tl.where(hole, 255 * share_r, r),
                tl.where(hole, 255 * share_g, g),
                tl.where(hole, 255 * share_b, b),
            )
        else:
            r, g, b = tl.where(hole, red, r), tl.where(hole, green, g), tl.where(hole, blue, b)
        store(target + 3 * pixel, r, g, b, kept)


# --- resolution ---


@triton.jit
def downscale(source, target, plane, given, height, width, block: tl.constexpr):
    """Resize each channel to a smaller plane and back.

    `given` holds pairs for y and x: the sides of the plane, the ratio of the image to the plane, and the inverse ratio.
    The last value is 1 for linear interpolation when enlarging.
    """
    rows, columns = tl.load(given).to(tl.int32), tl.load(given + 1).to(tl.int32)
    shrink_y, shrink_x = tl.load(given + 2), tl.load(given + 3)
    stretch_y, stretch_x = tl.load(given + 4), tl.load(given + 5)
    linear = tl.load(given + 6).to(tl.int32)
    for channel in range(3):
        _shrink(source + channel, plane, rows, columns, shrink_y, shrink_x, height, width, block)
        tl.debug_barrier()
        for start in range(0, height * width, block):
            pixel = start + tl.arange(0, block)
            kept = pixel < height * width
            x, y = pixel % width, pixel // width
            if linear == 1:
                level = _interpolated(plane, x, y, stretch_y, stretch_x, rows, columns, kept)
            else:
                u = tl.minimum(tl.floor(x * stretch_x + 0.5 * stretch_x).to(tl.int32), columns - 1)
                v = tl.minimum(tl.floor(y * stretch_y + 0.5 * stretch_y).to(tl.int32), rows - 1)
                level = tl.load(plane + v * columns + u, mask=kept, other=0)
            tl.store(target + 3 * pixel + channel, byte(level), mask=kept)
        tl.debug_barrier()


@triton.jit
def _shrink(source, plane, rows, columns, ratio_y, ratio_x, height, width, block: tl.constexpr):
    """Resize one channel to (rows, columns) with a triangular filter that reaches one output pixel to each side."""
    taps_y, taps_x = tl.ceil(2 * ratio_y).to(tl.int32), tl.ceil(2 * ratio_x).to(tl.int32)
    for start in range(0, rows * columns, block):
        pixel = start + tl.arange(0, block)
        x, y = (pixel % columns).to(tl.float32), (pixel // columns).to(tl.float32)
        # The start of the filter, in pixels of the source.
        from_x = x * ratio_x + (0.5 * ratio_x - 0.5 - ratio_x)
        from_y = y * ratio_y + (0.5 * ratio_y - 0.5 - ratio_y)
        left, top = tl.ceil(from_x).to(tl.int32), tl.ceil(from_y).to(tl.int32)
        level, total = tl.zeros([block], tl.float32), tl.zeros([block], tl.float32)
        for down in range(taps_y):
            share = _triangle((top + down - from_y) / ratio_y)
            row = within(top + down, height, 0) * width
            for across in range(taps_x):
                weight = share * _triangle((left + across - from_x) / ratio_x)
                there = source + 3 * (row + within(left + across, width, 0))
                level += weight * tl.load(there, mask=pixel < rows * columns, other=0).to(tl.float32)
                total += weight
        tl.store(plane + pixel, byte(level / total).to(tl.float32), mask=pixel < rows * columns)


@triton.jit
def _triangle(position):
    """Return the weight of a triangular filter at a position in 0..2."""
    return tl.maximum(1 - tl.abs(position - 1), 0.0)


@triton.jit
def _interpolated(plane, x, y, stretch_y, stretch_x, rows, columns, kept):
    from_x, from_y = x * stretch_x + (0.5 * stretch_x - 0.5), y * stretch_y + (0.5 * stretch_y - 0.5)
    left, top = tl.floor(from_x), tl.floor(from_y)
    right_share, lower_share = from_x - left, from_y - top
    u, right = within(left.to(tl.int32), columns, 0), within(left.to(tl.int32) + 1, columns, 0)
    v, below = within(top.to(tl.int32), rows, 0), within(top.to(tl.int32) + 1, rows, 0)
    upper_left = tl.load(plane + v * columns + u, mask=kept)
    upper_right = tl.load(plane + v * columns + right, mask=kept)
    lower_left = tl.load(plane + below * columns + u, mask=kept)
    lower_right = tl.load(plane + below * columns + right, mask=kept)
    upper = upper_left + right_share * (upper_right - upper_left)
    lower = lower_left + right_share * (lower_right - lower_left)
    return upper + lower_share * (lower - upper)
