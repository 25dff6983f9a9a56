"""Geometry ops: (N, 3, 3) matrices from source to destination.

Coordinates are in pixels from the center of the image. x points right, y down. Horizontal shifts are shares of the
width, vertical shifts are shares of the height.
"""

from typing import Any

import numpy as np

from augment.params import Choice, Range, Size
from augment.recipe.op import geometry
from augment.recipe.op_kinds import Array


def stack(*rows: tuple[Any, ...]) -> Array:
    """Stack rows of scalars and (N,) arrays into (N, R, C) matrices, or (R, C) if all entries are scalars."""
    entries = np.broadcast_arrays(*[entry for row in rows for entry in row])
    return np.stack(entries, axis=-1).reshape(*entries[0].shape, len(rows), -1).astype(np.float64)


@geometry(
    moves_inside=True,
    direction=Choice(default="horizontal", options=("horizontal", "vertical"), doc="direction of mirroring"),
)
def flip(size: Size, direction: str) -> Array:
    """Mirror the image. Horizontal swaps left and right, vertical swaps top and bottom."""
    return np.diag([-1.0, 1.0, 1.0] if direction == "horizontal" else [1.0, -1.0, 1.0])


@geometry(
    angle_range=Range(default=(-7, 7), within=(-360, 360), severe=(45,), unit="deg", doc="counter-clockwise angle")
)
def rotate(size: Size, angle: Array) -> Array:
    """Rotate the image about its center."""
    cos, sin = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    return stack((cos, sin, 0), (-sin, cos, 0), (0, 0, 1))


@geometry(
    # If u and v were both -1/4, the matrix would be singular.
    magnitude_range=Range(
        default=(-0.1, 0.1),
        within=(-0.24, 0.24),
        draws=("u", "v"),
        doc="entries u and v of the map, drawn independently",
    )
)
def warp(size: Size, u: Array, v: Array) -> Array:
    """Scale, shear and shift the image by an affine map with two random numbers.

    With the origin in the center, the map from destination to source is A = [[1 + 2u, 2u], [2v, 1 + 2v]],
    b = (width u, height v). On a square with the origin in the top left corner, b = -size (u, v), as in a 2019
    Imagenette recipe.
    """
    height, width = size
    source = stack((1 + 2 * u, 2 * u, width * u), (2 * v, 1 + 2 * v, height * v), (0, 0, 1))
    return np.asarray(np.linalg.inv(source), np.float64)


@geometry(
    translate_range=Range(
        default=(-0.1, 0.1),
        within=(-1, 1),
        draws=("translate_x", "translate_y"),
        doc="shift to the right (share of the width) and down (share of the height), drawn independently",
    ),
    scale_range=Range(default=(0.9, 1.1), within=(0.1, 10), doc="scale factor"),
    shear_range=Range(
        default=(-5, 5),
        within=(-60, 60),
        unit="deg",
        draws=("shear_x", "shear_y"),
        doc="shear angles along x, then along y, drawn independently",
    ),
)
def affine(size: Size, translate_x: Array, translate_y: Array, scale: Array, shear_x: Array, shear_y: Array) -> Array:
    """Shear, scale and shift the image, in this order, about its center. Shearing keeps areas."""
    tan_x, tan_y = np.tan(np.radians(shear_x)), np.tan(np.radians(shear_y))
    height, width = size
    across, down = (scale, scale * tan_x), (scale * tan_y, scale * (1 + tan_x * tan_y))
    return stack((*across, width * translate_x), (*down, height * translate_y), (0, 0, 1))


@geometry(
    x_range=Range(default=(-0.1, 0.1), within=(-1, 1), draws=("x",), doc="shift to the right as a share of the width"),
    y_range=Range(default=(-0.1, 0.1), within=(-1, 1), draws=("y",), doc="shift down as a share of the height"),
)
def translate(size: Size, x: Array, y: Array) -> Array:
    """Shift the image."""
    height, width = size
    return stack((1, 0, width * x), (0, 1, height * y), (0, 0, 1))


@geometry(factor_range=Range(default=(0.9, 1.1), within=(0.1, 10), severe=(0.5, 2), doc="scale factor"))
def scale(size: Size, factor: Array) -> Array:
    """Scale the image about its center."""
    return stack((factor, 0, 0), (0, factor, 0), (0, 0, 1))


@geometry(
    x_range=Range(default=(-10, 10), within=(-60, 60), unit="deg", draws=("x",), doc="shear angle along x"),
    y_range=Range(default=(0, 0), within=(-60, 60), unit="deg", draws=("y",), doc="shear angle along y"),
    center=Choice(
        default="middle",
        options=("middle", "corner"),
        doc="fixed point: the center, or the top left corner as in PIL",
    ),
)
def shear(size: Size, x: Array, y: Array, center: str) -> Array:
    """Shear the image along x, then along y. Positive angles move lower pixels right and right pixels down."""
    tan_x, tan_y = np.tan(np.radians(x)), np.tan(np.radians(y))
    height, width = size
    # The corner is half a side to the left of the center and half a side above it.
    above = height / 2 if center == "corner" else 0.0
    down = tan_y * (width / height + tan_x) * above
    return stack((1, tan_x, tan_x * above), (tan_y, 1 + tan_x * tan_y, down), (0, 0, 1))


@geometry(
    distortion_range=Range(
        default=(0, 0.25),
        within=(0, 0.9),
        severe=(0.6,),
        doc="largest shift of a corner as a share of half the width and height",
    ),
    uniforms=("x0", "y0", "x1", "y1", "x2", "y2", "x3", "y3"),
)
def perspective(size: Size, distortion: Array, **corners: Array) -> Array:
    """Change the perspective: each corner moves inwards by random amounts, as in torchvision."""
    down, right = size[0] / 2, size[1] / 2
    inwards = [1 - distortion * corners[name] for name in ("x0", "y0", "x1", "y1", "x2", "y2", "x3", "y3")]
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    # Each corner gives two equations for the eight free entries of the matrix, such as
    # (a x + b y + c) - u (g x + h y) = u.
    equations, moved = [], []
    for i, (sx, sy) in enumerate(signs):
        u, v = sx * inwards[2 * i], sy * inwards[2 * i + 1]
        equations += [(sx, sy, 1, 0, 0, 0, -u * sx, -u * sy), (0, 0, 0, sx, sy, 1, -v * sx, -v * sy)]
        moved += [(u,), (v,)]
    entries = np.linalg.solve(stack(*equations), stack(*moved))[..., 0]
    unit = np.concatenate([entries, np.ones((*entries.shape[:-1], 1))], axis=-1).reshape(*entries.shape[:-1], 3, 3)
    to_unit, to_pixels = np.diag([1 / right, 1 / down, 1]), np.diag([right, down, 1])
    return np.asarray(to_pixels @ unit @ to_unit)


@geometry(
    moves_inside=True, turns_range=Range(default=(0, 3), within=(0, 3), whole=True, doc="number of quarter turns")
)
def rot90(size: Size, turns: Array) -> Array:
    """Rotate the image counter-clockwise by quarter turns. A non-square image is stretched back to its size."""
    cos, sin = np.array([1, 0, -1, 0])[turns.astype(int)], np.array([0, 1, 0, -1])[turns.astype(int)]
    height, width = size
    return stack((cos, sin * (width / height), 0), (-sin * (height / width), cos, 0), (0, 0, 1))
