"""Real DALI, on the CPU and on the GPU, against OpenCV and NumPy, pixel by pixel."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from pipelines import SIZE, assert_close, pixels, plan_of, read, run

from augment.data.dataset import Split
from augment.recipe.op_kinds import BORDERS


@pytest.mark.parametrize(
    ("mean", "std"), [(None, None), ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), ((0.1, 0.5, 0.9), (0.5, 0.25, 2.0))]
)
def test_normalization(image_files: Split, device: torch.device, mean: Any, std: Any) -> None:
    plan = plan_of({"hue": {}}, size=16, mean=mean, std=std)
    raw, _ = run(plan, image_files.files, device)
    expected = (raw / 255 - (mean or (0.485, 0.456, 0.406))) / (std or (0.229, 0.224, 0.225))
    full, _ = run(plan, image_files.files, device, raw=False)
    half, _ = run(plan, image_files.files, device, raw=False, half=True)
    np.testing.assert_allclose(full, expected, rtol=1e-5, atol=1e-5)
    # Ten bits of mantissa.
    np.testing.assert_allclose(half, expected, rtol=2**-10, atol=2**-10)


def test_directions_as_one_sees_them(photos: tuple[Path, ...], device: torch.device) -> None:
    plain = read(photos)
    shift = {"scale_range": [1, 1], "shear_range": [0, 0], "border": "constant"}
    for steps, expected in (
        ({"flip": {}}, plain[:, :, ::-1]),
        ({"flip": {"direction": "vertical"}}, plain[:, ::-1]),
        ({"rotate": {"angle_range": [90, 90]}}, np.rot90(plain, axes=(1, 2))),
        ({"rotate": {"angle_range": [-90, -90]}}, np.rot90(plain, -1, axes=(1, 2))),
        ({"affine": {"translate_range": [0.25, 0.25], **shift}}, np.pad(plain, [(0, 0), (16, 0), (16, 0), (0, 0)])),
    ):
        # float32 coordinates are not whole numbers to the last bit.
        assert_close(pixels(steps, photos, device), expected[:, :SIZE, :SIZE], most=1, mean=0.01)


CV_BORDERS = {
    "reflect_101": cv2.BORDER_REFLECT_101,
    "constant": cv2.BORDER_CONSTANT,
    "replicate": cv2.BORDER_REPLICATE,
    "wrap": cv2.BORDER_WRAP,
}


@pytest.mark.parametrize("border", BORDERS)
def test_warp_against_opencv(border: str, photos: tuple[Path, ...], device: torch.device) -> None:
    common = {"border": border, "fill": 77}
    steps = {
        "affine": {"translate_range": [0.25, 0.25], "scale_range": [0.8, 0.8], "shear_range": [0, 0], **common},
        "flip": {},
        "rotate": {"angle_range": [30, 30], **common},
    }
    # By hand: scaled by .8, shifted by .25 x 64 px, mirrored, turned by 30 degrees, about the middle at 31.5 px.
    affine, mirror = np.array([[0.8, 0, 16], [0, 0.8, 16], [0, 0, 1]]), np.diag([-1.0, 1, 1])
    turn = np.array([[3**0.5 / 2, 0.5, 0], [-0.5, 3**0.5 / 2, 0], [0, 0, 1]])
    there, back = (np.array([[1, 0, m], [0, 1, m], [0, 0, 1]]) for m in (31.5, -31.5))
    matrix = there @ turn @ mirror @ affine @ back
    expected = [
        cv2.warpPerspective(
            image.astype(np.uint8), matrix, (SIZE, SIZE), borderMode=CV_BORDERS[border], borderValue=(77, 77, 77)
        )
        for image in read(photos)
    ]
    # OpenCV may round its coordinates to 1/32 px, which these smooth images show by at most two gray levels.
    # Where wrap or a constant puts an edge next to the image, the same 1/32 px weigh more: few pixels, so the mean.
    sharp_edge = border in ("wrap", "constant")
    assert_close(pixels(steps, photos, device), np.stack(expected), most=8 if sharp_edge else 2, mean=0.3)
