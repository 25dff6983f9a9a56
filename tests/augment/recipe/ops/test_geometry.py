"""Geometry ops in pixels: where points are mapped, and images compared with NumPy and OpenCV."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rendering import SIZE, Pixels, draws_of, one_of_values, plan_of, read, render

from augment.params import Size
from augment.recipe.op import OPS

COUNT = 12
SQUARE, WIDE, TALL = Size(SIZE, SIZE), Size(40, 72), Size(72, 40)
EVERY_SIZE = pytest.mark.parametrize("size", [SQUARE, WIDE, TALL], ids=str)
Floats = NDArray[Any]


def land(op: str, points: list[tuple[float, float]], size: Size = SQUARE, **values: Any) -> Floats:
    """Return where an op takes points, (x, y) in pixels from the middle."""
    given = {n: v if isinstance(v, str) else np.array([float(v)]) for n, v in values.items()}
    matrix = np.asarray(OPS[op].function(size=size, **given)).reshape(-1, 3, 3)[0]
    moved = np.c_[np.array(points, float), np.ones(len(points))] @ matrix.T
    return np.asarray(moved[:, :2] / moved[:, 2:])


def corners(size: Size) -> list[tuple[float, float]]:
    return [(x * size.width / 2, y * size.height / 2) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))]


def test_shear_about_the_center() -> None:
    # Along x, by 45 degrees: a row moves right by its distance below the center.
    np.testing.assert_allclose(
        land("shear", [(0, 0), (0, 8), (3, -8)], x=45, y=0, center="middle"), [(0, 0), (8, 8), (-5, -8)], atol=1e-12
    )
    np.testing.assert_allclose(
        land("shear", [(8, 0), (-8, 3)], x=0, y=45, center="middle"), [(8, 8), (-8, -5)], atol=1e-12
    )
    # Along x, then along y: (0, 8) becomes (8, 8), which becomes (8, 16).
    np.testing.assert_allclose(land("shear", [(0, 8)], x=45, y=45, center="middle"), [(8, 16)], atol=1e-12)


@EVERY_SIZE
def test_perspective_matrices_match_opencv(size: Size) -> None:
    names = ("x0", "y0", "x1", "y1", "x2", "y2", "x3", "y3")
    drawn = {name: np.random.default_rng(i).random(5) for i, name in enumerate(names)}
    ours = OPS["perspective"].function(size=size, distortion=np.full(5, 0.5), **drawn)
    for sample, matrix in enumerate(ours):
        ends = [
            (x * (1 - 0.5 * drawn[f"x{i}"][sample]), y * (1 - 0.5 * drawn[f"y{i}"][sample]))
            for i, (x, y) in enumerate(corners(size))
        ]
        theirs = cv2.getPerspectiveTransform(np.array(corners(size), np.float32), np.array(ends, np.float32))
        np.testing.assert_allclose(matrix / matrix[2, 2], theirs, atol=1e-4)


def test_shifts_are_shares_of_the_own_side() -> None:
    """A warp's, too: from destination to source, the middle comes from (width u, height v)."""
    assert land("translate", [(1, 2)], WIDE, x=0.5, y=-0.25).tolist() == [[37, -8]]
    moved = land("affine", [(0, 0)], WIDE, translate_x=0.5, translate_y=-0.25, scale=2, shear_x=9, shear_y=3)
    assert moved.tolist() == [[36, -10]]
    np.testing.assert_allclose(land("warp", [(0.1 * 72, 0)], WIDE, u=0.1, v=0), [[0, 0]], atol=1e-12)
    np.testing.assert_allclose(land("warp", [(0, -0.05 * 40)], WIDE, u=0, v=-0.05), [[0, 0]], atol=1e-12)


@pytest.mark.parametrize("turns", range(4))
def test_quarter_turns_fill_what_is_not_square(turns: int) -> None:
    x, y = corners(WIDE)[0]
    there = [(x, y), (x, -y), (-x, -y), (-x, y)][turns]  # counter-clockwise from the top left corner
    np.testing.assert_allclose(land("rot90", [(x, y)], WIDE, turns=turns), [there], atol=1e-12)


def test_rot90_matches_numpy(soft: list[Path], device: torch.device) -> None:
    plan = plan_of({"rot90": {}})
    turns = draws_of(plan, COUNT)["rot90"]["turns"]
    assert set(turns) == {0, 1, 2, 3}
    expected = [np.rot90(image, int(k)) for image, k in zip(read(soft), turns, strict=True)]
    np.testing.assert_array_equal(render(plan, soft, device), np.stack(expected))


def test_whole_pixels_are_not_resampled(soft: list[Path], device: torch.device) -> None:
    plan = plan_of(
        {
            "translate": {
                "x_range": one_of_values(-0.25, 0, 0.125),
                "y_range": one_of_values(0, 0.5),
                "border": "constant",
            }
        }
    )
    drawn = draws_of(plan, COUNT)["translate"]
    expected = np.zeros((COUNT, SIZE, SIZE, 3), int)
    for i, image in enumerate(read(soft)):
        x, y = int(drawn["x"][i] * SIZE), int(drawn["y"][i] * SIZE)
        expected[i, max(0, y) : SIZE + min(0, y), max(0, x) : SIZE + min(0, x)] = image[
            max(0, -y) : SIZE + min(0, -y), max(0, -x) : SIZE + min(0, -x)
        ]
    np.testing.assert_array_equal(render(plan, soft, device), expected)


@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("scale", {"factor_range": [0.5, 2]}),
        ("shear", {"x_range": [-40, 40], "y_range": [-40, 40]}),
        ("shear", {"x_range": [-40, 40], "center": "corner"}),
        ("translate", {"x_range": [-0.4, 0.4]}),
        ("perspective", {"distortion_range": [0.3, 0.6]}),
    ],
)
@pytest.mark.parametrize("border", ["constant", "reflect_101"])
def test_images_match_opencv(
    op: str, params: dict[str, Any], border: str, soft: list[Path], device: torch.device
) -> None:
    plan = plan_of({op: params | {"border": border, "fill": 40}})
    matrices = plan.stages[0].matrix(draws_of(plan, COUNT), plan.size)
    ours = render(plan, soft, device)
    middle = (SIZE - 1) / 2
    there, back = (np.array([[1, 0, s * middle], [0, 1, s * middle], [0, 0, 1]]) for s in (1, -1))
    modes = {"constant": cv2.BORDER_CONSTANT, "reflect_101": cv2.BORDER_REFLECT_101}
    for image, made, matrix in zip(read(soft), ours, matrices, strict=True):
        theirs: Pixels = cv2.warpPerspective(
            image.astype(np.uint8),
            there @ matrix @ back,
            (SIZE, SIZE),
            flags=cv2.INTER_LINEAR,
            borderMode=modes[border],
            borderValue=(40, 40, 40),
        )
        off = np.abs(made - theirs.astype(int))
        # OpenCV rounds coordinates to 1/32 of a pixel, which matters more at edges in a photo and at its border.
        assert np.quantile(off, 0.98) <= 2
        assert off.mean() <= 0.6
