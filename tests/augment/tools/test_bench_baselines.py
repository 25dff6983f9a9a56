"""The benchmark: baselines match our pipeline."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from augment.data.dataset import Split
from augment.pipeline.loader import Loader
from augment.recipe.op import OPS
from augment.recipe.plan import build_plan
from augment.recipe.steps import Aug, parse_aug
from augment.tools.bench.baselines import (
    HAS_TORCHVISION,
    PilDataset,
    PlainRecipe,
    TorchvisionDataset,
    draw,
    obstacle,
    window,
)
from augment.tools.bench.contenders import CONTENDERS, without_steps
from augment.tools.bench.handwritten import TRANSLATIONS, handwritten_pipeline, untranslated
from augment.tools.bench.setup import Setup


def loader_pixels(aug: Aug, files: tuple[Path, ...]) -> Any:
    """Our own pipeline's images in the order of the files, (N, size, size, 3)."""
    loader = Loader(
        build_plan(aug, "train"),
        Split(files, (0,) * len(files)),
        batch_size=len(files),
        seed=0,
        device=torch.device("cpu"),
        raw=True,
    )
    (batch,) = loader
    ordered = batch.images[torch.argsort(batch.indices)]
    return ordered.permute(0, 2, 3, 1).numpy().astype(int)


# What is beyond the edge differs: black in the baselines. So the middle is compared, from which nothing was moved out.
CERTAIN = [
    ({"flip": {}}, 0.01),
    ({"flip": {"direction": "vertical"}}, 0.01),
    ({"rotate": {"angle_range": [30, 30]}}, 0.5),
    ({"warp": {"magnitude_range": [0.05, 0.05]}}, 0.5),
    ({"affine": {"translate_range": [0.1, 0.1], "scale_range": [1.2, 1.2], "shear_range": [9, 9]}}, 0.5),
    ({"brightness": {"factor_range": [1.2, 1.2]}}, 0.6),
    ({"saturation": {"factor_range": [0.5, 0.5]}}, 0.8),
    # About gray 128, or about the image's mean gray: all pixels of an image are off by the same.
    ({"contrast": {"factor_range": [0.9, 0.9]}}, 5),
]
HUE = ({"hue": {"angle_range": [10, 10]}}, 0.8)  # in YIQ; torchvision turns HSV's hue


@pytest.mark.parametrize(
    ("steps", "mean"), [*CERTAIN, HUE], ids=lambda value: next(iter(value), "") if isinstance(value, dict) else ""
)
def test_baselines_match_our_pipeline(steps, mean, photos):
    aug = parse_aug({"size": 64, "train": steps})
    middle = np.s_[:, 20:44, 20:44]
    ours = loader_pixels(aug, photos)[middle]
    plain = loader_pixels(without_steps(aug), photos)[middle]
    rng, recipe = np.random.default_rng(0), PlainRecipe.of(aug)
    datasets = {"pil": PilDataset(photos, recipe)}
    if HAS_TORCHVISION and "hue" not in steps:
        datasets["torchvision"] = TorchvisionDataset(photos, recipe)
    pipeline = handwritten_pipeline(Setup(aug, tuple(photos), 6, 6))
    pipeline.build()
    for name, dataset in datasets.items():
        theirs = np.stack([dataset.pixels(file, rng).permute(1, 2, 0).numpy() for file in photos]).astype(int)[middle]
        assert np.abs(theirs - ours).mean() <= mean, name
        assert np.abs(theirs - plain).mean() > 2, name
    (images,) = pipeline.run()
    theirs = (
        np.asarray(images.as_tensor()) * np.array([0.229, 0.224, 0.225]) * 255 + np.array([0.485, 0.456, 0.406]) * 255
    )
    for image in theirs[middle]:  # DALI shuffles: the nearest of ours is the one
        assert min(np.abs(image - other).mean() for other in ours) <= mean


def test_items_are_normalized_like_our_batches(photos):
    aug = parse_aug({"size": 64, "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "train": {"flip": {}}})
    raw = loader_pixels(aug, photos)[3]
    expected = (raw / 255 - [0.1, 0.2, 0.3]) / [0.4, 0.5, 0.6]
    for dataset in (PilDataset, TorchvisionDataset) if HAS_TORCHVISION else (PilDataset,):
        image, index = dataset(photos, PlainRecipe.of(aug))[3]
        assert index == 3
        np.testing.assert_allclose(image.permute(1, 2, 0).numpy(), expected, atol=0.01)


def test_steps_are_applied_with_their_probability(photos):
    aug = parse_aug({"size": 64, "train": {"flip": {"p": 0.3}, "flip_2": {"op": "flip", "p": 0}}})
    dataset = PilDataset(photos[:1] * 200, PlainRecipe.of(aug))
    first = [dataset[i][0] for i in range(200)]
    upright = PilDataset(photos[:1], PlainRecipe.of(without_steps(aug)))[0][0]
    flipped = sum(not torch.equal(image, upright) for image in first)
    assert 35 <= flipped <= 85
    assert all(torch.equal(image, upright) or torch.equal(image, upright.flip(2)) for image in first)


@pytest.mark.parametrize(("width", "height"), [(90, 40), (40, 90), (400, 10)])
def test_windows_are_drawn_from_the_ranges(width, height):
    given = {"random_resized_crop": {"area_range": [0.2, 0.5], "aspect_range": [0.5, 2.0]}}
    (step,) = parse_aug({"train": given}).train
    rng = np.random.default_rng(0)
    windows = np.array([window(step, width, height, rng) for _ in range(300)])
    left, top, right, bottom = windows.T
    assert left.min() >= 0
    assert top.min() >= 0
    assert right.max() <= width
    assert bottom.max() <= height
    if width < 400:  # no window of these ranges fits in a strip, whose middle is taken
        share = (right - left) * (bottom - top) / (width * height)
        aspect = (right - left) / (bottom - top)
        assert 0.17 < share.min() < 0.25
        assert 0.4 < share.max() < 0.53
        assert aspect.min() < 0.7
        assert aspect.max() > 1.4
    else:
        assert set(map(tuple, windows)) == {(195, 0, 205, 10)}


def test_every_matrix_op_is_translated_or_left_out_with_a_reason(monkeypatch):
    names = [name for name, op in OPS.items() if op.kind in ("geometry", "color")]
    aug = parse_aug({"train": {name: {} for name in names}})
    setup = Setup(aug, (), 0, 1)
    assert obstacle(setup) == ""
    missing = [name for name in names if name not in TRANSLATIONS]
    reason = untranslated(build_plan(aug, "train").steps)
    assert reason == (f"no DALI translation of {', '.join(missing)}" if missing else "")
    monkeypatch.delitem(TRANSLATIONS, "warp")
    assert "warp" in untranslated(build_plan(aug, "train").steps)
    (row,) = [row for row in CONTENDERS if row.name == "dali"]
    assert "warp" in row.obstacle(setup)


def test_a_few_values_are_drawn_from_or_the_row_is_left_out(photos):
    few = {"values": [-0.1, 0.1]}
    aug = parse_aug({"size": 16, "train": {"affine": {"translate_range": few, "scale_range": {"values": [1.1]}}}})
    (step,) = parse_aug({"train": {"affine": {"translate_range": few}}}).train
    rng = np.random.default_rng(0)
    assert {draw(step, rng)["translate_x"] for _ in range(20)} == {-0.1, 0.1}
    assert PilDataset(photos, PlainRecipe.of(aug)).pixels(photos[0], rng).shape == (3, 16, 16)
    assert untranslated(build_plan(aug, "train").steps) == "no DALI translation of affine"
