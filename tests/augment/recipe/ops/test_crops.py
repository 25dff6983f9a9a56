"""Crop ops in pixels, on images of various sizes and aspect ratios, compared with Pillow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoded import for_device
from photos import SIZES, draw_photo
from PIL import Image
from rendering import Pixels, chi_square, plan_of, render, save

from augment.pipeline.graph.build import build_pipeline
from augment.pipeline.graph.decoding import OutputFormat, Placement
from augment.pipeline.graph.sample_order import Reading
from augment.recipe.plan import Plan

SIDE = 32


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return save(tmp_path_factory.mktemp("varied"), [draw_photo(*size, seed) for seed, size in enumerate(SIZES)])


def opened(files: Sequence[Path]) -> list[Image.Image]:
    return [Image.open(file).convert("RGB") for file in files]


def crop_of(steps: dict[str, Any], size: int = SIDE, **options: Any) -> Plan:
    return plan_of(steps, size=size, **options)


def assert_near(ours: Pixels, theirs: Pixels, *, most: float = 1, mean: float = 0.35) -> None:
    off = np.abs(ours - theirs.astype(int))
    # At the edges Pillow averages fewer pixels, while we repeat the outermost pixel.
    assert off[2:-2, 2:-2].max() <= most
    assert off[2:-2, 2:-2].mean() <= mean
    assert off.max() <= most + 7


# --- resize, letterbox ---


def test_resize_of_the_short_side(varied: list[Path], device: torch.device) -> None:
    for ours, image in zip(render(crop_of({"resize": {"side": "short"}}), varied, device), opened(varied), strict=True):
        side, (left, top) = min(image.size), ((s - min(image.size)) / 2 for s in image.size)
        theirs = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        assert_near(ours, np.asarray(theirs))


def whole(image: Image.Image) -> tuple[Pixels, int, int]:
    """Return an image whose long side is SIDE, and its offset right and down in the square."""
    width, height = (max(1, round(SIDE * side / max(image.size))) for side in image.size)
    small = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    return small, (SIDE - width) // 2, (SIDE - height) // 2


@pytest.mark.parametrize(
    ("steps", "mode", "level"),
    [
        ({"letterbox": {}}, "constant", 0),
        ({"letterbox": {"fill": 77}}, "constant", 77),
        ({"letterbox": {"border": "reflect_101"}}, "reflect", None),
        ({"letterbox": {"border": "replicate"}}, "edge", None),
        ({"resize": {"side": "long"}}, "constant", 0),
    ],
)
def test_letterbox(
    steps: dict[str, Any], mode: Any, level: int | None, varied: list[Path], device: torch.device
) -> None:
    for ours, image in zip(render(crop_of(steps), varied, device), opened(varied), strict=True):
        small, left, top = whole(image)
        height, width = small.shape[:2]
        # The short side is a whole number of pixels: Pillow squeezes it to that, we keep the aspect ratio to the hair.
        assert_near(ours[top : top + height, left : left + width], small, most=6, mean=0.7)
        # The padding is made of the pixels of the image itself.
        inside = ours[top : top + height, left : left + width]
        beyond = ((top, SIDE - height - top), (left, SIDE - width - left), (0, 0))
        expected = np.pad(inside, beyond, mode, **({} if level is None else {"constant_values": level}))
        np.testing.assert_array_equal(ours, expected)


# --- random_crop ---


def squares(
    params: dict[str, Any], file: Path, device: torch.device, *, size: int = SIDE, seed: int = 5, count: int = 300
) -> Pixels:
    """Return many random squares of one image, (count, size, size, 3)."""
    placement = Placement("gpu" if device.type == "cuda" else "cpu")
    plan = crop_of({"random_crop": params}, size)
    files = for_device([file], device) * count
    pipeline = build_pipeline(plan, Reading(files, count, seed), placement, OutputFormat(raw=True))
    return np.asarray(pipeline.run()[0].as_cpu().as_tensor()).astype(int)


@pytest.mark.parametrize(
    ("border", "mode"), [("reflect_101", "reflect"), ("replicate", "edge"), ("constant", "constant")]
)
def test_random_crop_is_a_uniformly_drawn_window_of_the_padded_image(
    border: str, mode: Any, tmp_path: Path, device: torch.device
) -> None:
    # Every pixel tells where it comes from; scale 1 leaves the short side as it is, so nothing is resampled.
    y, x = np.mgrid[:8, :12]
    (file,) = save(tmp_path, [np.stack([20 * x, 30 * y, 0 * x], axis=-1)])
    fill: dict[str, Any] = {"constant_values": 99} if mode == "constant" else {}
    padded = np.pad(np.asarray(Image.open(file)).astype(int), ((2, 2), (2, 2), (0, 0)), mode, **fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (8, 8), (0, 1)).transpose(0, 1, 3, 4, 2)
    made = squares({"padding": 0.25, "border": border, "fill": 99}, file, device, size=8, count=2000)
    found = np.array([np.argwhere((windows == image).all(axis=(2, 3, 4)))[0] for image in made])
    # 2 px of padding at each end, and across 4 px of play.
    assert windows.shape[:2] == (5, 9)
    assert chi_square(np.bincount(found[:, 0], minlength=5).tolist(), [1] * 5) > 1e-3
    assert chi_square(np.bincount(found[:, 1], minlength=9).tolist(), [1] * 9) > 1e-3
    assert abs(np.corrcoef(found.T)[0, 1]) < 0.1
