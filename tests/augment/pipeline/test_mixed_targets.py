"""Mosaic, mixup and cutmix with what is in images, against a slow reference in NumPy, written apart."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import needs_gpu, reject_waiting
from loaders import build_loader
from mixing_reference import layers_of, traced
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from augment import Transform, UserError, batch, load_recipe
from augment.data.dataset import Split
from augment.data.targets.boxes import BOXES, Objects
from augment.data.targets.classification import CLASSES
from augment.data.targets.spatial import IGNORE
from augment.data.targets.visible_regions import Parts
from augment.params import Range
from augment.pipeline.batch import Batch
from augment.pipeline.geometry.batch_assembly import Mixer
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.steps import parse_aug

Array = NDArray[Any]
HEIGHT, WIDTH, COUNT, SEED = 40, 56, 7, 3
IMAGE_STEPS: Mapping[str, Any] = {"flip": {"p": 0.5}, "rotate": {"p": 0.5, "border": "constant"}}
MIXES: Mapping[str, Mapping[str, Any]] = {
    "mosaic": {"mosaic": {}},
    "some": {"mosaic": {"p": 0.5, "center_range": [0.1, 0.9]}},
    "corner": {"mosaic": {"center_range": [0, 1]}},
    "cutmix": {"cutmix": {"p": 0.8}},
    "mixup": {"mixup": {"p": 0.5, "alpha": 32}},
    "mosaic, mixup": {"mosaic": {"p": 0.7}, "mixup": {"p": 0.5}},
    "cutmix, mosaic, cutmix": {"paste": {"op": "cutmix"}, "mosaic": {}, "cutmix": {"p": 0.5}},
    "mosaic, mosaic": {"first": {"op": "mosaic", "center_range": [0.1, 0.1]}, "mosaic": {"center_range": [0.1, 0.9]}},
    "one_of": {"one_of": {"steps": {"mosaic": {}, "cutmix": {}, "mixup": {}}}},
}


@cache
def given(kind: str) -> Any:
    """Return targets of each image."""
    if kind == "masks":
        return [np.random.default_rng(n).integers(0, 20, (HEIGHT, WIDTH), np.uint8) for n in range(COUNT)]
    return np.arange(COUNT) if kind == "classes" else objects(masks=kind == "instances")


def augmented(steps: Mapping[str, Any], kind: str, device: torch.device, views: int) -> tuple[Batch, Plan]:
    pictures = [np.random.default_rng(n).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8) for n in range(COUNT)]
    recipe = load_recipe({"size": [HEIGHT, WIDTH], "train": {**IMAGE_STEPS, **steps}, "views": {"count": views}})
    transform = Transform(recipe, device=device, seed=SEED, classes=COUNT, frames=True, flip_pairs=[(0, 1)])
    return transform(pictures, given(kind)), transform.plan


@cache
def plain_of(kind: str, device: torch.device, views: int) -> Batch:
    return augmented({}, kind, device, views)[0]


def batches(steps: Mapping[str, Any], kind: str, device: torch.device, views: int = 1) -> tuple[Batch, Batch, Plan]:
    """Return a batch as it is before images are mixed, and after that, with their plan."""
    return plain_of(kind, device, views), *augmented(steps, kind, device, views)


def draws_of(plan: Plan) -> Any:
    return Sampler(plan, SEED).draw(0, 0, COUNT)


def numbers(tensor: Tensor) -> Array:
    return tensor.cpu().numpy().astype(np.float64)


def objects(*, masks: bool) -> list[dict[str, Any]]:
    """Return the objects of each image, some without any; masks are noise, of which each pixel counts."""
    rng, found = np.random.default_rng(5), []
    for number in range(COUNT):
        count = (0, 4, 9)[number % 3]
        low = rng.uniform(0, [WIDTH - 12, HEIGHT - 12], (count, 2))
        boxes = np.concatenate([low, low + rng.uniform(3, 25, (count, 2))], axis=1).clip(0, [WIDTH, HEIGHT] * 2)
        points = np.concatenate(
            [rng.uniform(0, HEIGHT, (count, 3, 2)), rng.integers(0, 3, (count, 3, 1))], axis=2
        ).reshape(count, 3, 3)
        target = {"boxes": boxes, "labels": rng.integers(1, 9, count), "keypoints": points, "image_id": 10 + number}
        target["iscrowd"] = np.arange(count) == 1
        if masks:
            target["masks"] = rng.integers(0, count + 1, (HEIGHT, WIDTH)) == 1 + np.arange(count)[:, None, None]
        found.append(target)
    return found


SEVERAL = [*((name, True, 1) for name in MIXES), *((name, False, 1) for name in ("mosaic", "cutmix", "mosaic, mixup"))]
SEVERAL += [("mosaic", True, 2), ("cutmix", True, 2)]


@pytest.mark.parametrize(("name", "masks", "views"), SEVERAL)
def test_objects_go_where_their_images_are_shown(name: str, masks: bool, views: int, device: torch.device) -> None:
    kind = "instances" if masks else "objects"
    plain, mixed, plan = batches(MIXES[name], kind, device, views)
    for view in range(views):
        frames = numbers(plain.view_frames[view])
        layers, images, _ = layers_of(plan, draws_of(plan), numbers(plain.views[view]))
        np.testing.assert_allclose(numbers(mixed.views[view]), images, atol=1e-3 if device.type == "cpu" else 2e-3)
        for row, target in enumerate(mixed.view_targets[view]):
            wanted: dict[str, list[Any]] = {"boxes": [], "labels": [], "iscrowd": [], "keypoints": [], "masks": []}
            for layer in layers[row]:
                stored, frame = given(kind)[layer.sample], frames[layer.sample]
                where = traced(layer, frame, HEIGHT, WIDTH)
                mirrored = np.linalg.det(frame) < 0
                for number, box in enumerate(stored["boxes"]):
                    corners = np.array([[box[i], box[j]] for i in (0, 2) for j in (1, 3)]) - 0.5
                    moved = layer.at(corners @ frame[:2, :2].T + frame[:2, 2]) + 0.5
                    whole = np.concatenate([moved.min(axis=0), moved.max(axis=0)])
                    hull, area = layer.hull(whole)
                    if area < 1 or area < 0.1 * np.prod(whole[2:] - whole[:2]):
                        continue
                    seen = np.zeros((HEIGHT, WIDTH), bool)
                    if masks:
                        seen = (where[0] >= 0) & stored["masks"][number][where[0], where[1]]
                        if not seen.any():
                            continue
                    points = stored["keypoints"][number]
                    at = layer.at(points[:, :2] @ frame[:2, :2].T + frame[:2, 2])
                    shown = np.concatenate([at, np.where(layer.shows(at), points[:, 2], 0)[:, None]], axis=1)
                    wanted["boxes"].append(hull)
                    wanted["labels"].append(stored["labels"][number])
                    wanted["iscrowd"].append(stored["iscrowd"][number])
                    wanted["keypoints"].append(shown[[1, 0, 2]] if mirrored else shown)
                    wanted["masks"].append((seen, where[2]))
            assert target["labels"].tolist() == wanted["labels"]
            assert target["iscrowd"].tolist() == wanted["iscrowd"]
            assert target["image_id"].tolist() == [10 + row]
            np.testing.assert_allclose(target["boxes"].cpu(), np.reshape(wanted["boxes"], (-1, 4)), atol=0.01)
            np.testing.assert_allclose(
                target["keypoints"].cpu(), np.reshape(wanted["keypoints"], (-1, 3, 3)), atol=0.01
            )
            for mask, (seen, tie) in zip(target.get("masks", ()), wanted["masks"], strict=False):
                assert ((mask.cpu().numpy() == seen) | tie).all()
            assert not masks or target["masks"].shape == (len(wanted["labels"]), HEIGHT, WIDTH)
        own = [next(layer for layer in seen if layer.sample == row) for row, seen in enumerate(layers)]
        for row, layer in enumerate(own):
            corners = np.array([[0.0, 0], [WIDTH, 9], [5, HEIGHT]])
            moved = layer.at(corners @ frames[row][:2, :2].T + frames[row][:2, 2])
            frame = mixed.view_frames[view][row].numpy()
            np.testing.assert_allclose(corners @ frame[:2, :2].T + frame[:2, 2], moved, atol=0.01)


def test_a_view_of_another_size_has_its_objects_where_it_shows_them() -> None:
    views = {"large": {}, "small": {"size": [HEIGHT // 2, WIDTH // 2]}}
    train = {"mosaic": {"center_range": [0.5, 0.5]}, "again": {"op": "mosaic", "center_range": [0.25, 0.25]}}
    recipe = load_recipe({"size": [HEIGHT, WIDTH], "train": train, "views": views, "min_area": 0})
    pictures = [np.zeros((HEIGHT, WIDTH, 3), np.uint8)] * COUNT
    large, small = Transform(recipe, device="cpu")(pictures, objects(masks=False)).view_targets
    assert sum(len(target["boxes"]) for target in large) > 20
    for one, other in zip(large, small, strict=True):
        np.testing.assert_allclose(one["boxes"], 2 * other["boxes"], atol=1e-3)


@pytest.mark.parametrize("name", ["corner", "cutmix, mosaic, cutmix", "mosaic, mosaic"])
def test_masks_show_what_the_image_shows(name: str, device: torch.device) -> None:
    plain, mixed, plan = batches(MIXES[name], "masks", device)
    layers, images, _ = layers_of(plan, draws_of(plan), numbers(plain.images))
    np.testing.assert_allclose(numbers(mixed.images), images, atol=2e-3)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    for row, found in enumerate(mixed.targets.cpu().numpy()):
        expected, ties = np.full((HEIGHT, WIDTH), IGNORE), np.zeros((HEIGHT, WIDTH), bool)
        for layer in layers[row]:
            rows, columns, tie = traced(layer, numbers(plain.frames)[layer.sample], HEIGHT, WIDTH)
            expected[rows >= 0] = given("masks")[layer.sample][rows, columns][rows >= 0]
            ties |= tie & layer.shows(np.stack([x, y], axis=-1))
        assert ((found == expected) | ties).all()
        assert ties.mean() < 0.2


@pytest.mark.parametrize("name", ["corner", "mosaic, mixup", "cutmix, mosaic, cutmix", "one_of"])
def test_classes_have_the_shares_of_what_is_shown(name: str, device: torch.device) -> None:
    plain, mixed, plan = batches(MIXES[name], "classes", device)
    _, images, shares = layers_of(plan, draws_of(plan), numbers(plain.images))
    np.testing.assert_allclose(numbers(mixed.images), images, atol=2e-3)
    np.testing.assert_allclose(numbers(mixed.targets), shares, atol=1e-5)


def test_a_box_is_cut_where_a_rectangle_hides_a_whole_side_and_dropped_where_it_hides_most() -> None:
    """Of an image of 10 x 10 the middle rows 4 to 8 are pasted over."""
    made = np.zeros((1, 2, 7))
    made[0, 0, 2:5], made[0, 1] = (10, 10, 1), (0, 4, 10, 8, 1, 0, 0)
    parts = Parts.whole(1, (10, 10)).mixed(made, blends=False)
    boxes = np.array([[1.0, 0, 3, 5], [1, 5, 3, 10], [1, 3, 3, 9], [1, 5, 3, 7]])
    clipped, area = parts.clip(boxes, np.zeros(4, np.int64))
    assert clipped[:3].tolist() == [[1, 0, 3, 4], [1, 8, 3, 10], [1, 3, 3, 9]]
    assert area.tolist() == [8, 4, 4, 0]
    assert parts.clip(boxes, np.ones(4, np.int64))[1].tolist() == [2, 6, 8, 4]


# --- draws ---


def test_samples_that_are_left_out_keep_their_bits() -> None:
    plain, mixed, plan = batches(MIXES["some"], "instances", torch.device("cpu"))
    applied = draws_of(plan)["mosaic"]["applied"].astype(bool)
    assert 0 < applied.sum() < COUNT
    for row in np.flatnonzero(~applied):
        assert torch.equal(plain.images[row], mixed.images[row])
        assert torch.equal(plain.frames[row], mixed.frames[row])
        for name, values in plain.targets[row].items():
            assert torch.equal(values, mixed.targets[row][name])


@needs_gpu
def test_a_mosaic_never_waits_for_the_gpu() -> None:
    plan = build_plan(parse_aug({"size": 32, "train": {"mosaic": {"p": 0.5}}}), "train")
    mixer = Mixer(plan, CLASSES, seed=SEED, rank=0, classes=3)
    images, targets = torch.rand(7, 3, 32, 32, device="cuda"), torch.zeros(7, dtype=torch.int64, device="cuda")
    mixer.mix(images, targets, epoch=0, start=0)
    with reject_waiting():
        mixer.mix(images, targets, epoch=0, start=7)


def test_resumes_to_the_same_objects(tmp_path: Path, device: torch.device) -> None:
    files = [tmp_path / f"{number}.png" for number in range(11)]
    for number, file in enumerate(files):
        Image.new("RGB", (40, 30), (20 * number, 0, 0)).save(file)
    found = tuple(Objects.of([[2, 3, 30, 20 + n]] * (n % 4), [1] * (n % 4)) for n in range(11))
    split = Split(tuple(files), found, BOXES)
    steps = {"random_resized_crop": {}, "flip": {"p": 0.5}, "mosaic": {"p": 0.6}, "mixup": {"p": 0.4}}
    plan = build_plan(parse_aug({"size": 32, "train": steps}), "train")
    whole, resumed = (
        build_loader(plan, split, batch_size=4, seed=SEED, device=device, classes=("background", "box"))
        for _ in range(2)
    )
    going = iter(whole)
    next(going)
    state = whole.state_dict()
    rest = [*going, *whole]
    resumed.load_state_dict(state)
    again = [*resumed, *resumed]
    assert len(again) == len(rest) == 5
    for one, other in zip(again, rest, strict=True):
        assert torch.equal(one.images, other.images)
        for ours, theirs in zip(one.targets, other.targets, strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    most = [max(len(target["labels"]) for target in batch.targets) for batch in rest]
    assert max(most) > 3


# --- rejections ---


@pytest.mark.parametrize(
    ("op", "targets", "message"),
    [
        ("mixup", [np.zeros((8, 8), np.uint8)], "masks cannot follow. Use an op that pastes, such as cutmix or mosaic"),
        ("cutmix", np.zeros((1, 2, 2)), "keypoints cannot follow. Remove this step."),
        ("mosaic", np.zeros((1, 2, 2)), "keypoints cannot follow. Remove this step."),
        ("mosaic", {"mask": [np.zeros((8, 8), np.uint8)], "class": [1]}, "targets of several kinds cannot follow."),
        ("blend", [{"boxes": [], "labels": []}], "boxes cannot follow. Use an op with parts=..., such as mixup."),
    ],
)
@pytest.mark.usefixtures("clean_registry")
def test_what_cannot_be_mixed_is_rejected(op: str, targets: Any, message: str) -> None:
    @batch(share_range=Range(default=(0.2, 0.8), within=(0, 1), doc="of the image"))
    def blend(images: Tensor, partners: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Blend."""
        return images, share

    transform = Transform(load_recipe({"size": 8, "train": {op: {}}}), device="cpu", classes=4)
    with pytest.raises(UserError) as error:
        transform([np.zeros((8, 8, 3), np.uint8)], targets)
    assert str(error.value).startswith(f"aug.train.{op}: '{op}' mixes samples, which {message}")


def test_parts_need_neutral_values() -> None:
    with pytest.raises(ValueError, match=r"^parts needs neutral"):
        batch(parts=lambda size: None)
