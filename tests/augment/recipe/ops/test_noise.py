"""Noise and holes: what they do to images of one gray, by the parameters that were drawn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rendering import COUNT, SIZE, Pixels, draws_of, one_of_values, plan_of, read, render

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
