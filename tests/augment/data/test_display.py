"""Displayable images of pixels in any format."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from numpy.typing import NDArray

from augment.data.display import channel_names, displayable, stretch, stretch_limits
from augment.data.images import open_image
from augment.params.pixel_format import RGB, PixelFormat
from augment.pipeline.batch import as_levels, as_pixels
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import parse_aug

RANGE: dict[str, Any] = {"low": (0.0,) * 4, "high": (65535.0,) * 4}
FOUR = PixelFormat(4, "uint16", rgb=None, **RANGE)


@dataclass(frozen=True)
class Stored:
    """An image in memory, as a raster."""

    name: str
    array: NDArray[Any]
    pixels: PixelFormat

    def read_pixels(self) -> NDArray[Any]:
        return self.array

    def read(self) -> bytes:
        raise NotImplementedError


def ramp(*, channels: int) -> NDArray[np.float32]:
    """Return 0.5, 1, ..., 50.5 in the first channel, (101, 1, channels), and multiples of it in the others."""
    return np.arange(1, 102, dtype=np.float32)[:, None, None] * np.arange(1, channels + 1, dtype=np.float32) / 2


def test_percentiles_2_and_98_of_each_channel_become_black_and_white() -> None:
    shown = stretch(ramp(channels=3))
    assert shown.dtype == np.uint8
    expected = np.round(((np.arange(1, 102) - 3) * 255 / 96).clip(0, 255))
    for channel in range(3):
        np.testing.assert_allclose(shown[:, 0, channel], expected, atol=1)


def test_pixels_without_data_stay_black_and_do_not_count() -> None:
    levels = ramp(channels=2) + 100
    bordered = np.concatenate([np.zeros((300, 1, 2), np.float32), levels])
    np.testing.assert_array_equal(stretch(bordered)[300:], stretch(levels))
    assert not stretch(bordered)[:300].any()
    assert not stretch(np.zeros((5, 5, 2), np.float32)).any()


def test_given_ends_keep_changes_of_brightness_visible() -> None:
    levels = ramp(channels=2)
    limits = stretch_limits(levels)
    np.testing.assert_allclose(limits, [[1.5, 3], [49.5, 99]])
    halved = stretch(levels / 2, limits)
    assert halved.max() < 130
    np.testing.assert_array_equal(stretch(levels / 2), stretch(levels))


def test_rare_and_constant_values_stay_visible() -> None:
    levels = np.full((20, 20, 2), 80, np.uint8)
    levels[3, 4, 0] = 120
    shown = stretch(levels)
    assert shown[3, 4].tolist() == [255, 80]
    assert shown[0, 0].tolist() == [0, 80]


def test_rgb_channels_or_the_first_in_gray_are_shown() -> None:
    levels = np.random.default_rng(0).uniform(1, 200, (2, 8, 9, 4)).astype(np.float32)
    gray = displayable(levels, FOUR)
    assert gray.shape == (2, 8, 9, 3)
    np.testing.assert_array_equal(gray, np.stack([stretch(image)[..., [0, 0, 0]] for image in levels]))
    colors = displayable(levels, PixelFormat(4, "uint16", rgb=(3, 1, 0), **RANGE))
    np.testing.assert_array_equal(colors, np.stack([stretch(image)[..., [3, 1, 0]] for image in levels]))
    assert channel_names(PixelFormat(4, "uint16", rgb=(3, 1, 0), **RANGE)) == ["0, blue", "1, green", "2", "3, red"]
    assert channel_names(FOUR) == ["0", "1", "2", "3"]


def test_the_first_channel_is_shown_in_the_colors_of_a_colormap() -> None:
    levels = ramp(channels=4)
    levels[0] = 0
    shown, gray = displayable(levels, replace(FOUR, colormap="inferno")), displayable(levels, FOUR)[..., 0]
    np.testing.assert_array_equal(shown[1:], colormaps["inferno"](gray / 255, bytes=True)[1:, :, :3])
    assert not shown[0].any(), "pixels without data are black"
    assert [plan_of(of).digest for of in (replace(FOUR, colormap="inferno"), FOUR)] == [plan_of(FOUR).digest] * 2


def plan_of(pixels: PixelFormat) -> Plan:
    return build_plan(replace(parse_aug({"mean": [0.5] * 4, "std": [0.5] * 4}), pixels=pixels), "val")


def test_ordinary_rgb_is_never_stretched() -> None:
    image = np.random.default_rng(0).integers(90, 100, (6, 7, 3), np.uint8)
    assert displayable(image, RGB) is image


def test_a_raster_opens_as_displayable_rgb() -> None:
    array = np.random.default_rng(0).integers(300, 4000, (6, 7, 4), np.uint16)
    with open_image(Stored("a", array, FOUR)) as image:
        assert image.mode == "RGB"
        np.testing.assert_array_equal(np.asarray(image), displayable(FOUR.levels(array), FOUR))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_batches_are_shown_like_their_levels(dtype: torch.dtype) -> None:
    statistics = {"mean": (0.3, 0.4, 0.5, 0.6), "std": (0.1, 0.2, 0.3, 0.4)}
    pixels = PixelFormat(4, "uint16", rgb=(2, 1, 0), **statistics, **RANGE)
    plan = build_plan(replace(parse_aug({"size": 16}), pixels=pixels), "val")
    levels = np.random.default_rng(0).uniform(100, 140, (2, 16, 16, 4)).astype(np.float32)
    levels[:, :4] = 0  # beyond the edges of the image
    images = torch.from_numpy(levels).permute(0, 3, 1, 2) / 255
    fed = (images - torch.tensor(plan.mean).view(-1, 1, 1)) / torch.tensor(plan.std).view(-1, 1, 1)
    found = as_levels(fed.to(dtype), plan)
    assert not found[:, :4].any()
    np.testing.assert_allclose(found, levels, atol=0.5 if dtype == torch.float16 else 1e-3)
    shown, expected = as_pixels(fed.to(dtype), plan), displayable(levels, plan.pixels)
    np.testing.assert_allclose(shown.astype(int), expected, atol=3)
