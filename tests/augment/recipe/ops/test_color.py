"""Color ops in pixels, compared with Pillow; color_jitter compared with its parts."""

from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photos import draw_photo
from rendering import COUNT, SEED, SIZE, chi_square, draws_of, plan_of, read, render, rounding, save

from augment import Transform, load_recipe
from augment.recipe.sampler import Sampler

PARTS = ("brightness", "contrast", "saturation", "hue")


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


# --- clipping ---

BRIGHT: dict[str, Any] = {
    "brightness": {"factor_range": [2, 2]},
    "again": {"op": "brightness", "factor_range": [0.6, 0.6]},
}
JITTERED: dict[str, Any] = {
    "brightness_range": [0.2, 1.8],
    "contrast_range": [0.2, 1.8],
    "saturation_range": [0.2, 1.8],
    "hue_range": [0, 0],
    "pivot": "mean",
}


def test_levels_beyond_white_come_back_unless_each_step_clips(tmp_path: Path, device: torch.device) -> None:
    files = save(tmp_path, [np.full((SIZE, SIZE, 3), 200)])
    for aug, level in (
        ({}, 240),
        ({"clip": "each"}, 153),
        ({"fuse": False}, 153),
        ({"clip": "each", "fuse": False}, 153),
    ):
        plan = plan_of(BRIGHT, **aug)
        assert (render(plan, files, device) == level).all()
        recipe = load_recipe({"size": SIZE, "train": BRIGHT, "mean": [0, 0, 0], "std": [1, 1, 1], **aug})
        made = Transform(recipe, device=device)(read(files).astype(np.uint8))
        np.testing.assert_allclose(made.cpu(), level / 255, atol=1e-5)


@pytest.mark.parametrize(("order", "aug"), [("listed", {"clip": "each"}), ("random", {"fuse": False})])
def test_color_jitter_is_four_steps(order: str, aug: dict[str, Any], vivid: list[Path], device: torch.device) -> None:
    values = {"brightness": 1.9, "contrast": 1.6, "saturation": 0.4, "hue": 20}
    ranges = {f"{name}_range": [value, value] for name, value in values.items()}
    made = render(plan_of({"color_jitter": {"pivot": "mean", "order": order, **ranges}}, **aug), vivid, device)
    drawn = draws_of(plan_of({"color_jitter": {"order": order, **ranges}}), COUNT)["color_jitter"]["turn"]
    orders = list(permutations(PARTS)) if order == "random" else [PARTS]
    for chosen in set(np.floor(drawn * len(orders)).astype(int)):
        steps = {
            name: {("angle" if name == "hue" else "factor") + "_range": [values[name]] * 2}
            | ({"pivot": "mean"} if name == "contrast" else {})
            for name in orders[chosen]
        }
        apart = render(plan_of(steps, clip="each"), vivid, device)
        same = np.floor(drawn * len(orders)).astype(int) == chosen
        np.testing.assert_array_equal(made[same], apart[same])


MANY = 300


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return images of high and low contrast, dark and bright ones, with noise."""
    rng = np.random.default_rng(0)
    images = []
    for seed in range(MANY):
        photo = (draw_photo(SIZE, SIZE, seed)[::2, ::2].astype(float) - 110) * rng.uniform(0.5, 3)
        images.append(np.clip(photo + rng.uniform(60, 190) + rng.normal(0, rng.uniform(0, 25), photo.shape), 0, 255))
    return save(tmp_path_factory.mktemp("many"), [np.rint(image) for image in images])


def torchvision_values(name: str, drawn: Any, sample: int) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """Return what torchvision does to a sample, in order."""
    from torchvision.transforms.v2 import functional as F

    factors = {"brightness": F.adjust_brightness, "contrast": F.adjust_contrast, "saturation": F.adjust_saturation}
    if name in factors:
        return [partial(factors[name], **{f"{name}_factor": float(drawn["factor"][sample])})]
    if name == "color_jitter":
        order = list(permutations(range(4)))[int(drawn["turn"][sample] * 24)]
        parts = [partial(factors[n], **{f"{n}_factor": float(drawn[n][sample])}) for n in factors]
        return [parts[part] for part in order if part < 3]
    if name == "channel_shuffle":
        order = list(permutations(range(3)))[int(drawn["order"][sample] * 6)]
        return [partial(F.permute_channels, permutation=list(order))]
    return [{"grayscale": partial(F.rgb_to_grayscale, num_output_channels=3), "invert": F.invert}[name]]


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("brightness", {"factor_range": [0.2, 1.8]}),
        ("contrast", {"factor_range": [0.2, 1.8], "pivot": "mean"}),
        ("saturation", {"factor_range": [0.2, 1.8]}),
        ("grayscale", {}),
        ("invert", {}),
        ("channel_shuffle", {}),
        ("color_jitter", JITTERED | {"order": "random"}),
    ],
)
def test_colors_match_torchvision(name: str, params: dict[str, Any], many: list[Path], device: torch.device) -> None:
    pytest.importorskip("torchvision")
    plan = plan_of({name: params}, size=SIZE // 2, clip="each")
    drawn, images = draws_of(plan, MANY)[name], torch.from_numpy(read(many)).permute(0, 3, 1, 2).float() / 255
    expected = []
    for sample, image in enumerate(images):
        for change in torchvision_values(name, drawn, sample):
            image = change(image)
        expected.append((image * 255).round().permute(1, 2, 0).numpy())
    off = np.abs(render(plan, many, device) - np.stack(expected))
    assert off.max() <= 1
    assert off.mean() <= 0.02


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
