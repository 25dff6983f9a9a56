"""Color ops in pixels, compared with Pillow; color_jitter compared with its parts."""

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photos import draw_photo
from PIL import Image, ImageEnhance, ImageOps
from rendering import (
    SEED,
    SIZE,
    chi_square,
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

from augment.recipe.op import OPS
from augment.recipe.sampler import Sampler
from augment.recipe.stage import step_matrix

COUNT = 24


@pytest.fixture(scope="module")
def soft(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return save(tmp_path_factory.mktemp("soft"), [draw_photo(SIZE, SIZE, seed) for seed in range(COUNT)])


@pytest.fixture(scope="module")
def vivid(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return save(tmp_path_factory.mktemp("vivid"), vivid_images(COUNT))


FACTORS = one_of_values(0, 0.3, 1, 1.7)


@pytest.mark.parametrize(
    ("op", "params", "enhance"),
    [
        ("brightness", {"factor_range": FACTORS}, ImageEnhance.Brightness),
        ("saturation", {"factor_range": FACTORS}, ImageEnhance.Color),
        ("contrast", {"factor_range": FACTORS, "pivot": "mean"}, ImageEnhance.Contrast),
    ],
)
def test_op_matches_pillow(
    op: str, params: dict[str, Any], enhance: Any, vivid: list[Path], device: torch.device
) -> None:
    # Pillow cuts off where we round, and rounds the gray it blends with.
    most, mean = compare(
        op, params, lambda p, factor: np.asarray(enhance(Image.fromarray(p)).enhance(factor)), vivid, device
    )
    assert most <= rounding(2, device)
    assert mean <= 1


def test_grayscale_matches_pillow(vivid: list[Path], device: torch.device) -> None:
    most, mean = compare(
        "grayscale", {}, lambda p: np.asarray(Image.fromarray(p).convert("L").convert("RGB")), vivid, device
    )
    assert most <= rounding(1, device)
    assert mean <= 0.1


def test_invert_matches_pillow(vivid: list[Path], device: torch.device) -> None:
    assert compare("invert", {}, lambda p: np.asarray(ImageOps.invert(Image.fromarray(p))), vivid, device) == (0, 0)


def test_channel_shuffle(vivid: list[Path], device: torch.device) -> None:
    orders = list(permutations(range(3)))
    found = []
    for made, image in zip(render(plan_of({"channel_shuffle": {}}), vivid, device), read(vivid), strict=True):
        (order,) = [order for order in orders if (made == image[..., order]).all()]
        found.append(order)
    assert len(set(found)) == 6
    drawn = (Sampler(plan_of({"channel_shuffle": {}}), SEED).draw(0, 0, 6000)["channel_shuffle"]["order"] * 6).astype(
        int
    )
    assert chi_square(np.bincount(drawn).tolist(), [1] * 6) > 1e-3


# --- contrast about the mean ---


def test_contrast_about_the_mean_uses_the_mean_of_each_image(soft: list[Path], device: torch.device) -> None:
    flat = render(plan_of({"contrast": {"factor_range": [0, 0], "pivot": "mean"}}), soft, device)
    luma = read(soft).mean(axis=(1, 2)) @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(
        flat, np.broadcast_to(luma[:, None, None, None], flat.shape), atol=rounding(0.51, device)
    )
    assert (render(plan_of({"contrast": {"factor_range": [0, 0]}}), soft, device) == 128).all()


def test_contrast_about_the_mean_is_fused_with_its_neighbors(soft: list[Path], device: torch.device) -> None:
    steps: dict[str, Any] = {
        "hue": {"p": 0.5},
        "contrast": {"pivot": "mean", "factor_range": [0.5, 1.4], "p": 0.7},
        "brightness": {"p": 0.5},
        "again": {"op": "contrast", "pivot": "mean"},
    }
    fused, apart = plan_of(steps), plan_of(steps, fuse=False)
    assert (len(fused.stages), len(apart.stages)) == (1, 4)
    assert fused.stages[0].uses_mean
    # Nothing is clipped in these images: what is left is the rounding after each of four steps.
    off = np.abs(render(fused, soft, device) - render(apart, soft, device))
    assert off.max() <= 4
    assert off.mean() <= 0.7
    skipped = plan_of({"contrast": {"pivot": "mean", "p": 0.5}})
    left = ~draws_of(skipped, COUNT)["contrast"]["applied"].astype(bool)
    np.testing.assert_array_equal(render(skipped, soft, device)[left], read(soft)[left])


# --- color_jitter ---

PARTS = ("brightness", "contrast", "saturation", "hue")
RANGES: dict[str, Any] = {
    "brightness_range": [0.6, 1.4],
    "contrast_range": [0.6, 1.4],
    "saturation_range": [0.2, 1.8],
    "hue_range": [-60, 60],
}


def part(name: str, value: float) -> Any:
    """Return the matrix of a single op, (4, 4)."""
    given = {"angle" if name == "hue" else "factor": np.array([value])}
    fixed = {"pivot": "middle"} if name == "contrast" else {}
    return np.r_[OPS[name].function(**given, **fixed)[0], [[0, 0, 0, 1]]]


@pytest.mark.parametrize("order", ["listed", "random"])
def test_color_jitter_is_the_product_of_its_parts(order: str) -> None:
    plan = plan_of({"color_jitter": RANGES | {"order": order}})
    count = 2400 if order == "random" else 20
    drawn = draws_of(plan, count)["color_jitter"]
    matrices = step_matrix(plan.steps[0], drawn, SIZE)
    seen = []
    for i, matrix in enumerate(matrices):
        singles = [part(name, drawn[name][i]) for name in PARTS]
        possible = list(permutations(range(4))) if order == "random" else [(0, 1, 2, 3)]
        products = np.stack([singles[d] @ singles[c] @ singles[b] @ singles[a] for a, b, c, d in possible])
        off = np.abs(products - matrix).max(axis=(1, 2))
        assert off.min() < 1e-9
        seen.append(tuple(np.flatnonzero(off < 1e-9)))
    if order == "random":
        # Brightness, saturation and hue commute with each other, contrast not with brightness: orders fall into two
        # groups of twelve, by which of these two comes first.
        groups = sorted(set(seen))
        assert sorted(index for group in groups for index in group) == list(range(24))
        assert chi_square([seen.count(group) for group in groups], [len(group) for group in groups]) > 1e-3


@pytest.mark.parametrize("order", ["listed", "random"])
def test_color_jitter_in_pixels(order: str, soft: list[Path], device: torch.device) -> None:
    plan = plan_of({"color_jitter": RANGES | {"order": order}})
    drawn = draws_of(plan, COUNT)["color_jitter"]
    matrices = step_matrix(plan.steps[0], drawn, SIZE)
    expected = np.einsum("nij,nyxj->nyxi", matrices[:, :3, :3], read(soft)) + matrices[:, None, None, :3, 3]
    np.testing.assert_allclose(render(plan, soft, device), np.clip(expected, 0, 255), atol=rounding(0.51, device))
