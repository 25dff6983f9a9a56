"""Parsing of the `aug` section, and the message for each mistake in it."""

from typing import Any

import pytest

from augment import load_recipe
from augment.params import Size
from augment.recipe.op import OPS
from augment.recipe.step import parse_steps
from augment.recipe.steps import Aug, parse_aug

FULL: dict[str, Any] = {
    "size": 64,
    "fuse": False,
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
    "train": {
        "random_resized_crop": {"area_range": [0.5, 1]},
        "flip": {"p": 0.5, "direction": "vertical"},
        "rotate": {"p": 0.1, "angle_range": [-30, 30], "border": "constant", "fill": 9},
        "rotate_2": {"op": "rotate", "p": 0},
        "hue": None,
    },
    "val": {"center_crop": {"scale": 0.9}},
}


def test_a_complete_section() -> None:
    aug = parse_aug(FULL)
    assert (aug.size.plain, aug.fuse, aug.mean, aug.std) == (64, False, (0.5,) * 3, (0.25,) * 3)
    assert aug.steps("train") is aug.train
    assert aug.steps("val") is aug.val
    crop, flip, rotate, again, hue = aug.train
    assert (crop.key, crop.op.name, dict(crop.params)) == (
        "random_resized_crop",
        "random_resized_crop",
        {"area_range": (0.5, 1.0), "aspect_range": (0.75, 4 / 3)},
    )
    assert (flip.p, dict(flip.params)) == (0.5, {"direction": "vertical"})
    assert (rotate.p, dict(rotate.params)) == (
        *(0.1, {"angle_range": (-30, 30), "border": "constant", "fill": 9, "draw": "each"}),
    )
    assert (again.key, again.op, again.p) == ("rotate_2", OPS["rotate"], 0.0)
    assert dict(again.params) == {"angle_range": (-7, 7), "border": "reflect_101", "fill": 0, "draw": "each"}
    assert (hue.p, dict(hue.params)) == (1.0, {"angle_range": (-18, 18)})
    assert [(step.key, dict(step.params)) for step in aug.val] == [("center_crop", {"scale": 0.9})]


@pytest.mark.parametrize("given", [None, {}, {"train": None, "val": {}}, {"train": {}, "plugins": []}])
def test_nothing_given_is_no_augmentation(given: object) -> None:
    assert parse_aug(given) == Aug(size=Size(128, 128), fuse=True, mean=None, std=None, plugins=(), train=(), val=())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"rotate": {"p": 0.075}}, "rotate  p 0.075  angle -7..7 deg"),
        ({"again": {"op": "rotate"}}, "again (rotate)  p 1  angle -7..7 deg"),
        ({"rotate": {"angle_range": {"values": [-3, 3]}}}, "rotate  p 1  angle +-3 deg"),
        ({"one_of": {"p": 0.5, "steps": {"flip": {}}}}, "one_of  p 0.5"),
    ],
)
def test_step_as_text(given: dict[str, Any], text: str) -> None:
    (step,) = parse_steps(given, "train")
    assert str(step) == text


def test_hue_in_turns_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    turns, degrees = {"hue_range": [-0.1, 0.1]}, {"hue_range": [-36, 36]}
    nested = {"one_of": {"steps": {"hue": {"angle_range": {"values": [0, 0.5]}}}}}
    views = {"first": {}, "second": {"steps": {"color_jitter": {"hue_range": 0.2}}}}
    load_recipe({"train": {"color_jitter": degrees} | nested, "val": {"color_jitter": turns}, "views": views})
    ending = " deg changes almost nothing (torchvision's hue of 0.1 is 36 deg)"
    assert [record.getMessage().removesuffix(ending) for record in caplog.records] == [
        "aug.train.one_of.steps.hue.angle_range: 0 or 0.5",
        "aug.val.color_jitter.hue_range: -0.1..0.1",
        "aug.views.second.steps.color_jitter.hue_range: -0.2..0.2",
    ]
    caplog.clear()
    load_recipe({"train": {"color_jitter": degrees, "hue": {"angle_range": [0, 0]}, "rotate": {"angle_range": 0.1}}})
    assert not caplog.records
