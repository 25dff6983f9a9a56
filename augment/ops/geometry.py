"""Geometry ops: (N, 3, 3), source to destination, in pixels, origin in the middle of the picture, x right, y down."""

import numpy as np

from augment.ops.matrices import stack
from augment.params import Choice, Range
from augment.registry import Array, geometry


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


@geometry(
    x_range=Range(default=(-0.1, 0.1), within=(-1, 1), draws=("x",), doc="shift right over the side of the picture"),
    y_range=Range(default=(-0.1, 0.1), within=(-1, 1), draws=("y",), doc="shift down over the side of the picture"),
)
def translate(size: int, x: Array, y: Array) -> Array:
    """Shift the picture."""
    return stack((1, 0, size * x), (0, 1, size * y), (0, 0, 1))


@geometry(factor_range=Range(default=(0.9, 1.1), within=(0.1, 10), doc="magnification"))
def scale(size: int, factor: Array) -> Array:
    """Magnify the picture about its middle."""
    return stack((factor, 0, 0), (0, factor, 0), (0, 0, 1))


@geometry(
    x_range=Range(default=(-10, 10), within=(-60, 60), unit="deg", draws=("x",), doc="slant along x"),
    y_range=Range(default=(0, 0), within=(-60, 60), unit="deg", draws=("y",), doc="slant along y"),
    center=Choice(default="middle", options=("middle", "corner"), doc="what stays in place; PIL: the top left corner"),
)
def shear(size: int, x: Array, y: Array, center: str) -> Array:
    """Slant the picture along x, then along y; a positive angle moves what is below or right of the center forward."""
    tan_x, tan_y = np.tan(np.radians(x)), np.tan(np.radians(y))
    # The corner lies half a side left of and above the middle.
    fixed = size / 2 if center == "corner" else 0.0
    return stack((1, tan_x, tan_x * fixed), (tan_y, 1 + tan_x * tan_y, tan_y * (1 + tan_x) * fixed), (0, 0, 1))


@geometry(
    distortion_range=Range(default=(0, 0.25), within=(0, 0.9), doc="how far corners move at most, over half the side"),
    uniforms=("x0", "y0", "x1", "y1", "x2", "y2", "x3", "y3"),
)
def perspective(size: int, distortion: Array, **corners: Array) -> Array:
    """Look at the picture from aside: each corner moves inwards, along x and along y (as torchvision's)."""
    half = size / 2
    inwards = [1 - distortion * corners[name] for name in ("x0", "y0", "x1", "y1", "x2", "y2", "x3", "y3")]
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    # Two equations for each corner, for the eight free entries of the matrix: (a x + b y + c) - u (g x + h y) = u.
    equations, moved = [], []
    for i, (sx, sy) in enumerate(signs):
        u, v = sx * inwards[2 * i], sy * inwards[2 * i + 1]
        equations += [(sx, sy, 1, 0, 0, 0, -u * sx, -u * sy), (0, 0, 0, sx, sy, 1, -v * sx, -v * sy)]
        moved += [(u,), (v,)]
    entries = np.linalg.solve(stack(*equations), stack(*moved))[..., 0]
    unit = np.concatenate([entries, np.ones((*entries.shape[:-1], 1))], axis=-1).reshape(*entries.shape[:-1], 3, 3)
    to_unit, to_pixels = np.diag([1 / half, 1 / half, 1]), np.diag([half, half, 1])
    return np.asarray(to_pixels @ unit @ to_unit)


@geometry(moves_inside=True, turns_range=Range(default=(0, 3), within=(0, 3), whole=True, doc="quarter turns"))
def rot90(size: int, turns: Array) -> Array:
    """Turn the picture counter-clockwise by quarters, without resampling."""
    cos, sin = np.array([1, 0, -1, 0])[turns.astype(int)], np.array([0, 1, 0, -1])[turns.astype(int)]
    return stack((cos, sin, 0), (-sin, cos, 0), (0, 0, 1))
