"""Which points change places in a mirrored image."""

import json
from pathlib import Path
from typing import Any

import pytest
from annotated import coco

from augment import load_recipe, make_loader
from augment.data.targets.keypoints import mirrored, pair_points
from augment.support.errors import UserError

PAIRS = ("left_eye right_eye", "LeftEye rightEye", "UPPERLEFT UPPERRIGHT", "l_eye r_eye", "eye_L eye_R", "LEye REye",
         "eye.l eye.r", "l1 r1", "linkes_auge rechtes_auge", "œil-gauche œil-droit", "mano_izquierda mano_derecha",
         "左眼 右眼")  # fmt: skip


@pytest.mark.parametrize("names", PAIRS)
def test_names_tell_left_and_right(names: str) -> None:
    left, right = names.split()
    assert pair_points(None, ["nose", right, left]) == ((2, 1),)


def test_names_with_two_sides() -> None:
    corners = [f"{eye}_eye_{side}_corner" for eye in ("left", "right") for side in ("left", "right")]
    assert pair_points(None, corners) == ((0, 3), (1, 2))


def test_a_point_in_two_pairs_is_rejected() -> None:
    with pytest.raises(UserError, match=r"data\.flip_pairs: b is in several pairs"):
        pair_points([["a", "b"], ["b", "c"]], ["a", "b", "c"])
    assert mirrored(2, pair_points([["a", "b"], ["b", "a"]], ["a", "b"]) or ()) == [1, 0], "both directions"
    for pairs in ([(0, 1), (1, 2)], [(0, 3)], [(0, -1)]):
        with pytest.raises(UserError, match=r"flip_pairs: \[\(0, .*at most one pair"):
            mirrored(3, pairs)
    assert mirrored(3, [(0, 2)]) == [2, 1, 0]


@pytest.mark.parametrize("names", ["0 1", "lshoulder rshoulder", "left_eye right_eye left_ear", "nose chin"])
def test_other_names_do_not(names: str) -> None:
    assert pair_points(None, names.split()) is None
    assert pair_points([], names.split()) == ()
    assert pair_points(None, ["nose"]) == ()


@pytest.mark.usefixtures("own_folder")
def test_a_recipe_that_mirrors_needs_pairs() -> None:
    points = {"bbox": [2, 3, 10, 5], "keypoints": [4, 5, 2, 6, 5, 2]}
    categories = [{"id": 3, "name": "face", "keypoints": ["a", "b"]}]
    train = coco("train.json", [(30, 20), (24, 24)], [points, points | {"image_id": 11}], categories=categories)

    def first(steps: dict[str, Any], **settings: Any) -> Any:
        recipe = load_recipe({"size": [20, 30], "train": {"resize": {}, **steps}, "val": {"resize": {}}})
        loader = make_loader(
            recipe, data="coco", train=train, keypoints=True, split="train", batch_size=2, device="cpu", **settings
        )
        return next(iter(loader)).targets[0]["keypoints"][0, :, 0].tolist()

    for flip in ({"flip": {"p": 0.5}}, {"flip": {"direction": "vertical"}}, {"one": {"op": "flip", "p": 0.02}}):
        with pytest.raises(UserError, match=r"data.flip_pairs.*aug.train"):
            first(flip)
    assert len(first({"rotate": {}})) == 2
    for pairs in ([["a", "b"]], []):
        shown = first({"flip": {}}, flip_pairs=pairs)
        assert (shown[0] < shown[1]) == bool(pairs)
    assert json.loads(Path(train).read_text())["categories"] == categories
