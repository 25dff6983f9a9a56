"""Local ops, compared with Pillow, OpenCV, SciPy and NumPy pixel by pixel, on images that use all levels.

Tolerances: 1 for rounding; on the GPU one more, as ties are rounded differently; JPEG has another inverse transform.
"""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from rendering import SIZE, Pixels, compare, draws_of, one_of_values, plan_of, read, render, rounding, save
from torch.nn import functional as F

from augment.recipe.ops.local import _line_kernels


def by_pillow(function: Callable[..., Image.Image]) -> Callable[..., Pixels]:
    return lambda image, **values: np.asarray(function(Image.fromarray(image), **values))


def by_channel(function: Callable[..., Pixels]) -> Callable[..., Pixels]:
    def run(image: Pixels, **values: Any) -> Pixels:
        return np.stack([function(np.ascontiguousarray(image[..., c]), **values) for c in range(3)], axis=-1)

    return run


def gaussian(image: Pixels, sigma: float) -> Pixels:
    side = 2 * int(np.ceil(3 * sigma)) + 1
    return cv2.GaussianBlur(image, (side, side), sigma, borderType=cv2.BORDER_REFLECT_101)


def sharpness(image: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Sharpness(image).enhance(factor)


def solarized(image: Image.Image, threshold: float) -> Image.Image:
    return ImageOps.solarize(image, threshold)  # type: ignore[arg-type]  # a float will do


def posterized(image: Image.Image, bits: float) -> Image.Image:
    return ImageOps.posterize(image, int(bits))


def powered(image: Pixels, gamma: float) -> Pixels:
    return np.asarray(np.rint(255 * (image / 255) ** gamma))


def shrunk(image: Image.Image, scale: float, back: Image.Resampling) -> Image.Image:
    side = round(SIZE * scale)
    return image.resize((side, side), Image.Resampling.BILINEAR).resize((SIZE, SIZE), back)


def box(image: Pixels, length: float, angle: float) -> Pixels:
    side = (int(length), 1) if angle % 180 == 0 else (1, int(length))
    return cv2.blur(image, side, borderType=cv2.BORDER_REFLECT_101)


@pytest.mark.parametrize(
    ("op", "params", "reference", "most", "mean", "inside"),
    [
        ("gaussian_blur", {"sigma_range": one_of_values(0.3, 1, 2.5)}, gaussian, 1, 0.1, 0),
        # Pillow rounds the smooth image before it weighs it, and leaves the outermost pixels alone.
        ("sharpen", {"factor_range": one_of_values(0, 0.5, 1, 2, 3)}, by_pillow(sharpness), 1, 0.4, 1),
        ("gamma", {"gamma_range": one_of_values(0.5, 0.8, 1, 2.2)}, powered, 1, 0.01, 0),
        ("solarize", {"threshold_range": one_of_values(0, 99.5, 128, 255, 256)}, by_pillow(solarized), 0, 0, 0),
        ("posterize", {"bits_range": one_of_values(1, 2, 4, 7, 8)}, by_pillow(posterized), 0, 0, 0),
        ("equalize", {}, by_channel(cv2.equalizeHist), 0, 0, 0),
        # Pillow cuts off where we round.
        ("autocontrast", {}, by_pillow(ImageOps.autocontrast), 1, 0.8, 0),
        # At the edges Pillow averages fewer pixels, while we repeat the outermost pixel.
        (
            "downscale",
            {"scale_range": one_of_values(0.25, 0.5, 0.73)},
            by_pillow(partial(shrunk, back=Image.Resampling.NEAREST)),
            1,
            0.3,
            4,
        ),
        (
            "downscale",
            {"scale_range": one_of_values(0.25, 0.5, 0.73), "interpolation": "linear"},
            by_pillow(partial(shrunk, back=Image.Resampling.BILINEAR)),
            3,
            0.6,
            4,
        ),
        (
            "motion_blur",
            {"length_range": one_of_values(1, 3, 5, 9), "angle_range": one_of_values(0, 90, 180)},
            box,
            1,
            0.1,
            0,
        ),
    ],
)
def test_op_against_another_library(
    op: str,
    params: dict[str, Any],
    reference: Callable[..., Pixels],
    most: float,
    mean: float,
    inside: int,
    vivid: list[Path],
    device: torch.device,
) -> None:
    largest, average = compare(op, params, reference, vivid, device, inside)
    assert largest <= rounding(most, device)
    assert average <= mean


@pytest.mark.parametrize("quality", [10, 50, 90])
def test_jpeg_matches_pillow(quality: int, vivid: list[Path], device: torch.device) -> None:
    def encoded(image: Image.Image, quality: float) -> Image.Image:
        buffer = io.BytesIO()
        image.save(buffer, "jpeg", quality=int(quality))
        return Image.open(buffer)

    params = {"quality_range": [quality, quality]}
    largest, average = compare("jpeg", params, by_pillow(encoded), vivid, device)
    if device.type == "cpu":
        assert largest <= 2
    assert average <= (0.1 if device.type == "cpu" else 16), "the GPU's upsamples vivid chroma otherwise"
    off = np.abs(render(plan_of({"jpeg": params}), vivid, device) - read(vivid)).mean()
    assert off > (average if device.type == "cpu" else 1), "it does leave marks"


# --- equalize and autocontrast ---


def test_autocontrast_keeps_a_channel_of_a_single_level(grays: list[Path], device: torch.device) -> None:
    np.testing.assert_array_equal(render(plan_of({"autocontrast": {}}), grays, device), 100)


# --- motion blur ---


def test_kernels_of_motion_blur() -> None:
    lengths, angles = np.array([1, 5, 5, 5, 7.3]), np.array([30, 0, 90, 45, 200.0])
    kernels = _line_kernels(SIZE, lengths, angles)["kernel"]
    assert kernels.shape == (5, 9, 9)
    np.testing.assert_allclose(kernels.sum(axis=(1, 2)), 1, rtol=1e-6)
    np.testing.assert_allclose(kernels[0], np.eye(9)[:, [4]] @ np.eye(9)[[4]], atol=1e-7, err_msg="1 px: no blur")
    level = np.array([0, 0, 0.2, 0.2, 0.2, 0.2, 0.2, 0, 0])
    np.testing.assert_allclose(kernels[1], np.eye(9)[:, [4]] * level, atol=1e-6)
    np.testing.assert_allclose(kernels[2], kernels[1].T, atol=1e-6)
    # Symmetric about the middle: nothing is moved.
    np.testing.assert_allclose(kernels, kernels[:, ::-1, ::-1], atol=1e-6)
    # The spread along the line is that of a box: (length^2 - 1) / 12, and half a pixel's that is bent at most.
    y, x = np.mgrid[-4:5, -4:5]
    spread = (kernels * (x**2 + y**2)).sum(axis=(1, 2))
    np.testing.assert_allclose(spread, (lengths**2 - 1) / 12, atol=0.5)


def test_motion_blur_angle_is_counter_clockwise(tmp_path: Path, device: torch.device) -> None:
    point = np.zeros((SIZE, SIZE, 3))
    point[30, 30] = 255
    params = {"length_range": [9, 9], "angle_range": [45, 45]}
    (blurred,) = render(plan_of({"motion_blur": params}), save(tmp_path, [point]), device)
    assert blurred[28, 32].min() > 10, "above, to the right"
    assert blurred[32, 28].min() > 10, "below, to the left"
    assert blurred[28, 28].max() == blurred[32, 32].max() == 0


# --- elastic ---


def test_elastic_moves_pixels_by_shifts_between_which_it_interpolates(vivid: list[Path], device: torch.device) -> None:
    """As up to 0.15, where the shifts of all pixels were interpolated at once."""
    plan = plan_of({"elastic": {"std_range": [0.05, 0.05]}})
    shift = plan.stages[0].values(draws_of(plan, len(vivid)), plan.size)["shift"]
    fine = 2 / (SIZE - 1) * F.interpolate(torch.tensor(shift), (SIZE, SIZE), mode="bicubic", align_corners=True)
    x = torch.linspace(-1, 1, SIZE)
    source = torch.stack([x - fine[:, 0], x[:, None] - fine[:, 1]], dim=-1)
    planes = torch.from_numpy(read(vivid)).float().permute(0, 3, 1, 2)
    expected = F.grid_sample(planes, source, padding_mode="reflection", align_corners=True).permute(0, 2, 3, 1)
    assert np.abs(render(plan, vivid, device) - expected.numpy()).max() < 1
