"""Traps into which masks, boxes and points of other libraries fell, a test each."""

from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from augment import Transform, UserError, load_recipe

SIZE = 20
COLUMNS = np.tile(np.arange(SIZE, dtype=np.uint8), (SIZE, 1))  # each column has its number
MEAN, STD = (torch.tensor(of)[:, None, None] for of in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
FLIP = {"flip": {}}


def shown(targets: Any, steps: dict[str, Any], image: NDArray[np.uint8] = COLUMNS, **recipe: Any) -> tuple[Any, Any]:
    """Return the gray levels of the image after some steps, and its targets."""
    transform = Transform(load_recipe({"size": SIZE, "train": steps, **recipe}), device="cpu")
    batch = transform([np.repeat(image[..., None], 3, axis=2)], targets)
    return ((batch.images[0] * STD + MEAN) * 255).round()[0], batch.targets[0]


def right(border: str) -> dict[str, Any]:
    """Return a step that moves the image by 5 px to the right."""
    return {"translate": {"x_range": [0.25, 0.25], "y_range": [0, 0], "border": border, "fill": 200}}


@pytest.mark.parametrize("direction", ["horizontal", "vertical"])
def test_boxes_do_not_count_their_last_pixel_twice(direction: str) -> None:
    """Kornia 4452: a box of the whole image stays in a mirror image, and one of a pixel has an area of 1."""
    boxes = [[0, 0, SIZE, SIZE], [0, 0, 1, 1], [3, 4, 5, 7]]
    _, found = shown([{"boxes": boxes, "labels": [1, 2, 3]}], {"flip": {"direction": direction}})
    across, down = (19, 0) if direction == "horizontal" else (0, 19)
    last = [15, 4, 17, 7] if direction == "horizontal" else [3, 13, 5, 16]
    assert found["boxes"].tolist() == [[0, 0, SIZE, SIZE], [across, down, across + 1, down + 1], last]
    assert found["area"].tolist() == [400, 1, 6]


@pytest.mark.parametrize("steps", [{"rotate": {"angle_range": [30, 30]}}, {"elastic": {}}, {"random_resized_crop": {}}])
def test_labels_are_never_interpolated(steps: dict[str, Any]) -> None:
    """Kornia 1534, 2037, 4419: whatever resamples the image, a mask has no labels but its own and the fill's."""
    labels = np.where(COLUMNS % 2, 90, 0).astype(np.uint8)
    _, found = shown([labels], steps, labels)
    assert set(found.unique().tolist()) <= {0, 90, 255}


@pytest.mark.parametrize("fill", [255, 7, 0])
def test_labels_do_not_shift_where_the_image_is_filled(fill: int) -> None:
    """Kornia 3090: the mask is filled with the label of the settings, exactly where the image is."""
    image, found = shown([COLUMNS + 30], right("constant"), COLUMNS + 30, fill_label=fill)
    assert found[3].tolist() == [fill] * 5 + list(range(30, 45))
    assert image[3].tolist() == [200] * 5 + list(range(30, 45))


@pytest.mark.parametrize("border", ["reflect_101", "replicate", "wrap"])
def test_a_mask_repeats_what_the_image_repeats(border: str) -> None:
    """Imgaug 499: the image was reflected, and its mask filled."""
    image, found = shown([COLUMNS], right(border))
    first = {"reflect_101": [5, 4, 3, 2, 1], "replicate": [0] * 5, "wrap": [15, 16, 17, 18, 19]}[border]
    assert found[3].tolist() == image[3].tolist() == first + list(range(15))


@pytest.mark.parametrize("x", [-0.5, 0.0, 19.0, 19.5])
def test_points_on_the_edge_of_a_mirrored_image_stay(x: float) -> None:
    """Albumentations 1500: the first and last column are mirrored to each other, and the outermost points kept."""
    _, found = shown(np.array([[[x, 2.0]]]), FLIP)
    assert found.tolist() == [[19 - x, 2, 2]]


def test_points_outside_are_not_clamped() -> None:
    """Torchvision 9236: they keep their coordinates, and are not visible."""
    _, found = shown(np.array([[[17.0, 2.0], [10, 2]]]), right("constant"))
    assert found.tolist() == [[22, 2, 0], [15, 2, 2]]


def test_a_letterbox_is_not_off_by_a_pixel() -> None:
    """Torchvision 9236, `expand`: all targets are where the image is, in the middle."""
    image = np.full((10, 20), 90, np.uint8)
    given = {"mask": [image], "boxes": [{"boxes": [[0, 0, 20, 10]], "labels": [1]}], "points": np.array([[[0.0, 9]]])}
    transform = Transform(load_recipe({"size": SIZE, "train": {"letterbox": {}}}), device="cpu")
    batch = transform([np.repeat(image[..., None], 3, axis=2)], given)
    level = ((batch.images[0] * STD + MEAN) * 255).round()[0, :, 3]
    assert (level == 90).nonzero().flatten().tolist() == list(range(5, 15))
    assert (batch.targets["mask"][0, :, 3] == 90).nonzero().flatten().tolist() == list(range(5, 15))
    assert batch.targets["boxes"][0]["boxes"].tolist() == [[0, 5, 20, 15]]
    assert batch.targets["points"][0].tolist() == [[0, 14, 2]]


def test_resized_masks_show_the_pixel_at_the_center() -> None:
    """Torchvision 8654: NEAREST takes the pixel at the left of the area, NEAREST_EXACT the one in its middle."""
    wide = np.tile(np.arange(100, dtype=np.uint8), (100, 1))
    assert shown([wide], {"resize": {}}, wide)[1][3].tolist() == list(range(2, 100, 5))
    narrow = np.tile(np.arange(4, dtype=np.uint8), (4, 1))
    assert shown([narrow], {"resize": {}}, narrow)[1][3].tolist() == [label for label in range(4) for _ in range(5)]


def test_images_are_the_same_with_targets_as_without() -> None:
    """rf-detr 874 and 997: with masks, normalization was skipped, and the device another one in silence."""
    recipe, picture = load_recipe({"size": SIZE, "train": {"rotate": {}}}), np.repeat(COLUMNS[..., None], 3, axis=2)
    alone = Transform(recipe, device="cpu")([picture])
    batch = Transform(recipe, device="cpu")([picture], [COLUMNS])
    assert torch.equal(alone, batch.images)
    assert batch.targets.device == batch.images.device
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="cuda"):
            Transform(recipe, device="cuda")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_targets_follow_images_that_exif_turns(orientation: int) -> None:
    """They are in pixels of the stored image; the upright one has its sides swapped from orientation 5 on."""
    stored = np.random.default_rng(0).integers(0, 5, (2, 3)).repeat(8, 0).repeat(8, 1).astype(np.uint8)
    exif, file = Image.Exif(), BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(50 * stored).convert("RGB").save(file, "JPEG", quality=100, exif=exif)
    size = [24, 16] if orientation >= 5 else [16, 24]
    given = {"mask": [stored], "boxes": [{"boxes": [[8, 0, 16, 8]], "labels": [1]}], "points": [[[8, 0], [15, 7]]]}
    transform = Transform(load_recipe({"size": size, "train": {"resize": {}}}), device="cpu")
    batch = transform([file.getvalue()], given)
    level = ((batch.images[0] * STD + MEAN) * 255 / 50).round()[0]
    assert torch.equal(level.long(), batch.targets["mask"][0])
    left, top, right, bottom = map(int, batch.targets["boxes"][0]["boxes"][0].tolist())
    assert batch.targets["mask"][0, top:bottom, left:right].unique().tolist() == [int(stored[0, 8])]
    corners = sorted(batch.targets["points"][0, :, :2].tolist())
    assert (corners[0][0], corners[1][0]) == (left, right - 1)
    assert sorted(y for _, y in corners) == [top, bottom - 1]


