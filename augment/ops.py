"""The built-in ops. A declaration is all there is to say about an op: parameters, kind, function and help text."""

from typing import TYPE_CHECKING, Any

import numpy as np

from augment.params import Choice, Interval, Number, Range
from augment.registry import Array, color, crop, geometry

if TYPE_CHECKING:
    from augment.pipeline import Picture

# ITU-R BT.601 luma, as in JPEG, PIL and torchvision.
LUMA = (0.299, 0.587, 0.114)

# RGB to YIQ and back. The inverse is computed, so that a rotation by 0 degrees is the identity.
_YIQ = np.array([LUMA, (0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135)])
_RGB = np.linalg.inv(_YIQ)

# Contrast turns about the middle of the range and not about the picture's mean: a matrix cannot look at the picture.
_GRAY = 128.0


def stack(*rows: tuple[Any, ...]) -> Array:
    """Stack rows of scalars and (N,) arrays into (N, R, C), or into (R, C) if all are scalars."""
    entries = np.broadcast_arrays(*[entry for row in rows for entry in row])
    return np.stack(entries, axis=-1).reshape(*entries[0].shape, len(rows), -1).astype(np.float64)


# --- crop: which part of the picture becomes (size, size) ---


@crop()
def resize(picture: "Picture", size: int) -> Any:
    """Resize the whole picture to the square, whatever its aspect ratio."""
    return picture.resize(picture.decode(), size)


@crop(
    area_range=Range(default=(0.35, 1.0), within=(0, 1), above=0, doc="area of the window over that of the picture"),
    aspect_range=Range(default=(3 / 4, 4 / 3), within=(0.01, 100), doc="width of the window over its height"),
)
def random_resized_crop(picture: "Picture", size: int, area_range: Interval, aspect_range: Interval) -> Any:
    """Cut a window of random area, aspect ratio and place, and resize it to the square (Szegedy et al. 2015)."""
    return picture.resize(picture.decode_random_window(area_range, aspect_range), size)


@crop(scale=Number(default=1.0, within=(0, 1), above=0, doc="side of the square over the picture's short side"))
def center_crop(picture: "Picture", size: int, scale: float) -> Any:
    """Cut a centered square, measured against each picture's own short side, and resize it."""
    image = picture.decode()
    return picture.resize(image, size, window=picture.centered_square(image, scale))


# --- geometry: (N, 3, 3), source to destination, pixels, origin in the middle, x right, y down ---


@geometry(
    moves_inside=True,
    direction=Choice(default="horizontal", options=("horizontal", "vertical"), doc="which way it is mirrored"),
)
def flip(size: int, direction: str) -> Array:
    """Mirror the picture: horizontal swaps left and right, vertical swaps top and bottom."""
    return np.diag([-1.0, 1.0, 1.0] if direction == "horizontal" else [1.0, -1.0, 1.0])


@geometry(angle_range=Range(default=(-7, 7), within=(-360, 360), unit="deg", doc="angle, counter-clockwise"))
def rotate(size: int, angle: Array) -> Array:
    """Turn the picture about its middle."""
    cos, sin = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    return stack((cos, sin, 0), (-sin, cos, 0), (0, 0, 1))


@geometry(
    # Below -1/4 for both the matrix could not be inverted.
    magnitude_range=Range(default=(-0.1, 0.1), within=(-0.24, 0.24), draws=("u", "v"), doc="u and v, one draw for each")
)
def warp(size: int, u: Array, v: Array) -> Array:
    """Random affine map of two numbers, which scales, slants and shifts at once.

    Destination to source it is A = [[1 + 2u, 2u], [2v, 1 + 2v]], b = -size (u, v) in coordinates from the corner, a
    recipe for Imagenette of 2019; measured from the middle, b becomes +size (u, v).
    """
    source = stack((1 + 2 * u, 2 * u, size * u), (2 * v, 1 + 2 * v, size * v), (0, 0, 1))
    return np.asarray(np.linalg.inv(source), np.float64)


@geometry(
    translate_range=Range(
        default=(-0.1, 0.1),
        within=(-1, 1),
        draws=("translate_x", "translate_y"),
        doc="shift right and shift down, one draw for each, over the side of the picture",
    ),
    scale_range=Range(default=(0.9, 1.1), within=(0.1, 10), doc="magnification"),
    shear_range=Range(
        default=(-5, 5),
        within=(-44, 44),
        unit="deg",
        draws=("shear_x", "shear_y"),
        doc="slant along x and along y, one draw for each",
    ),
)
def affine(size: int, translate_x: Array, translate_y: Array, scale: Array, shear_x: Array, shear_y: Array) -> Array:
    """Shear, then scale, then shift the picture about its middle."""
    tan_x, tan_y = np.tan(np.radians(shear_x)), np.tan(np.radians(shear_y))
    return stack((scale, scale * tan_x, size * translate_x), (scale * tan_y, scale, size * translate_y), (0, 0, 1))


# --- color: (N, 3, 4) on RGB in 0..255 ---


def _about(factor: Array, pivot: Array, offset: float = 0.0) -> Array:
    """Scale the distance from `pivot @ rgb + offset` by a factor: (N, 3, 4) from (N,) and (3, 3)."""
    factor = np.asarray(factor)[..., None, None]
    matrix = np.concatenate([pivot, np.full((3, 1), offset)], axis=1)
    return np.asarray(factor * np.eye(3, 4) + (1 - factor) * matrix, np.float64)


@color(factor_range=Range(default=(0.8, 1.2), within=(0, 10), doc="what every channel is multiplied by"))
def brightness(factor: Array) -> Array:
    """Multiply the picture by a factor, as torchvision and PIL do."""
    return _about(factor, np.zeros((3, 3)))


@color(factor_range=Range(default=(0.8, 1.2), within=(0, 10), doc="what the distance from gray 128 is multiplied by"))
def contrast(factor: Array) -> Array:
    """Move every channel away from gray 128, or towards it (torchvision and PIL: the picture's mean gray)."""
    return _about(factor, np.zeros((3, 3)), _GRAY)


@color(
    factor_range=Range(
        default=(0.8, 1.2), within=(0, 10), doc="what the distance from the pixel's gray is multiplied by"
    )
)
def saturation(factor: Array) -> Array:
    """Move every pixel away from its own gray (BT.601 luma), or towards it, as torchvision and PIL do."""
    return _about(factor, np.tile(LUMA, (3, 1)))


@color(angle_range=Range(default=(-18, 18), within=(-180, 180), unit="deg", doc="angle in the IQ plane"))
def hue(angle: Array) -> Array:
    """Turn the chroma of every pixel in YIQ, from red towards yellow; its luma stays (torchvision turns HSV's hue)."""
    cos, sin, zero = np.cos(np.radians(angle)), np.sin(np.radians(angle)), np.zeros_like(angle)
    matrix = _RGB @ stack((1, 0, 0), (0, cos, sin), (0, -sin, cos)) @ _YIQ
    return np.concatenate([matrix, stack((zero,), (zero,), (zero,))], axis=-1)
