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
from rendering import (
    SIZE,
    Pixels,
    compare,
    draws_of,
    one_of_values,
    plan_of,
    read,
    render,
    rounding,
    save,
    vivid_images,
)
from scipy.stats import binomtest, kstest

from augment.recipe.ops.elastic import _bend, _displacements
from augment.recipe.ops.local import _lines

COUNT = 24


@pytest.fixture(scope="module")
def vivid(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return save(tmp_path_factory.mktemp("vivid"), vivid_images(COUNT))


@pytest.fixture(scope="module")
def grays(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Images of one gray, 100."""
    return save(tmp_path_factory.mktemp("grays"), [np.full((SIZE, SIZE, 3), 100)] * COUNT)


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


def clahe(image: Pixels) -> Pixels:
    lab = cv2.cvtColor(image, cv2.COLOR_RGB2LAB)
    lab[..., 0] = cv2.createCLAHE(2.0, (8, 8)).apply(np.ascontiguousarray(lab[..., 0]))
    return cv2.cvtColor(lab, cv2.COLOR_LAB2RGB)


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


def test_clahe_matches_opencv_on_lab_lightness(vivid: list[Path], device: torch.device) -> None:
    largest, average = compare("clahe", {}, clahe, vivid, device)
    if device.type == "cpu":
        assert largest <= 1
    assert average <= (0.1 if device.type == "cpu" else 5), "the GPU's is another implementation"


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


def test_equalize_is_close_to_pillow_where_no_level_is_frequent(tmp_path: Path, device: torch.device) -> None:
    # Pillow divides whole numbers and counts the darkest level, OpenCV leaves it out: in a large image of many
    # levels that is little; where a ground of one color fills a quarter of it, the two are a world apart.
    rng = np.random.default_rng(0)
    side = 4 * SIZE
    image_files = [np.clip(rng.normal(level, 40, (side, side, 3)), 0, 255) for level in (110, 140)]
    files = save(tmp_path, image_files)
    ours = render(plan_of({"equalize": {}}, size=side), files, device)
    theirs = np.stack([np.asarray(ImageOps.equalize(Image.open(file))) for file in files])
    assert np.abs(ours - theirs).mean(axis=(1, 2, 3)).max() <= 1.5
    assert np.abs(ours - theirs).max() <= 6


def test_autocontrast_keeps_a_channel_of_a_single_level(grays: list[Path], device: torch.device) -> None:
    np.testing.assert_array_equal(render(plan_of({"autocontrast": {}}), grays, device), 100)


# --- motion blur ---


def test_kernels_of_motion_blur() -> None:
    lengths, angles = np.array([1, 5, 5, 5, 7.3]), np.array([30, 0, 90, 45, 200.0])
    kernels = _lines(SIZE, lengths, angles)["kernel"]
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


# --- noise ---


def test_gaussian_noise(grays: list[Path], device: torch.device) -> None:
    plan = plan_of({"gaussian_noise": {"std_range": one_of_values(2, 8, 25)}})
    stds = draws_of(plan, COUNT)["gaussian_noise"]["std"]
    noise = render(plan, grays, device) - 100
    # 12,288 numbers each: the standard deviation of their mean is std / 111, that of their std std / 157.
    np.testing.assert_allclose(noise.std(axis=(1, 2, 3)), np.hypot(stds, 12**-0.5), rtol=0.03)
    assert (np.abs(noise.mean(axis=(1, 2, 3))) < 5 * stds / 111 + 0.02).all()
    assert len(np.unique(noise.reshape(COUNT, -1), axis=0)) == COUNT, "each image has noise of its own"
    red, green, _ = noise[stds == 25].reshape(-1, 3).T
    assert abs(np.corrcoef(red, green)[0, 1]) < 0.05, "each channel too"


def test_salt_and_pepper(grays: list[Path], device: torch.device) -> None:
    plan = plan_of({"salt_and_pepper": {"share_range": one_of_values(0.02, 0.1, 0.3)}})
    shares = draws_of(plan, COUNT)["salt_and_pepper"]["share"]
    noisy = render(plan, grays, device)
    assert set(np.unique(noisy)) == {0, 100, 255}
    assert (noisy == noisy[..., :1]).all(), "all channels of a pixel"
    pixels = noisy[..., 0].reshape(COUNT, -1)
    for value in (0, 255):
        found, count = (pixels == value).mean(axis=1), pixels.shape[1]
        assert (np.abs(found - shares / 2) < 5 * np.sqrt(shares / 2 / count)).all()


def test_shot_noise(grays: list[Path], device: torch.device) -> None:
    plan = plan_of({"shot_noise": {"factor_range": one_of_values(1, 4, 9)}})
    factors = draws_of(plan, COUNT)["shot_noise"]["factor"]
    noisy = render(plan, grays, device)
    assert (np.abs(noisy.mean(axis=(1, 2, 3)) - 100) < 5 * np.sqrt(100 * factors) / 111 + 0.5).all()
    np.testing.assert_allclose(noisy.var(axis=(1, 2, 3)), 100 * factors, rtol=0.08)


@pytest.mark.parametrize(
    ("op", "strength"), [("gaussian_noise", "std"), ("salt_and_pepper", "share"), ("shot_noise", "factor")]
)
def test_noise_of_a_step_has_its_own_seed(op: str, strength: str, grays: list[Path], device: torch.device) -> None:
    # Of one strength: else that is what differs, for it is drawn by the step's name.
    noise = {"op": op, f"{strength}_range": [0.25, 0.25] if op == "salt_and_pepper" else [8, 8]}
    first = render(plan_of({"noise": noise}), grays, device)
    np.testing.assert_array_equal(first, render(plan_of({"noise": noise}), grays, device))
    np.testing.assert_array_equal(
        first, render(plan_of({"gamma": {"gamma_range": [1, 1]}, "noise": noise}), grays, device)
    )
    other = render(plan_of({"other": noise}), grays, device)
    assert abs(np.corrcoef(first[..., 0].ravel(), other[..., 0].ravel())[0, 1]) < 0.05


# --- holes ---


def holes(plan_params: dict[str, Any], files: list[Path], device: torch.device) -> tuple[Pixels, Pixels, Any]:
    """Return images with holes, (N, size, size) where they are, and what was drawn."""
    plan = plan_of({"erase": plan_params})
    drawn = draws_of(plan, len(files))["erase"]
    made = render(plan, files, device)
    where = np.zeros((len(files), SIZE, SIZE), dtype=bool)
    for i in range(len(files)):
        width = round(SIZE * (drawn["area"][i] * drawn["aspect"][i]) ** 0.5)
        height = round(SIZE * (drawn["area"][i] / drawn["aspect"][i]) ** 0.5)
        width, height = min(width, SIZE), min(height, SIZE)
        left, top = int(drawn["x"][i] * (SIZE - width + 1)), int(drawn["y"][i] * (SIZE - height + 1))
        where[i, top : top + height, left : left + width] = True
    return made, where, drawn


@pytest.mark.parametrize("fill", ["constant", "mean", "noise"])
def test_erase(fill: str, vivid: list[Path], device: torch.device) -> None:
    made, where, drawn = holes({"fill": fill, "level": 7}, vivid, device)
    given = read(vivid)
    np.testing.assert_array_equal(made[~where], given[~where], err_msg="outside nothing changes")
    clipped = np.all(where.any(axis=1), axis=1) | np.all(where.any(axis=2), axis=1)
    np.testing.assert_allclose(where.mean(axis=(1, 2))[~clipped], drawn["area"][~clipped], atol=0.02)
    if fill == "constant":
        assert (made[where] == 7).all()
    elif fill == "mean":
        for i in range(COUNT):
            assert np.abs(made[i][where[i]] - given[i].mean(axis=(0, 1))).max() <= 0.51
    else:
        inside = made[where]
        counts = np.bincount(inside.ravel() // 32, minlength=8)
        assert counts.min() > 0.9 * counts.max(), "all levels are equally frequent"
        assert abs(np.corrcoef(inside[:, 0], inside[:, 1])[0, 1]) < 0.05
        first, second = (made[i][where[i]][:50].tolist() for i in (0, 4))
        assert first != second


def test_erase_reaches_every_position_and_the_whole_image(grays: list[Path], device: torch.device) -> None:
    params = {"area_range": [0.5, 0.5], "aspect_range": [1, 1]}
    made, where, _ = holes(params, grays * 12, device)
    np.testing.assert_array_equal(made[..., 0] == 0, where)
    assert where.any(axis=(0, 1)).all()
    assert where.any(axis=(0, 2)).all()
    whole = render(plan_of({"erase": {"area_range": [1, 1], "aspect_range": [1, 1]}}), grays, device)
    np.testing.assert_array_equal(whole, 0)
    nothing = render(plan_of({"erase": {"area_range": [0, 0]}}), grays, device)
    np.testing.assert_array_equal(nothing, 100)


def test_as_many_holes_stand_as_lie() -> None:
    plan = plan_of({"erase": {"aspect_range": [0.3, 1 / 0.3]}})
    lying = int((draws_of(plan, 6000)["erase"]["aspect"] > 1).sum())
    assert binomtest(lying, 6000, 0.5).pvalue > 1e-3


# --- elastic ---


def test_elastic_moves_pixels_by_the_shifts_between_which_it_interpolates(vivid: list[Path]) -> None:
    images = torch.from_numpy(read(vivid).astype(np.uint8))
    same = torch.tensor([3.0, -2.0])[:, None, None].expand(len(images), 2, 4, 4)  # right and up
    assert torch.equal(_bend(images, same)[:, :-2, 3:], images[:, 2:, :-3])
    assert torch.equal(_bend(images, 0 * same), images)
    # A ramp, whose level is its column, shows where each pixel comes from.
    ramp = torch.arange(0, 4 * SIZE, 4, dtype=torch.uint8)[None, None, :, None].expand(1, SIZE, SIZE, 3)
    shift = torch.zeros(1, 2, 3, 3)
    shift[0, 0, 1, 1] = 5  # right, in the middle only
    moved = (ramp.int() - _bend(ramp, shift).int())[0, :, :, 0] / 4
    assert moved[SIZE // 2, SIZE // 2] == pytest.approx(5, abs=0.5)
    assert moved[0].abs().max() <= 0.5
    assert (moved[:, SIZE // 2].diff().abs() <= 1).all(), "smooth"


def test_shifts_of_elastic_are_normal() -> None:
    uniform = np.random.default_rng(0).random(4000)
    shift = _displacements(100, np.full(4000, 0.02), uniform, 3)["shift"].reshape(4000, -1)
    assert kstest(shift.ravel() / 2, "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(shift.T) - np.eye(18)).max() < 0.08


def test_grid_mask(grays: list[Path], device: torch.device) -> None:
    tiles, ratios = (0.125, 0.25), (0.25, 0.5, 0.75)
    plan = plan_of({"grid_mask": {"tile_range": one_of_values(*tiles), "ratio_range": one_of_values(*ratios)}})
    drawn = draws_of(plan, COUNT)["grid_mask"]
    masked = render(plan, grays, device)
    assert set(np.unique(masked)) == {0, 100}
    pixel = np.arange(SIZE)
    for i, black in enumerate(masked[..., 0] == 0):
        side = round(SIZE * drawn["tile"][i])
        # A pixel of the square if it is one along both axes; the grid starts a random part of a tile off the corner.
        across, down = ((pixel + 0.0 - drawn[axis][i] * side) % side < drawn["ratio"][i] * side for axis in "xy")
        np.testing.assert_array_equal(black, down[:, None] & across)
        assert black.mean() == pytest.approx(drawn["ratio"][i] ** 2, abs=1e-6)


def test_grid_mask_turns(grays: list[Path], device: torch.device) -> None:
    params = {"tile_range": [0.25, 0.25], "ratio_range": [0.5, 0.5]}
    level = render(plan_of({"grid_mask": params | {"angle_range": [0, 0]}}), grays, device)[..., 0] == 0
    turned = render(plan_of({"grid_mask": params | {"angle_range": [30, 30]}}), grays, device)[..., 0] == 0
    assert (level.any(axis=1).sum(axis=1) == SIZE // 2).all(), "half of the columns are free of squares"
    assert turned.any(axis=1).all()
    assert np.abs(turned.mean(axis=(1, 2)) - 0.25).max() < 0.05
