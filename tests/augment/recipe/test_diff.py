"""Differences between two recipes."""

from typing import Any

import pytest

from augment.recipe.diff import diff_settings, diff_steps
from augment.recipe.steps import parse_aug

FLIP, ROTATE, HUE = {"p": 0.5}, {"p": 0.25}, {"p": 0.1}


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return diff_steps(parse_aug({"train": old}), parse_aug({"train": new}), "train")


def nested(**steps: dict[str, Any]) -> dict[str, Any]:
    return {"choice": {"op": "one_of", "p": 0.5, "steps": steps}}


def ops(names: str) -> dict[str, Any]:
    return {name: {} for name in names.split()}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # Spelling out a default is no difference.
        ({"rotate": {}}, {"rotate": {"p": 1, "angle_range": [-7, 7], "border": "reflect_101"}}, []),
        (
            {"flip": FLIP, "hue": HUE},
            {"hue": HUE, "turn": {"op": "rotate", "p": 0.25}},
            ["- flip  p 0.5, direction horizontal", "+ turn (rotate)  p 0.25, angle -7..7 deg"],
        ),
        (
            {"rotate": ROTATE},
            {"rotate": {"p": 0.5, "angle_range": [-15, 15], "border": "wrap"}},
            [
                "~ rotate  p 0.25 -> 0.5",
                "~ rotate  border reflect_101 -> wrap",
                "~ rotate  angle -7..7 deg -> -15..15 deg",
            ],
        ),
        # Equal once rounded.
        (
            {"rotate": {"angle_range": [0, 1.00001]}},
            {"rotate": {"angle_range": [0, 1.00002]}},
            ["~ rotate  angle (0.0, 1.00001) -> (0.0, 1.00002)"],
        ),
        # Another op under the same key is another step.
        (
            {"step": {"op": "rotate"}},
            {"step": {"op": "flip"}},
            ["- step (rotate)  p 1, angle -7..7 deg", "+ step (flip)  p 1, direction horizontal"],
        ),
        # As few as possible have moved.
        (ops("flip rotate hue"), ops("rotate hue flip"), ["> flip  now after hue"]),
        (ops("flip rotate hue"), ops("hue flip rotate"), ["> hue  now the first"]),
        (ops("flip rotate"), ops("flip hue rotate"), ["+ hue  p 1, angle -18..18 deg"]),
        (
            nested(rotate=ROTATE, flip={}),
            nested(flip={}, rotate={"p": 0.5}, hue={}),
            ["> choice.flip  now the first", "~ choice.rotate  p 0.25 -> 0.5", "+ choice.hue  p 1, angle -18..18 deg"],
        ),
        (
            {},
            nested(flip={"weight": 2}),
            ["+ choice (one_of)  p 0.5", "+ choice.flip  p 1, direction horizontal, weight 2"],
        ),
    ],
)
def test_steps(old: dict[str, Any], new: dict[str, Any], expected: list[str]) -> None:
    assert changes(old, new) == expected


def test_settings() -> None:
    old, new = {"size": 64}, {"size": 96, "fuse": False, "mean": [0.5, 0.5, 0.5], "views": {"count": 2}}
    assert diff_settings(parse_aug(old), parse_aug(new)) == [
        "~ size  64 px -> 96 px",
        "~ fuse  true -> false",
        "~ mean  null -> (0.5, 0.5, 0.5)",
        "~ views.count  1 -> 2",
    ]


def test_views_by_name_are_compared_by_name() -> None:
    def differ(*views: dict[str, Any]) -> list[str]:
        old, new = (parse_aug({"train": {"flip": {"p": 0.5}}, "views": some}) for some in views)
        return diff_steps(old, new, "train")

    old = {"first": {}, "second": {"steps": {"flip": {"p": 0.1}}}, "third": {}}
    new = {"first": {}, "second": {"count": 2, "steps": {"flip": {"p": 0.2}}}, "small": {"size": 96}}
    assert differ(old, new) == [
        "- views.third",
        "- views.third.flip  p 0.5, direction horizontal",
        "~ views.second  count 1 -> 2",
        "~ views.second.flip  p 0.1 -> 0.2",
        "+ views.small",
        "+ views.small.flip  p 0.5, direction horizontal",
    ]
    assert differ({"first": {}, "second": {}}, {"second": {}, "first": {}}) == ["> views.second  now the first"]
