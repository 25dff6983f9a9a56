"""The plan command."""

from typing import Any

import pytest

from augment import load_recipe
from augment.cli.compose import compose_recipe
from augment.recipe.op import numpy_op
from augment.recipe.plan import build_plan
from augment.recipe.steps import border_notices, parse_aug
from augment.tools.plan import main, summary


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


# --- showing ---


def test_both_splits_are_shown_as_built(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")  # lines are not wrapped
    text = printed(capsys, "+aug=imagenette", "aug.train.rotate.p=.2")
    aug = compose_recipe(["+aug=imagenette", "aug.train.rotate.p=.2"]).aug
    train, val = build_plan(aug, "train"), build_plan(aug, "val")
    assert text == f"{train}\n  {summary(train)}\n{val}\n  {summary(val)}\n"
    assert "rotate  p 0.2  angle -7..7 deg" in text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"train": {"random_resized_crop": {}, "flip": {}, "warp": {}, "rotate": {}, "hue": {}, "contrast": {}}},
            "6 steps: 1 crop, 1 warp, 1 color matrix; digest ",
        ),
        (
            {"fuse": False, "train": {"center_crop": {}, "rotate": {}, "warp": {"p": 0}, "affine": {}, "hue": {}}},
            "4 steps: 1 crop, 2 warps, 1 color matrix; digest ",
        ),
        ({"train": {"flip": {}}}, "2 steps: 1 crop, 1 warp; digest "),  # the whole image is resized
    ],
)
def test_summary_counts_steps_and_operations(given: dict[str, Any], expected: str) -> None:
    plan = build_plan(parse_aug(given), "train")
    assert summary(plan) == f"{expected}{plan.digest}"


def test_borders_that_repeat_the_image_without_its_boxes_are_named() -> None:
    steps = {"rotate": {"p": 0.5}, "one_of": {"steps": {"affine": {}, "shear": {"border": "constant"}}}, "flip": {}}
    first, second = border_notices(parse_aug({"train": steps}), "boxes")
    note = "aug.train.rotate: border reflect_101 repeats parts of the image beyond its edges, but not their boxes"
    assert first == f"{note}. To fill these areas instead, set aug.train.rotate.border=constant"
    assert second.startswith("aug.train.one_of.steps.affine: border reflect_101")
    assert not [*border_notices(parse_aug({"train": steps}), "")]
    for recipe in ("detect", "keypoints"):
        assert not [*border_notices(load_recipe(recipe).aug, "boxes")]


# --- as a program ---


@pytest.mark.usefixtures("clean_registry")
def test_an_op_that_runs_on_the_cpu_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    @numpy_op()
    def visitor(image: Any) -> Any:
        """Change nothing."""
        return image

    assert "  always on the CPU: visitor\n" in printed(capsys, "aug.train={visitor: {p: 0.5}, rotate: {}}")
