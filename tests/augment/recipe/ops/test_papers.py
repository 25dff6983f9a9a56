"""Published policies, compared with torchvision: single ops, magnitude tables and frequencies."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lazily import LazyModule
from PIL import Image
from rendering import SIZE, Pixels, draws_of, plan_of, read, render, rounding

from augment.recipe.ops.policies import _AUTO_AUGMENT, _RAND, _WIDE, _op, auto_augment, rand_augment, trivial_augment

autoaugment = LazyModule("torchvision.transforms.autoaugment")

NAMES = {
    "shear_x": "ShearX",
    "shear_y": "ShearY",
    "translate_x": "TranslateX",
    "translate_y": "TranslateY",
    "rotate": "Rotate",
    "brightness": "Brightness",
    "color": "Color",
    "contrast": "Contrast",
    "sharpness": "Sharpness",
    "posterize": "Posterize",
    "solarize": "Solarize",
    "autocontrast": "AutoContrast",
    "equalize": "Equalize",
    "invert": "Invert",
}
BORDER = {"border": "constant", "fill": 128}
COUNT = 36


def magnitude(name: str, value: float, size: int = SIZE) -> float:
    """Return what torchvision calls a value that is drawn for our step."""
    kind = name.partition("_")[0]
    if kind == "shear":
        return -math.tan(math.radians(value))  # ours moves what is below the corner forward, torchvision's back
    if kind == "translate":
        return value * size
    if kind in ("brightness", "color", "contrast", "sharpness"):
        return value - 1
    return value


def values_of(step: dict[str, Any]) -> list[float]:
    """Return the values that a step draws from; of its other ranges only 0."""
    ranges = [v["values"] for v in step.values() if isinstance(v, dict)]
    assert len(ranges) <= 1
    return list(ranges[0]) if ranges else []


def theirs(name: str, photo: Pixels, value: float, fill: int = 128) -> Pixels:
    image = Image.fromarray(photo.astype(np.uint8))
    bilinear = autoaugment.InterpolationMode.BILINEAR
    made = autoaugment._apply_op(image, NAMES[name], magnitude(name, value), bilinear, [float(fill)] * 3)
    return np.asarray(made).astype(int)


# Largest and mean difference. Color: Pillow rounds the gray that it blends with, and cuts off the result.
COLOR, GEOMETRY, EXACT = (1, 1.0), (1, 0.5), (0, 0)


@pytest.mark.parametrize(
    ("name", "most", "mean"),
    [
        ("shear_x", *GEOMETRY),
        ("shear_y", *GEOMETRY),
        ("translate_x", *EXACT),
        ("translate_y", *EXACT),
        ("rotate", *GEOMETRY),
        ("brightness", *COLOR),
        ("color", *COLOR),
        ("contrast", *COLOR),
        ("sharpness", 1, 0.6),
        ("posterize", *EXACT),
        ("solarize", *EXACT),
        ("autocontrast", 1, 0.8),
        ("invert", *EXACT),
    ],
)
def test_op_matches_torchvision(name: str, most: float, mean: float, soft: list[Path], device: torch.device) -> None:
    # Shifts of whole pixels: torchvision cuts the others off.
    shifted = name.startswith("translate")
    tables = (_RAND | {"translate": 0.25}, _RAND | {"translate": 0.5}) if shifted else (_RAND, _WIDE)
    parts = (0, 1 / 16, 5 / 16, 11 / 16, 1)
    first, second = (_op(name, parts, table, BORDER) for table in tables)
    step = {n: {"values": v["values"] + second[n]["values"]} if isinstance(v, dict) else v for n, v in first.items()}
    plan = plan_of({"step": step})
    drawn = draws_of(plan, COUNT)["step"]
    varied = [value for value in drawn.values() if len(set(value)) > 1] or [np.zeros(COUNT)]
    assert len(varied) == 1
    values = varied[0]
    assert set(values) <= set(values_of(step) or [0.0])
    ours = render(plan, soft, device)
    for i, image in enumerate(read(soft)):
        expected = theirs(name, image, values[i])
        where = np.ones((SIZE, SIZE), dtype=bool)
        if plan.stages[0].kind == "geometry":
            # At the edge torchvision blends with the fill in another way: left out, two pixels of it.
            seen = theirs(name, np.full((SIZE, SIZE, 3), 255), values[i], fill=0)[..., 0] == 255
            padded = np.pad(seen, 2)
            around = [np.roll(padded, (y, x), (0, 1)) for y in range(-2, 3) for x in range(-2, 3)]
            where = np.logical_and.reduce(around)[2:-2, 2:-2]
            fill = ~np.logical_or.reduce(around)[2:-2, 2:-2]
            assert (ours[i][fill] == 128).all()
        elif name == "sharpness":  # the outermost pixels stay as they are in Pillow
            where[[0, -1]] = where[:, [0, -1]] = False
        off = np.abs(ours[i] - expected)[where]
        assert off.max(initial=0) <= rounding(most, device), (name, values[i])
        assert off.size == 0 or off.mean() <= mean, (name, values[i])


# --- magnitudes and sub-policies ---


def assert_table(name: str, step: dict[str, Any], expected: tuple[Any, bool], bins: list[int], size: int) -> None:
    """Compare what a step draws from with torchvision's magnitudes of those bins, and their negatives if signed."""
    magnitudes, signed = expected
    if magnitudes.ndim == 0:
        assert values_of(step) == []
        return
    wanted = [float(magnitudes[b]) for b in bins]
    wanted += [-m for m in wanted] if signed else []
    found = [magnitude(name, value, size) for value in values_of(step)]
    np.testing.assert_allclose(sorted(found), sorted(wanted), rtol=1e-6, atol=1e-5)
    if signed:
        assert step.get("border", "constant") == "constant"


@pytest.mark.parametrize("bin", range(31))
def test_magnitudes_of_rand_augment(bin: int) -> None:
    space = autoaugment.RandAugment()._augmentation_space(31, (SIZE, SIZE))
    slots = rand_augment(3, float(bin), **BORDER)
    assert len(slots) == 3
    for slot in slots.values():
        assert {NAMES[name] for name in slot["steps"]} | {"Identity"} == set(space)
        for name, step in slot["steps"].items():
            assert_table(name, step, space[NAMES[name]], [bin], SIZE)


def test_magnitudes_of_trivial_augment() -> None:
    space = autoaugment.TrivialAugmentWide()._augmentation_space(31)
    (slot,) = trivial_augment(**BORDER).values()
    assert {NAMES[name] for name in slot["steps"]} | {"Identity"} == set(space)
    for name, step in slot["steps"].items():
        # The paper's shift of up to 32 pixels is one of images of 224.
        assert_table(name, step, space[NAMES[name]], list(range(31)), size=224)


@pytest.mark.parametrize("found_on", list(_AUTO_AUGMENT))
def test_sub_policies_of_auto_augment(found_on: str) -> None:
    policy = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy(found_on))
    space = policy._augmentation_space(10, (SIZE, SIZE))
    (chooser,) = auto_augment(found_on, **BORDER).values()
    pairs = list(chooser["steps"].values())
    assert (chooser["op"], len(pairs), len(policy.policies)) == ("one_of", 25, 25)
    for ours, expected in zip(pairs, policy.policies, strict=True):
        assert ours["op"] == "sequence"
        for (key, step), (name, p, bin) in zip(ours["steps"].items(), expected, strict=True):
            plain = key.partition("_")[2]
            assert (NAMES[plain], step["p"]) == (name, p)
            params = {n: v for n, v in step.items() if n != "p"}
            assert_table(plain, params, space[name], [0 if bin is None else bin], SIZE)
