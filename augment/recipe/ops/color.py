"""Color ops: (N, 3, 4) matrices on (R, G, B, 1) in 0..255. `color_jitter` applies four of them."""

from itertools import permutations

import numpy as np

from augment.params import Choice, Count, Range
from augment.recipe.op import color
from augment.recipe.op_kinds import Array
from augment.recipe.ops.geometry import stack

# ITU-R BT.601 luma, as in JPEG, PIL and torchvision.
LUMA = (0.299, 0.587, 0.114)

# RGB to YIQ and back. The inverse is computed, so a rotation by 0 degrees is the identity.
_YIQ = np.array([LUMA, (0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135)])
_RGB = np.linalg.inv(_YIQ)

# The default pivot of contrast, because the image's mean would need more DALI operators.
_GRAY = 128.0


def _about(factor: Array, pivot: Array, offset: float = 0.0) -> Array:
    """Scale the distance from `pivot @ rgb + offset` by a factor: (N,) and (3, 3) -> (N, 3, 4)."""
    factor = np.asarray(factor)[..., None, None]
    matrix = np.concatenate([pivot, np.full((3, 1), offset)], axis=1)
    return np.asarray(factor * np.eye(3, 4) + (1 - factor) * matrix, np.float64)


def _brighten(factor: Array) -> Array:
    return _about(factor, np.zeros((3, 3)))


def _saturate(factor: Array) -> Array:
    return _about(factor, np.tile(LUMA, (3, 1)))


def _turn(angle: Array) -> Array:
    cos, sin, zero = np.cos(np.radians(angle)), np.sin(np.radians(angle)), np.zeros_like(angle)
    matrix = _RGB @ stack((1, 0, 0), (0, cos, sin), (0, -sin, cos)) @ _YIQ
    return np.concatenate([matrix, stack((zero,), (zero,), (zero,))], axis=-1)


_PIVOT = Choice(
    default="middle",
    options=("middle", "mean"),
    doc="pivot of contrast: gray level 128 (middle), or the image's mean luma as in torchvision and PIL (mean)",
)


def _contrast(factor: Array, pivot: str) -> Array:
    if pivot == "middle":
        return _about(factor, np.zeros((3, 3)), _GRAY)
    factor = np.asarray(factor)[..., None, None]
    away = np.broadcast_to(factor * np.eye(3), (*factor.shape[:-2], 3, 3))
    mean = (1 - factor) * np.tile(LUMA, (3, 1))
    return np.concatenate([away, mean, np.zeros((*mean.shape[:-1], 1))], axis=-1)


# Nobody rotates hue by half a degree. Such a value probably comes from torchvision, where 1 is a full turn.
_TURNS = (0.5, "torchvision's hue of 0.1 is 36 deg")


@color(
    channels="separable",
    factor_range=Range(default=(0.8, 1.2), within=(0, 10), severe=(0.2, 2.5), doc="factor of every channel"),
)
def brightness(factor: Array) -> Array:
    """Multiply all channels by a factor, as torchvision and PIL do."""
    return _brighten(factor)


@color(
    channels="separable",
    factor_range=Range(
        default=(0.8, 1.2), within=(0, 10), severe=(0.1, 3), doc="factor of the distance from the pivot"
    ),
    pivot=_PIVOT,
)
def contrast(factor: Array, pivot: str) -> Array:
    """Scale the distance of every channel from a gray level: 128 (faster), or the image's mean luma."""
    return _contrast(factor, pivot)


@color(
    factor_range=Range(
        default=(0.8, 1.2), within=(0, 10), severe=(0, 4), doc="factor of the distance from the pixel's gray"
    )
)
def saturation(factor: Array) -> Array:
    """Scale the distance of every pixel from its BT.601 luma, as torchvision and PIL do."""
    return _saturate(factor)


@color(
    angle_range=Range(
        default=(-18, 18),
        within=(-180, 180),
        severe=(180,),
        unit="deg",
        doubt=_TURNS,
        doc="rotation angle in the IQ plane",
    )
)
def hue(angle: Array) -> Array:
    """Rotate the chroma of every pixel in YIQ at constant luma, from red towards yellow (torchvision uses HSV)."""
    return _turn(angle)


@color(
    brightness_range=Range(default=(0.8, 1.2), within=(0, 10), doc="factor of every channel"),
    contrast_range=Range(default=(0.8, 1.2), within=(0, 10), doc="factor of the distance from the pivot"),
    saturation_range=Range(default=(0.8, 1.2), within=(0, 10), doc="factor of the distance from the pixel's gray"),
    hue_range=Range(
        default=(-18, 18), within=(-180, 180), unit="deg", doubt=_TURNS, doc="rotation angle in the IQ plane"
    ),
    order=Choice(
        default="listed",
        options=("listed", "random"),
        doc="order of the four changes: as listed, or random for each sample as in torchvision",
    ),
    pivot=_PIVOT,
    uniforms=("turn",),
)
def color_jitter(
    brightness: Array, contrast: Array, saturation: Array, hue: Array, turn: Array, order: str, pivot: str
) -> Array:
    """Change brightness, contrast, saturation and hue (like torchvision's ColorJitter)."""
    parts = [_brighten(brightness), _contrast(contrast, pivot), _saturate(saturation), _turn(hue)]
    if pivot == "mean":
        parts = [part if part.shape[-1] == 7 else np.insert(part, [3] * 3, 0, axis=-1) for part in parts]
    orders = np.array(list(permutations(range(4))) if order == "random" else [range(4)])
    drawn = orders[(turn * len(orders)).astype(int)]
    return np.asarray(np.stack(parts, axis=1)[np.arange(len(drawn))[:, None], drawn])


@color()
def grayscale() -> Array:
    """Convert the image to gray: every channel becomes the BT.601 luma."""
    return _about(np.array(0.0), np.tile(LUMA, (3, 1)))


@color(uniforms=("order",))
def channel_shuffle(order: Array) -> Array:
    """Permute red, green and blue at random."""
    matrices = np.stack([np.eye(3, 4)[list(rows)] for rows in permutations(range(3))])
    return np.asarray(matrices[(order * len(matrices)).astype(int)])


@color(channels="any")
def invert() -> Array:
    """Invert every channel: 255 - x."""
    return np.concatenate([-np.eye(3), np.full((3, 1), 255.0)], axis=1)


@color(
    channels="separate",
    factor_range=Range(default=(0.9, 1.1), within=(0, 10), severe=(0.5, 1.5), doc="factor, drawn for each channel"),
)
def channel_gain(factor: Array) -> tuple[Array, Array]:
    """Multiply each channel by its own factor, as if sensors or exposures differed."""
    return factor, np.zeros_like(factor)


@color(
    channels="separate",
    uniforms=("order",),
    count=Count(default=1, within=(1, 63), doc="number of channels to drop. One channel always remains"),
    level=Count(default=0, within=(0, 255), doc="gray level of dropped channels"),
)
def channel_drop(order: Array, count: int, level: int) -> tuple[Array, Array]:
    """Replace random channels with a constant level, so that the model does not depend on a single channel."""
    rank = order.argsort(axis=1).argsort(axis=1)
    dropped = rank < min(count, order.shape[1] - 1)
    return np.where(dropped, 0.0, 1.0), np.where(dropped, float(level), 0.0)