def test_points_of_a_recipe_that_mirrors_need_pairs() -> None:
    picture, recipe = np.repeat(COLUMNS[..., None], 3, axis=2), load_recipe({"size": SIZE, "train": FLIP})
    transform = Transform(recipe, device="cpu")
    boxes = {"boxes": [[0, 0, 20, 20]], "labels": [1]}
    points = {"keypoints": [[[3, 5, 2], [9, 6, 1]]]}
    for targets in ([[[3, 5], [9, 6]]], [boxes | points], {"points": [[[3, 5], [9, 6]]]}):
        with pytest.raises(UserError, match=r"pass flip_pairs="):
            transform([picture], targets)
    transform([picture], [boxes])
    transform([picture], [[[3, 5]]])
    Transform(recipe, device="cpu", flip_pairs=[])([picture], [[[3, 5], [9, 6]]])


def test_left_and_right_eyes_change_places() -> None:
    """Supervision 2519."""
    transform = Transform(load_recipe({"size": SIZE, "train": FLIP}), device="cpu", flip_pairs=[(0, 1)])
    picture = np.repeat(COLUMNS[..., None], 3, axis=2)
    assert transform([picture], [[[3, 5], [9, 6]]]).targets.tolist() == [[[10, 6, 2], [16, 5, 2]]]
    objects = [{"boxes": [[0, 0, 20, 20]], "labels": [1], "keypoints": [[[3, 5, 2], [9, 6, 1]]]}]
    assert transform([picture], objects).targets[0]["keypoints"].tolist() == [[[10, 6, 1], [16, 5, 2]]]
