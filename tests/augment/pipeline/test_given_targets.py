"""Targets in memory: the forms in which people have them, and what becomes of all parts of an object."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from augment import Transform, UserError, load_recipe
from augment.data.targets.boxes import joined_masks
from augment.recipe.sampler import Sampler

SIZE = 20
IMAGE = np.zeros((SIZE, SIZE, 3), np.uint8)


@cache
def unchanging() -> Transform:
    return Transform(load_recipe({"size": SIZE}), device="cpu")


def moved(targets: Any, steps: dict[str, Any] | None = None, **options: Any) -> Any:
    changing = steps and Transform(load_recipe({"size": SIZE, "train": steps}), device="cpu", **options)
    return (changing or unchanging())([IMAGE] * len(targets), targets).targets


def square(left: int, top: int, side: int) -> np.ndarray:
    mask = np.zeros((SIZE, SIZE), np.uint8)
    mask[top : top + side, left : left + side] = 1
    return mask


@pytest.mark.parametrize(
    "points",
    [
        [[[3.0, 4.0], [5.0, 6.0]]],
        [[[3, 4], [5, 6]]],
        [[[3, 4, 2], [5, 6, 2]]],
        [[(3, 4), (5, 6)]],
        [np.array([[3.0, 4], [5, 6]])],
        [torch.tensor([[3.0, 4], [5, 6]])],
        np.array([[[3.0, 4], [5, 6]]]),
    ],
)
def test_points_may_be_lists(points: Any) -> None:
    assert moved(points).tolist() == [[[3, 4, 2], [5, 6, 2]]]


def test_arrays_of_whole_numbers_are_masks() -> None:
    assert moved([square(2, 2, 5)]).shape == (1, SIZE, SIZE)


def test_what_moves_points_is_drawn_for_several_calls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = Transform(load_recipe({"size": SIZE, "train": {"rotate": {}}}), device="cpu")
    draw, drawn = Sampler.draw, []
    monkeypatch.setattr(Sampler, "draw", lambda self, *where: drawn.append(where[3:]) or draw(self, *where))
    for _ in range(8):
        transform([IMAGE], [[[3, 4]]])
    assert [calls for calls in drawn if calls > (1,)] == [(2,), (4,), (8,)]


@pytest.mark.parametrize(("split", "count"), [("train", 1), ("val", 2)])
def test_only_training_drops_tiny_boxes(split: Any, count: int) -> None:
    transform = Transform(load_recipe({"size": SIZE}), split=split, device="cpu")
    image, boxes = np.zeros((400, 400, 3), np.uint8), [[100, 100, 200, 200], [10, 10, 26, 26]]
    (found,) = transform([image], [{"boxes": boxes, "labels": [1, 2]}]).targets
    assert found["boxes"].tolist() == [[5, 5, 10, 10], pytest.approx([0.5, 0.5, 1.3, 1.3])][:count]


def test_pillow_images_that_exif_turns_are_rejected_with_targets_in_them() -> None:
    """Targets may be in pixels of the image before or after that."""
    transform, image = Transform(load_recipe({"size": SIZE}), device="cpu"), Image.new("RGB", (9, 9))
    exif = Image.Exif()
    exif[0x0112] = 3
    image.info["exif"] = exif.tobytes()
    assert transform([image], [1]).targets.tolist() == [1]
    with pytest.raises(UserError, match=r"^images\[1\] is a Pillow image with an EXIF orientation\. For"):
        transform([IMAGE, image], [[[3, 4]]] * 2)


def test_lists_of_several_lengths_are_rejected() -> None:
    with pytest.raises(UserError, match="targets"):
        moved([[[3, 4], [5]]])


def test_an_object_has_all_that_torchvision_gives_it() -> None:
    target = {
        "boxes": [[2, 3, 8, 9], [10, 10, 15, 15]],
        "labels": [1, 2],
        "masks": torch.from_numpy(np.stack([square(2, 3, 6), square(10, 10, 5)])),
        "keypoints": [[[2, 3, 2], [7, 8, 1]], [[10, 10, 2], [14, 14, 2]]],
        "image_id": torch.tensor([7]),
        "iscrowd": [0, 1],
        "area": [36.0, 25.0],
    }
    (found, empty) = moved([target, {"boxes": [], "labels": []}], {"flip": {}}, flip_pairs=[(0, 1)])
    assert found["boxes"].tolist() == [[12, 3, 18, 9], [5, 10, 10, 15]]
    assert torch.equal(found["masks"][0], torch.from_numpy(square(12, 3, 6)))
    assert torch.equal(found["masks"][1], torch.from_numpy(square(5, 10, 5)))
    assert found["keypoints"][0].tolist() == [[12, 8, 1], [17, 3, 2]]
    assert (int(found["image_id"]), found["iscrowd"].tolist()) == (7, [False, True])
    assert {name: tuple(empty[name].shape) for name in ("boxes", "masks", "keypoints")} == {
        "boxes": (0, 4), "masks": (0, SIZE, SIZE), "keypoints": (0, 2, 3),
    }  # fmt: skip


BOX = {"boxes": [[2, 3, 8, 9]], "labels": [1]}


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"mask": 1}, r"targets\[0\].mask: unknown key. Did you mean 'masks'\? Allowed: area, boxes, difficult,"),
        ({"masks": np.zeros((2, SIZE, SIZE))}, r"targets\[0\]: masks: .*Use \(K, height, width\)"),
        ({"keypoints": [[[1, 2]]]}, r"targets\[0\]: keypoints: \(1, 1, 2\) int64 .* Use \(1, P, 3\), one per box"),
        ({"image_id": "7.jpg"}, r"targets\[0\]: image_id: .*Use a whole number"),
        ({"labels": []}, r"targets\[0\]: labels: \(0,\) float64 .* Use \(1,\), one per box"),
    ],
)
def test_another_form_of_an_object_is_named(others: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        moved([BOX | others])


def test_boxes_of_another_format_are_rejected() -> None:
    tv_tensors = pytest.importorskip("torchvision.tv_tensors")
    for form in ("XYXY", "XYWH"):
        boxes = tv_tensors.BoundingBoxes([[2, 3, 8, 9]], format=form, canvas_size=(SIZE, SIZE))
        if form == "XYXY":
            assert moved([{"boxes": boxes, "labels": [1]}])[0]["boxes"].tolist() == [[2, 3, 8, 9]]
    with pytest.raises(UserError, match=r"^targets\[0\]: the boxes are XYWH\. Convert them to XYXY"):
        moved([{"boxes": boxes, "labels": [1]}])


@pytest.mark.parametrize("targets", [[{"boxes": [[0.1, 0.2, 0.5, 1]], "labels": [1]}], [[[0.5, 0.25]]]])
def test_shares_of_the_sides_are_rejected(targets: Any) -> None:
    with pytest.raises(UserError, match=r"targets: .* whose coordinates are at most 1, so they are probably shares"):
        moved(targets)
    moved([[[0.5, 0.25], [float("nan")] * 2, [0, 9]]])


def test_objects_have_as_many_points_each() -> None:
    with pytest.raises(UserError, match=r"targets: objects with 1 and 2 keypoints. Use the same number"):
        moved([BOX | {"keypoints": [[[1, 2, 2]] * n]} for n in (1, 2)])


def test_no_image_may_have_keypoints() -> None:
    found = moved([{"boxes": [], "labels": [], "keypoints": []}] * 2)
    assert [tuple(target["keypoints"].shape) for target in found] == [(0, 0, 3)] * 2


@pytest.mark.parametrize(("part", "value"), [("keypoints", [[[1, 2, 2]]]), ("masks", square(2, 3, 6)[None])])
def test_parts_of_the_objects_of_some_images_are_rejected(part: str, value: Any) -> None:
    nothing = {"boxes": [], "labels": []}
    assert part in moved([BOX | {part: value}, nothing])[0]
    with pytest.raises(UserError, match=rf"targets: objects without {part} in image 2, but with {part} in others"):
        moved([nothing, BOX | {part: value}, BOX])


def test_an_object_whose_mask_is_empty_is_dropped_with_all_its_parts() -> None:
    """The image moves by 10 px to the left. Half of the second box is inside, but not the half with its pixels."""
    target = {
        "boxes": [[10, 0, 16, 6], [6, 0, 14, 6], [12, 10, 16, 14]],
        "labels": [1, 2, 3],
        "masks": np.stack([square(10, 0, 6), square(6, 0, 2), square(12, 10, 4)]),
        "keypoints": [[[11, 1, 2]], [[12, 1, 2]], [[13, 11, 2]]],
    }
    left = {"translate": {"x_range": [-0.5, -0.5], "y_range": [0, 0], "border": "constant"}}
    (kept,) = moved([target], left)
    assert kept["labels"].tolist() == [1, 3]
    assert kept["boxes"].tolist() == [[0, 0, 6, 6], [2, 10, 6, 14]]
    assert torch.equal(kept["masks"], torch.from_numpy(np.stack([square(0, 0, 6), square(2, 10, 4)])))
    assert kept["keypoints"].tolist() == [[[1, 1, 2]], [[3, 11, 2]]]


def test_masks_of_objects_with_values_between_0_and_1_are_rejected() -> None:
    with pytest.raises(UserError, match=r"masks.*0 and 1"):
        joined_masks(np.full((1, 2, 2), 0.3), "masks")
    assert joined_masks(np.ones((1, 2, 2)), "masks").max() == 1
