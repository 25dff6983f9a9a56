"""Color ops: (N, 3, 4) on RGB in 0..255."""

from itertools import permutations

import numpy as np

from augment.ops.matrices import stack
from augment.params import Choice, Range
from augment.registry import Array, color

# ITU-R BT.601 luma, as in JPEG, PIL and torchvision.
LUMA = (0.299, 0.587, 0.114)

# RGB to YIQ and back. The inverse is computed, so that a rotation by 0 degrees is the identity.
_YIQ = np.array([LUMA, (0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135)])
_RGB = np.linalg.inv(_YIQ)

# What contrast turns about unless it is told to look at the picture, which costs a few operators more.
_GRAY = 128.0


def _about(factor: Array, pivot: Array, offset: float = 0.0) -> Array:
    """Scale the distance from `pivot @ rgb + offset` by a factor: (N, 3, 4) from (N,) and (3, 3)."""
    factor = np.asarray(factor)[..., None, None]
    matrix = np.concatenate([pivot, np.full((3, 1), offset)], axis=1)
    return np.asarray(factor * np.eye(3, 4) + (1 - factor) * matrix, np.float64)


def _brighten(factor: Array) -> Array:
    return _about(factor, np.zeros((3, 3)))


def _push(factor: Array) -> Array:
    return _about(factor, np.zeros((3, 3)), _GRAY)


def _saturate(factor: Array) -> Array:
    return _about(factor, np.tile(LUMA, (3, 1)))


def _turn(angle: Array) -> Array:
    cos, sin, zero = np.cos(np.radians(angle)), np.sin(np.radians(angle)), np.zeros_like(angle)
    matrix = _RGB @ stack((1, 0, 0), (0, cos, sin), (0, -sin, cos)) @ _YIQ
    return np.concatenate([matrix, stack((zero,), (zero,), (zero,))], axis=-1)


def _square(matrix: Array) -> Array:
    """Add the row that makes (N, 3, 4) matrices composable."""
    last = np.broadcast_to([0.0, 0.0, 0.0, 1.0], (len(matrix), 1, 4))
    return np.concatenate([matrix, last], axis=1)


@color(factor_range=Range(default=(0.8, 1.2), within=(0, 10), doc="what every channel is multiplied by"))
def brightness(factor: Array) -> Array:
    """Multiply the picture by a factor, as torchvision and PIL do."""
    return _brighten(factor)


@color(
    factor_range=Range(default=(0.8, 1.2), within=(0, 10), doc="what the distance from the gray is multiplied by"),
    pivot=Choice(
        default="middle", options=("middle", "mean"), doc="that gray: 128, or the picture's mean (torchvision, PIL)"
    ),
)
def contrast(factor: Array, pivot: str) -> Array:
    """Move every channel away from a gray, or towards it: 128, which costs nothing, or the picture's mean luma."""
    if pivot == "middle":
        return _push(factor)
    factor = np.asarray(factor)[..., None, None]
    away = np.broadcast_to(factor * np.eye(3), (*factor.shape[:-2], 3, 3))
    mean = (1 - factor) * np.tile(LUMA, (3, 1))
    return np.concatenate([away, mean, np.zeros((*mean.shape[:-1], 1))], axis=-1)


@color(
    factor_range=Range(
        default=(0.8, 1.2), within=(0, 10), doc="what the distance from the pixel's gray is multiplied by"
    )
)
def saturation(factor: Array) -> Array:
    """Move every pixel away from its own gray (BT.601 luma), or towards it, as torchvision and PIL do."""
    return _saturate(factor)


@color(angle_range=Range(default=(-18, 18), within=(-180, 180), unit="deg", doc="angle in the IQ plane"))
def hue(angle: Array) -> Array:
    """Turn the chroma of every pixel in YIQ, from red towards yellow; its luma stays (torchvision turns HSV's hue)."""
    return _turn(angle)


@color(
    brightness_range=Range(default=(0.8, 1.2), within=(0, 10), doc="as brightness"),
    contrast_range=Range(default=(0.8, 1.2), within=(0, 10), doc="as contrast, about gray 128"),
    saturation_range=Range(default=(0.8, 1.2), within=(0, 10), doc="as saturation"),
    hue_range=Range(default=(-18, 18), within=(-180, 180), unit="deg", doc="as hue, in YIQ"),
    order=Choice(
        default="listed", options=("listed", "random"), doc="as listed here, or drawn for each sample (torchvision)"
    ),
    uniforms=("turn",),
)
def color_jitter(brightness: Array, contrast: Array, saturation: Array, hue: Array, turn: Array, order: str) -> Array:
    """Brightness, contrast, saturation and hue one after the other, in one matrix (torchvision's ColorJitter)."""
    parts = [_square(m) for m in (_brighten(brightness), _push(contrast), _saturate(saturation), _turn(hue))]
    stacked = np.stack(parts)
    orders = np.array(list(permutations(range(4))) if order == "random" else [range(4)])
    drawn, samples = orders[(turn * len(orders)).astype(int)], np.arange(len(turn))
    total = stacked[drawn[:, 0], samples]
    for place in range(1, 4):
        total = stacked[drawn[:, place], samples] @ total
    return np.asarray(total[:, :3])


@color()
def grayscale() -> Array:
    """Take the color away: every channel becomes the luma (BT.601)."""
    return _about(np.array(0.0), np.tile(LUMA, (3, 1)))


@color(uniforms=("order",))
def channel_shuffle(order: Array) -> Array:
    """Put red, green and blue into one of their six orders."""
    matrices = np.stack([np.eye(3, 4)[list(rows)] for rows in permutations(range(3))])
    return np.asarray(matrices[(order * len(matrices)).astype(int)])


@color()
def invert() -> Array:
    """Turn every channel into its negative, 255 - x."""
    return np.concatenate([-np.eye(3), np.full((3, 1), 255.0)], axis=1)
