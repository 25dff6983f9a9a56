"""Differences between two recipes."""

from typing import Any

import pytest

from augment.recipe.diff import diff_settings, diff_steps, diff_views
from augment.recipe.steps import parse_aug, parse_steps

FLIP, ROTATE, HUE = {"p": 0.5}, {"p": 0.25}, {"p": 0.1}


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [str(change) for change in diff_steps(parse_steps(old, "old"), parse_steps(new, "new"))]


def test_no_difference() -> None:
    assert changes({"flip": FLIP, "rotate": ROTATE}, {"flip": FLIP, "rotate": ROTATE}) == []


def test_spelling_out_a_default_is_no_difference() -> None:
    assert changes({"rotate": {}}, {"rotate": {"p": 1, "angle_range": [-7, 7], "border": "reflect_101"}}) == []


def test_added_and_removed_steps_are_shown_with_all_parameters() -> None:
    assert changes({"flip": FLIP, "hue": HUE}, {"hue": HUE, "turn": {"op": "rotate", "p": 0.25}}) == [
        "- flip  p 0.5  direction horizontal",
        "+ turn  (rotate)  p 0.25  angle -7..7 deg",
    ]


def test_changed_parameters_have_units() -> None:
    new = {"rotate": {"p": 0.5, "angle_range": [-15, 15], "border": "wrap"}}
    assert changes({"rotate": ROTATE}, new) == [
        "~ rotate  p 0.25 -> 0.5",
        "~ rotate  border reflect_101 -> wrap",
        "~ rotate  angle -7..7 deg -> -15..15 deg",
    ]


def test_differences_hidden_by_rounding_are_shown() -> None:
    (change,) = changes({"rotate": {"angle_range": [0, 1.00001]}}, {"rotate": {"angle_range": [0, 1.00002]}})
    assert change == "~ rotate  angle (0.0, 1.00001) -> (0.0, 1.00002)"


def test_another_op_under_the_same_key_is_another_step() -> None:
    assert changes({"step": {"op": "rotate"}}, {"step": {"op": "flip"}}) == [
        "- step  (rotate)  p 1  angle -7..7 deg",
        "+ step  (flip)  p 1  direction horizontal",
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("flip rotate hue", "rotate hue flip", ["> flip  now after hue"]),
        ("flip rotate hue", "hue flip rotate", ["> hue  now the first"]),
        ("flip rotate", "flip hue rotate", ["+ hue  p 1  angle -18..18 deg"]),
        ("flip hue rotate", "flip rotate", ["- hue  p 1  angle -18..18 deg"]),
    ],
)
def test_the_fewest_possible_steps_are_reported_as_moved(old: str, new: str, expected: list[str]) -> None:
    assert changes({key: {} for key in old.split()}, {key: {} for key in new.split()}) == expected


# --- steps within steps ---


def nested(**steps: dict[str, Any]) -> dict[str, Any]:
    return {"choice": {"op": "one_of", "p": 0.5, "steps": steps}}


def test_nested_steps_are_compared_like_steps() -> None:
    old = nested(rotate=ROTATE, flip={})
    new = nested(flip={}, rotate={"p": 0.5, "angle_range": [-9, 9]}, hue={})
    assert changes(old, new) == [
        "> choice.flip  now the first",
        "~ choice.rotate  p 0.25 -> 0.5",
        "~ choice.rotate  angle -7..7 deg -> -9..9 deg",
        "+ choice.hue  p 1  angle -18..18 deg",
    ]
    assert changes({}, nested(flip={"weight": 2})) == [
        "+ choice  (one_of)  p 0.5",
        "+ choice.flip  p 1  direction horizontal, weight 2",
    ]


# --- settings ---


def test_settings() -> None:
    old, new = {"size": 64}, {"size": 96, "fuse": False, "mean": [0.5, 0.5, 0.5], "train": {"flip": {}}}
    assert [str(change) for change in diff_settings(parse_aug(old), parse_aug(new))] == [
        "~ size  64 px -> 96 px",
        "~ fuse  true -> false",
        "~ mean  null -> (0.5, 0.5, 0.5)",
    ]


def test_views_by_name_are_compared_by_name() -> None:
    train = {"flip": {"p": 0.5}, "gaussian_blur": {}}
    old, new = (
        parse_aug({"train": train, "views": views}).views
        for views in (
            {"first": {}, "second": {"steps": {"gaussian_blur": {"p": 0.1}}}, "third": {}},
            {"first": {}, "second": {"share": ["flip"], "steps": {"gaussian_blur": {"p": 0.2}}}, "small": {"size": 96}},
        )
    )
    assert list(map(str, diff_views(old, new))) == [
        "~ views.second.share  [] -> [flip]",
        "~ views.second.gaussian_blur  p 0.1 -> 0.2",
        "- views.third",
        "+ views.small",
        "~ views.small.size  null -> 96 px",
        "+ views.small.flip  p 0.5  direction horizontal",
        "+ views.small.gaussian_blur  p 1  sigma 0.1..2 px",
    ]
    swapped = parse_aug({"train": train, "views": {"second": {}, "first": {}}}).views
    plain = parse_aug({"train": train, "views": {"first": {}, "second": {}}}).views
    assert list(map(str, diff_views(plain, swapped))) == ["> views.second  now the first"]
