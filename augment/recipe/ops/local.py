"""Local ops: DALI operators on uint8 HWC images, for changes that no matrix describes."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from augment.params import Choice, Count, Number, Range, Size
from augment.recipe.op import local
from augment.recipe.op_kinds import Array

if TYPE_CHECKING:
    from augment.pipeline.graph.operators import Dali

Node = Any  # a DALI DataNode. This package does not import DALI

# Number of kernels to rasterize at a time. Rasterizing all long lines of a block at once would need a gigabyte.
_SCATTERED = 256


# --- blur and sharpening ---


@local(
    moves=False,
    channels="any",
    sigma_range=Range(
        default=(0.1, 2.0), within=(0, 50), above=0, severe=(6,), unit="px", doc="standard deviation of the Gaussian"
    ),
)
def gaussian_blur(images: Node, dali: "Dali", sigma: Node) -> Node:
    """Blur the image with a Gaussian."""
    return dali.fn.gaussian_blur(images, sigma=sigma)


def _line_kernels(size: Size, length: Array, angle: Array) -> dict[str, Array]:
    """Rasterize lines through the center of kernels, (N, K, K), each with sum 1. K is odd and at least any length."""
    middle = int(np.ceil(length.max(initial=1) / 2))
    span = np.maximum(length - 1, 0)[:, None]  # between the centers of the first and the last pixel
    pieces = 4 * np.maximum(np.ceil(span), 1)
    number = np.arange(int(pieces.max(initial=4)) + 1)
    # Each point stands for a piece of the line. A point at an end stands for half a piece, plus half a pixel beyond the
    # line, so that a horizontal line of five pixels averages five pixels.
    ends = (number == 0) | (number == pieces)
    weight = np.where(ends, span / pieces / 2 + 0.5, span / pieces) * (number <= pieces)
    weight /= weight.sum(axis=1, keepdims=True)
    along = span * (np.minimum(number / pieces, 1) - 0.5)
    x, y = middle + along * np.cos(np.radians(angle))[:, None], middle - along * np.sin(np.radians(angle))[:, None]
    return {"kernel": _scattered(x, y, weight, 2 * middle + 1)}


def _scattered(x: Array, y: Array, weight: Array, side: int) -> NDArray[Any]:
    """Scatter weights, (N, P), at subpixel coordinates into images, (N, side, side), bilinearly."""
    images = np.zeros((len(x), side, side), np.float32)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    for start in range(0, len(x), _SCATTERED):
        block = slice(start, start + _SCATTERED)
        count = len(x[block])
        begin = np.arange(count)[:, None] * side**2
        total = np.zeros(count * side**2)
        for right, below in ((0, 0), (0, 1), (1, 0), (1, 1)):
            share = np.abs(1 - right - (x[block] - left[block])) * np.abs(1 - below - (y[block] - top[block]))
            pixels = begin + (top[block] + below) * side + left[block] + right
            total += np.bincount(pixels.ravel(), (share * weight[block]).ravel(), len(total))
        images[block] = total.reshape(count, side, side)
    return images


@local(
    moves=False,
    channels="any",
    prepare=_line_kernels,
    length_range=Range(default=(3, 9), within=(1, 101), unit="px", doc="length of the camera's motion"),
    angle_range=Range(
        default=(0, 180), within=(-360, 360), unit="deg", doc="direction of the motion, counter-clockwise"
    ),
)
def motion_blur(images: Node, dali: "Dali", kernel: Node) -> Node:
    """Blur the image along a line, as a moving camera does."""
    return dali.fn.filter(images, dali.here(kernel), border="reflect_101")


def _sharpening_kernels(size: Size, factor: Array) -> dict[str, Array]:
    smooth = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    itself = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]])
    factor = factor[:, None, None]
    return {"kernel": (factor * itself + (1 - factor) * smooth).astype(np.float32)}


@local(
    moves=False,
    channels="any",
    prepare=_sharpening_kernels,
    neutral={"factor": 1.0},
    factor_range=Range(default=(0.5, 2.0), within=(0, 10), doc="sharpness: 0 smooths, 1 changes nothing, 2 sharpens"),
)
def sharpen(images: Node, dali: "Dali", kernel: Node) -> Node:
    """Scale the difference from the smoothed image (like PIL's Sharpness, but also at the edges)."""
    return dali.fn.filter(images, dali.here(kernel), border="reflect_101")


# --- noise ---


@local(
    moves=False,
    channels="any",
    random=True,
    neutral={"std": 0.0},
    std_range=Range(default=(0, 12), within=(0, 255), severe=(80,), doc="standard deviation in gray levels (0..255)"),
)
def gaussian_noise(images: Node, dali: "Dali", std: Node) -> Node:
    """Add independent Gaussian noise to every channel of every pixel."""
    return dali.fn.noise.gaussian(images, stddev=std, **dali.random)


@local(
    moves=False,
    channels="any",
    random=True,
    neutral={"share": 0.0},
    share_range=Range(default=(0, 0.05), within=(0, 1), doc="share of pixels to replace"),
)
def salt_and_pepper(images: Node, dali: "Dali", share: Node) -> Node:
    """Replace random pixels with white and black in equal numbers."""
    return dali.fn.noise.salt_and_pepper(images, prob=share, salt_val=255.0, pepper_val=0.0, **dali.random)


@local(
    moves=False,
    channels="any",
    random=True,
    factor_range=Range(
        default=(1, 10), within=(0, 100), above=0, doc="gray levels per photon (variance divided by mean)"
    ),
)
def shot_noise(images: Node, dali: "Dali", factor: Node) -> Node:
    """Add photon noise: draw every channel from a Poisson distribution (differs between CPU and GPU)."""
    return dali.fn.noise.shot(images, factor=factor, **dali.random)


# --- compression and resolution ---


def _whole_quality(size: Size, quality: Array) -> dict[str, Array]:
    return {"quality": quality.astype(np.int32)}


@local(
    moves=False,
    prepare=_whole_quality,
    quality_range=Range(default=(30, 90), within=(1, 100), severe=(5,), whole=True, doc="JPEG quality"),
)
def jpeg(images: Node, dali: "Dali", quality: Node) -> Node:
    """Add JPEG compression artifacts."""
    return dali.fn.jpeg_compression_distortion(images, quality=quality)


def _smaller_sides(size: Size, scale: Array, interpolation: str) -> dict[str, Array]:
    sides = [np.maximum(1, np.rint(side * scale)) for side in size]
    return {"side": np.stack(sides, axis=1).astype(np.float32)}


@local(
    moves=False,
    channels="any",
    prepare=_smaller_sides,
    scale_range=Range(
        default=(0.25, 0.75),
        within=(0, 1),
        above=0,
        severe=(0.1,),
        doc="sides of the smaller image as a share of the original sides",
    ),
    interpolation=Choice(default="nearest", options=("nearest", "linear"), doc="interpolation when enlarging"),
)
def downscale(images: Node, dali: "Dali", side: Node, interpolation: str) -> Node:
    """Lower the resolution: shrink the image and enlarge it again."""
    small = dali.fn.resize(images, size=side, interp_type=dali.types.INTERP_LINEAR, antialias=True)
    back = dali.types.INTERP_NN if interpolation == "nearest" else dali.types.INTERP_LINEAR
    return dali.fn.resize(small, size=list(dali.size), interp_type=back)


# --- levels ---


@local(
    moves=False,
    channels="separable",
    gamma_range=Range(
        default=(0.8, 1.25), within=(0.05, 20), severe=(0.3, 3), doc="exponent: below 1 brightens, above 1 darkens"
    ),
)
def gamma(images: Node, dali: "Dali", gamma: Node) -> Node:
    """Raise every channel, scaled to 0..1, to a power."""
    levels = dali.fn.cast(images, dtype=dali.types.FLOAT) * (1 / 255)
    return dali.fn.cast_like(levels**gamma * 255.0, images)


def _thresholds(size: Size, threshold: Array) -> dict[str, Array]:
    rounded = threshold.astype(np.float32)
    # A threshold just above a whole level must not be rounded to that level.
    is_below = np.ceil(rounded) < np.ceil(threshold)
    return {"threshold": np.where(is_below, np.nextafter(rounded, np.float32(np.inf)), rounded)}


@local(
    moves=False,
    channels="any",
    prepare=_thresholds,
    neutral={"threshold": 256},
    threshold_range=Range(default=(128, 255), within=(0, 256), severe=(32,), doc="lowest gray level to invert"),
)
def solarize(images: Node, dali: "Dali", threshold: Node) -> Node:
    """Invert bright channels: 255 - x where x is at least the threshold."""
    if not dali.pixels.is_bytes:
        return images + (images >= threshold) * (255.0 - images * 2.0)
    # For bytes, x >= 127.3 means x >= 128. An integer threshold is faster.
    bright = images >= dali.fn.cast(dali.math.ceil(threshold), dtype=dali.types.INT16)
    return images ^ (bright * dali.types.Constant(255, dtype=dali.types.UINT8))


def _bit_masks(size: Size, bits: Array) -> dict[str, Array]:
    return {"mask": (256 - 2 ** (8 - bits)).astype(np.uint8)}


@local(
    moves=False,
    prepare=_bit_masks,
    neutral={"bits": 8},
    bits_range=Range(default=(4, 8), within=(1, 8), severe=(1,), whole=True, doc="number of bits to keep"),
)
def posterize(images: Node, dali: "Dali", mask: Node) -> Node:
    """Keep only the upper bits of every channel."""
    return images & mask


@local(moves=False)
def equalize(images: Node, dali: "Dali") -> Node:
    """Equalize the histogram of each channel (rounds like OpenCV's equalizeHist, not like PIL)."""
    return dali.fn.equalize(images)


@local(
    moves=False,
    checkpoints=False,
    tiles=Count(default=8, within=(1, 64), doc="number of tiles along each side"),
    clip_limit=Number(default=2.0, within=(0, 100), above=0, doc="limit of the contrast gain"),
)
def clahe(images: Node, dali: "Dali", tiles: int, clip_limit: float) -> Node:
    """Equalize the LAB lightness of each tile with limited contrast, as OpenCV does (CLAHE, Zuiderveld 1994)."""
    return dali.fn.clahe(images, tiles_x=tiles, tiles_y=tiles, clip_limit=clip_limit)


@local(moves=False, channels="any")
def autocontrast(images: Node, dali: "Dali") -> Node:
    """Stretch each channel so that its darkest level becomes 0 and its brightest 255."""
    low = dali.fn.reductions.min(images, axes=[0, 1], keep_dims=True)
    high = dali.fn.reductions.max(images, axes=[0, 1], keep_dims=True)
    # A channel with a single level stays unchanged: start 0 and span 255.
    flat, white = high == low, dali.types.Constant(255, dtype=dali.types.UINT8)
    start, span = low - low * flat, (high - low) + flat * white
    return dali.fn.cast_like((images - start) * (255.0 / span), images)


# --- holes ---


def _holes(size: Size, area: Array, aspect: Array, x: Array, y: Array, fill: str, level: int) -> dict[str, Array]:
    (rows, columns), side = size, math.sqrt(size[0] * size[1])  # side of a square with the image's area
    width = np.clip(np.rint(side * np.sqrt(area * aspect)), 0, columns)
    height = np.clip(np.rint(side * np.sqrt(area / aspect)), 0, rows)
    left, top = np.floor(x * (columns - width + 1)), np.floor(y * (rows - height + 1))
    return {
        "anchor": np.stack([top, left], axis=1).astype(np.float32),
        "shape": np.stack([height, width], axis=1).astype(np.float32),
    }


@local(
    moves=False,
    channels="any",
    random=True,
    prepare=_holes,
    neutral={"area": 0.0},
    uniforms=("x", "y"),
    area_range=Range(
        default=(0.02, 0.33), within=(0, 1), severe=(0.6,), doc="area of the hole as a share of the image"
    ),
    aspect_range=Range(
        default=(0.3, 3.3), within=(0.01, 100), log=True, doc="width of the hole divided by its height (log-uniform)"
    ),
    fill=Choice(
        default="constant",
        options=("constant", "mean", "noise"),
        doc="fill of the hole: a gray level (constant), the image's mean color (mean) or random pixels (noise)",
    ),
    level=Count(default=0, within=(0, 255), doc="gray level of a constant fill"),
)
def erase(images: Node, dali: "Dali", anchor: Node, shape: Node, fill: str, level: int) -> Node:
    """Fill a rectangle at a random position (random erasing, Zhong et al. 2017, also called cutout)."""

    def punch(image: Node, value: int) -> Node:
        return dali.fn.erase(image, anchor=anchor, shape=shape, axes=[0, 1], fill_value=float(value))

    if fill == "constant":
        return punch(images, level)
    if fill == "noise":
        dtype = dali.types.UINT8 if dali.pixels.is_bytes else dali.types.FLOAT
        noise = dali.fn.random.uniform(images, range=[0, 255], dtype=dtype, **dali.random)
        other = dali.fn.reshape(noise, layout="HWC")  # without a layout, erase is 15x slower on the GPU
    else:
        mean = dali.fn.reductions.mean(images, axes=[0, 1], keep_dims=True)
        other = dali.fn.cast_like(images * 0.0 + mean, images)
    # Add the image with a black hole to the fill, which is black outside the hole.
    return punch(images, 0) + (other - punch(other, 0))


def _grids(size: Size, tile: Array, ratio: Array, angle: Array, x: Array, y: Array) -> dict[str, Array]:
    side = np.maximum(2, np.rint(min(size) * tile))
    return {
        "tile": side.astype(np.int32),
        "ratio": ratio.astype(np.float32),
        "angle": np.radians(angle).astype(np.float32),
        "shift_x": (x * side).astype(np.float32),
        "shift_y": (y * side).astype(np.float32),
    }


@local(
    moves=False,
    channels="any",
    prepare=_grids,
    neutral={"ratio": 0.0},
    uniforms=("x", "y"),
    tile_range=Range(default=(0.1, 0.4), within=(0.01, 1), doc="side of a tile as a share of the shorter side"),
    ratio_range=Range(default=(0.4, 0.6), within=(0, 1), doc="side of the black square as a share of the tile's side"),
    angle_range=Range(default=(0, 0), within=(-360, 360), unit="deg", doc="rotation of the grid"),
)
def grid_mask(images: Node, dali: "Dali", tile: Node, ratio: Node, angle: Node, shift_x: Node, shift_y: Node) -> Node:
    """Black out squares on a grid (GridMask, Chen et al. 2020)."""
    grid = {"tile": tile, "ratio": ratio, "angle": angle, "shift_x": shift_x, "shift_y": shift_y}
    # On a GPU, DALI 2.4 draws a wrong grid for more than four channels.
    return dali.in_channel_groups(lambda some, _: dali.fn.grid_mask(some, **grid), images)
