"""Built-in matrix ops, compared with matrices and colors computed by hand."""

from typing import Any

import numpy as np
import pytest

from augment.params import Size
from augment.recipe.op import OPS
from augment.recipe.op_kinds import Array, PreparedOp


def geometry(name: str, size: int = 128, **values: Any) -> Array:
    """Return the matrix of an op, (N, 3, 3)."""
    arrays = {n: v if isinstance(v, str) else np.atleast_1d(np.asarray(v, float)) for n, v in values.items()}
    return np.asarray(OPS[name].function(size=Size(size, size), **arrays))


def moved(matrix: Array, x: float, y: float) -> list[float]:
    """Return where the first sample's matrix takes a point, in pixels from the middle."""
    result = matrix.reshape(-1, 3, 3)[0] @ [x, y, 1.0]
    assert result[2] == 1
    return list(result[:2])


@pytest.mark.parametrize(
    ("corner", "source"),
    [((0, 0), (-12.8, 6.4)), ((128, 0), (140.8, -6.4)), ((0, 128), (12.8, 121.6)), ((128, 128), (166.4, 108.8))],
)
def test_warp_matches_the_2019_recipe(corner: tuple[float, float], source: tuple[float, float]) -> None:
    # Destination to source, from the corner: A = [[1 + 2u, 2u], [2v, 1 + 2v]], b = -S (u, v). With u = .1, v = -.05 and
    # S = 128: A = [[1.2, .2], [-.1, .9]], b = (-12.8, 6.4). The middle of the image is 64 px from either side.
    matrix = geometry("warp", u=0.1, v=-0.05)
    assert moved(matrix, source[0] - 64, source[1] - 64) == pytest.approx([corner[0] - 64, corner[1] - 64])


NEUTRAL: dict[str, Any] = {"translate_x": 0.0, "translate_y": 0.0, "scale": 1.0, "shear_x": 0.0, "shear_y": 0.0}
HALF = 26.56505117707799  # degrees whose tangent is 1/2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
        ({"translate_x": 0.25}, [[1, 0, 32], [0, 1, 0], [0, 0, 1]]),
        ({"translate_y": -0.125}, [[1, 0, 0], [0, 1, -16], [0, 0, 1]]),
        ({"scale": 1.5}, [[1.5, 0, 0], [0, 1.5, 0], [0, 0, 1]]),
        ({"shear_x": HALF}, [[1, 0.5, 0], [0, 1, 0], [0, 0, 1]]),
        ({"shear_y": -HALF}, [[1, 0, 0], [-0.5, 1, 0], [0, 0, 1]]),
        # Sheared, then scaled, then shifted: the shift is not scaled.
        (
            {"translate_x": 0.25, "translate_y": 0.5, "scale": 2, "shear_x": HALF, "shear_y": -HALF},
            [[2, 1, 32], [-1, 1.5, 64], [0, 0, 1]],
        ),
    ],
)
def test_affine(values: dict[str, Any], expected: list[list[float]]) -> None:
    np.testing.assert_allclose(geometry("affine", **{**NEUTRAL, **values})[0], expected, atol=1e-12)


@pytest.mark.parametrize(
    ("angle", "expected"),
    [
        # At 90 degrees I becomes Q and Q becomes -I: red is Y + 0.956 Q - 0.621 I, whose part of red, for one, is
        # 0.299 + 0.956 x 0.211 - 0.621 x 0.596 = 0.131. Three decimals of YIQ limit what can be compared.
        (90, [[0.131, 0.257, 0.612, 0], [0.627, 0.552, -0.179, 0], [-0.949, 1.632, 0.317, 0]]),
        (36, [[0.767, -0.082, 0.315, 0], [0.250, 0.900, -0.151, 0], [-0.677, 0.726, 0.951, 0]]),
        (-36, [[0.965, 0.306, -0.271, 0], [-0.136, 0.942, 0.194, 0], [0.790, -0.503, 0.712, 0]]),
    ],
)
def test_hue_is_the_textbook_rotation_in_yiq(angle: float, expected: list[list[float]]) -> None:
    np.testing.assert_allclose(OPS["hue"].function(angle=np.array([float(angle)])), [expected], atol=3e-3)


def prepared(name: str, size: Size, **values: Any) -> dict[str, Any]:
    """Return what an op's values become, for one sample."""
    op = OPS[name]
    assert isinstance(op, PreparedOp)
    assert op.prepare
    fixed = {n: param.default for n, param in op.own_params.items() if n not in op.draws.values()}
    made = op.prepare(size=size, **fixed, **{n: np.array([value]) for n, value in values.items()})
    return {n: value[0] for n, value in made.items()}


def test_what_ops_draw_on_images_that_are_not_square() -> None:
    wide = Size(40, 90)
    # A quarter of the area of 60 x 60 px, at the lower right end; all of it, as far as it fits.
    hole = prepared("erase", wide, area=0.25, aspect=1.0, x=0.999, y=0.999)
    assert (hole["anchor"].tolist(), hole["shape"].tolist()) == ([10, 60], [30, 30])
    assert prepared("erase", wide, area=1.0, aspect=1.0, x=0.0, y=0.0)["shape"].tolist() == [40, 60]
    assert prepared("downscale", wide, scale=0.5)["side"].tolist() == [20, 45]
    assert prepared("grid_mask", wide, tile=0.5, ratio=0.5, angle=0.0, x=0.0, y=0.0)["tile"] == 20
    box = prepared("cutmix", Size(40, 80), uniform=0.75, x=0.5, y=0.25)  # half of each side
    assert np.flatnonzero(box["across"]).tolist() == list(range(20, 60))
    assert np.flatnonzero(box["down"]).tolist() == list(range(20))
    assert box["share"] == 0.75
    shifts = [prepared("elastic", size, std=0.1, seed=0.3)["shift"] for size in (wide, Size(40, 40))]
    np.testing.assert_array_equal(*shifts)
