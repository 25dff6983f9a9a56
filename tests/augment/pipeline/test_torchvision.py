"""Masks, boxes and points follow as torchvision's v2 lets its tv_tensors follow.

Its points are in edge coordinates, as boxes are, half a pixel more than here; but flips take them as
pixels. Its masks are resized by NEAREST, which takes the pixel left of a center; NEAREST_EXACT is what is done here.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lazily import LazyModule

import augment

transforms = LazyModule("torchvision.transforms")
tv_tensors = LazyModule("torchvision.tv_tensors")
F = LazyModule("torchvision.transforms.v2.functional")

SIZE = 64
BOXES = [[20.0, 22.0, 40.0, 36.0], [25.5, 18.25, 33.0, 44.5]]
POINTS = [[20.0, 22.0], [40.25, 30.5], [31.5, 31.5]]


def turned(frame: np.ndarray) -> Callable[[Any], Any]:
    """Rotation, shear and scale of a frame as torchvision's affine takes them."""
    (a, b, _), (c, d, _), _ = frame
    angle = np.arctan2(c, a)
    scale = np.hypot(a, c)
    tan = (a * b + c * d) / scale**2  # of the shear along x, before the rotation
    shift = frame[:2] @ [31.5, 31.5, 1] - 31.5
    assert (a * d - b * c) == pytest.approx(scale**2, abs=1e-9)
    shear = [-np.degrees(np.arctan(tan)), 0.0]
    return lambda given: F.affine(given, np.degrees(angle), shift.tolist(), scale, shear)


def seen_from(frame: np.ndarray) -> Callable[[Any], Any]:
    """The perspective of a frame, which torchvision takes as what becomes of the corners."""
    corners = np.array([[0, 0], [SIZE, 0], [SIZE, SIZE], [0, SIZE]], np.float64)
    moved = np.column_stack([corners - 0.5, np.ones(4)]) @ frame.T
    ends = moved[:, :2] / moved[:, 2:] + 0.5
    return lambda given: F.perspective(given, corners.tolist(), ends.tolist())


def resized(left: int, top: int, height: int, width: int) -> Callable[[Any], Any]:
    def apply(given: Any) -> Any:
        cropped = F.crop(given, top, left, height, width)
        if isinstance(given, tv_tensors.Mask):
            return F.resize(cropped.as_subclass(torch.Tensor), [SIZE, SIZE], transforms.InterpolationMode.NEAREST_EXACT)
        return F.resize(cropped, [SIZE, SIZE])

    return apply


CASES: dict[str, tuple[tuple[int, int], dict[str, Any], Callable[[np.ndarray], Callable[[Any], Any]]]] = {
    "flip": ((64, 64), {"flip": {"p": 1}}, lambda frame: F.horizontal_flip),
    "vertical flip": ((64, 64), {"flip": {"p": 1, "direction": "vertical"}}, lambda frame: F.vertical_flip),
    "resize": ((60, 80), {}, lambda frame: resized(0, 0, 60, 80)),
    "crop": ((60, 80), {"center_crop": {}}, lambda frame: resized(10, 0, 60, 60)),
    "rotate": ((64, 64), {"rotate": {"p": 1, "angle_range": [13, 13]}}, turned),
    "affine": (
        (64, 64),
        {"affine": {"p": 1, "translate_range": [0.05, 0.05], "scale_range": [1.1, 1.1], "shear_range": [0, 0]}},
        turned,
    ),
    "rotate and scale": ((64, 64), {"affine": {"p": 1, "shear_range": [0, 0]}, "rotate": {"p": 1}}, turned),
    "perspective": ((64, 64), {"perspective": {"p": 1}}, seen_from),
}


@pytest.mark.parametrize("name", CASES)
def test_targets_follow_as_in_torchvision(name: str) -> None:
    (height, width), steps, of_frame = CASES[name]
    bordered = {
        op: p | ({"border": "constant"} if op in ("rotate", "affine", "perspective") else {}) for op, p in steps.items()
    }
    recipe = augment.load_recipe({"size": SIZE, "train": bordered, "fill_label": 0, "min_visible": 0})
    mask = torch.from_numpy(np.random.default_rng(0).integers(1, 6, (height // 4, width // 4), np.uint8))
    mask = mask.repeat_interleave(4, 0).repeat_interleave(4, 1)
    image = np.zeros((height, width, 3), np.uint8)
    given = {
        "mask": [mask],
        "boxes": [{"boxes": BOXES, "labels": [1, 2]}],
        "points": np.array([POINTS]),
        "class": [3],
        "labels": np.eye(2)[:1],
    }
    batch = augment.Transform(recipe, split="train", device="cpu", seed=0, flip_pairs=[])([image], given)
    assert batch.frames is not None
    apply, size = of_frame(batch.frames[0].numpy()), (height, width)

    boxes = apply(tv_tensors.BoundingBoxes(torch.tensor(BOXES, dtype=torch.float64), format="XYXY", canvas_size=size))
    torch.testing.assert_close(
        batch.targets["boxes"][0]["boxes"].double(), boxes.as_subclass(torch.Tensor), atol=1e-3, rtol=0
    )
    assert (batch.targets["class"].tolist(), batch.targets["labels"].tolist()) == ([3], [[1, 0]])
    edge = 0.0 if "flip" in steps else 0.5
    points = apply(tv_tensors.KeyPoints(torch.tensor(POINTS, dtype=torch.float64) + edge, canvas_size=size))
    ours = batch.targets["points"][0, :, :2].double() + edge
    torch.testing.assert_close(ours, points.as_subclass(torch.Tensor), atol=1e-3, rtol=0)
    other = apply(tv_tensors.Mask(mask[None]))[0].as_subclass(torch.Tensor)
    different = (batch.targets["mask"][0] != other.long()).double().mean()
    assert different <= 0.001, name  # at ties, which torchvision decides in float32
