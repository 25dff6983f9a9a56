"""Mosaic, mixup and cutmix with what is in images, against a slow reference in NumPy, written apart."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import needs_gpu, refuse_waiting
from loaders import build_loader
from numpy.typing import NDArray
from PIL import Image
from scipy.stats import beta, binomtest
from torch import Tensor

from augment import Transform, UserError, batch, load_recipe
from augment.data.dataset import Split
from augment.data.targets.boxes import BOXES, Objects
from augment.data.targets.classes import CLASSES
from augment.data.targets.parts import Parts
from augment.data.targets.spatial import IGNORE
from augment.params import Range
from augment.pipeline.batch import Batch
from augment.pipeline.mixing import Mixer
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
PASTED = [name for name in MIXES if "mixup" not in name and name != "one_of"]


@dataclass
class Layer:
    """A sample as it is seen in an image: scaled and shifted in edge coordinates, within and without rectangles."""

    sample: int
    scale: float = 1.0
    shift: tuple[float, float] = (0.0, 0.0)
    window: tuple[float, ...] = (0.0, 0.0, WIDTH, HEIGHT)
    covers: list[tuple[float, ...]] = field(default_factory=list)

    def within(self, scale: float, shift: tuple[float, float], window: tuple[float, ...]) -> "Layer":
        def place(box: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(scale * edge + shift[n % 2] for n, edge in enumerate(box))

        moved = place(self.window)
        meet = (*map(max, moved[:2], window[:2]), *map(min, moved[2:], window[2:]))
        moved_shift = (scale * self.shift[0] + shift[0], scale * self.shift[1] + shift[1])
        return Layer(self.sample, scale * self.scale, moved_shift, meet, [place(box) for box in self.covers])

    def at(self, points: Array) -> Array:
        """Return where points, (..., 2) in pixels of the sample, are in the image."""
        return np.asarray((points + 0.5) * self.scale + self.shift - 0.5)

    def shows(self, points: Array) -> Array:
        """Return whether the image shows the sample at points in pixels, (..., 2)."""

        def inside(box: tuple[float, ...]) -> Array:
            return np.asarray(((points + 0.5 > box[:2]) & (points + 0.5 < box[2:])).all(axis=-1))

        hidden = [inside(box) for box in self.covers]
        return inside(self.window) & ~np.any([np.zeros(points.shape[:-1], bool), *hidden], axis=0)

    def hull(self, box: Array) -> tuple[Array, float]:
        """Return the hull of what is seen of a box, by the cells of a grid of all edges, and the area of that."""
        edges = [sorted({*box[n::2], *(e for r in (self.window, *self.covers) for e in r[n::2])}) for n in (0, 1)]
        seen = [
            (x, y, right, bottom)
            for x, right in zip(edges[0], edges[0][1:], strict=False)
            for y, bottom in zip(edges[1], edges[1][1:], strict=False)
            if box[0] <= (x + right) / 2 <= box[2] and box[1] <= (y + bottom) / 2 <= box[3]
            if self.shows(np.array([(x + right) / 2, (y + bottom) / 2]) - 0.5)
        ]
        cells = np.array(seen).reshape(-1, 4)
        if not len(cells):
            return np.zeros(4), 0
        area = float(((cells[:, 2] - cells[:, 0]) * (cells[:, 3] - cells[:, 1])).sum())
        return np.concatenate([cells[:, :2].min(axis=0), cells[:, 2:].max(axis=0)]), area


def layers_of(plan: Plan, images: Array) -> tuple[list[list[Layer]], Array, Array]:
    """Mix images, (N, 3, H, W), step by step; return the layers of each, the images and the share of each sample."""
    count, made, shares = len(images), images.copy(), np.eye(len(images))
    layers, draws = [[Layer(row)] for row in range(count)], Sampler(plan, SEED).draw(0, 0, count)
    for stage in plan.batch_stages:
        step = stage.steps[0]
        drawn, name = draws[step.key], step.op.name
        for row in np.flatnonzero(drawn["applied"]):
            other = (row + 1) % count
            x, y = (float(drawn[axis][row]) if axis in drawn else 0 for axis in "xy")
            if name == "mosaic":
                column, below = max(1, np.rint(WIDTH * x)), max(1, np.rint(HEIGHT * y))
                before, layers[row], shares[row] = (made[row].copy(), layers[row], shares[row].copy()), [], 0
                for tile in range(4):
                    left, right = ((0, column), (column, WIDTH))[tile % 2]
                    top, bottom = ((0, below), (below, HEIGHT))[tile // 2]
                    scale = max((right - left) / WIDTH, (bottom - top) / HEIGHT)
                    shift = (left + right - scale * WIDTH) / 2, (top + bottom - scale * HEIGHT) / 2
                    sample = (row + tile) % count
                    source, seen, share = (
                        before if tile == 0 else (images[sample], [Layer(sample)], np.eye(count)[sample])
                    )
                    if right > left and bottom > top:
                        layers[row] += [layer.within(scale, shift, (left, top, right, bottom)) for layer in seen]
                        made[row, :, int(top) : int(bottom), int(left) : int(right)] = scaled(
                            source, scale, shift, np.arange(left, right), np.arange(top, bottom)
                        )
                    shares[row] += share * (right - left) * (bottom - top) / (WIDTH * HEIGHT)
                continue
            share = beta.ppf(drawn["uniform"][row], step.params["alpha"], step.params["alpha"])
            if name == "mixup":
                made[row] = share * made[row] + (1 - share) * images[other]
                layers[row].append(Layer(other))
            else:
                half = np.sqrt(1 - share) / 2
                left, right = (int(np.clip(np.rint(WIDTH * (x + s * half)), 0, WIDTH)) for s in (-1, 1))
                top, bottom = (int(np.clip(np.rint(HEIGHT * (y + s * half)), 0, HEIGHT)) for s in (-1, 1))
                made[row, :, top:bottom, left:right] = images[other, :, top:bottom, left:right]
                share = 1 - (right - left) * (bottom - top) / (WIDTH * HEIGHT)
                for layer in layers[row]:
                    layer.covers.append((left, top, right, bottom))
                layers[row].append(Layer(other, window=(left, top, right, bottom)))
            shares[row] = share * shares[row] + (1 - share) * np.eye(count)[other]
    return layers, made, shares


def scaled(image: Array, scale: float, shift: tuple[float, float], columns: Array, rows: Array) -> Array:
    """Return pixels of a scaled image, linearly between those of the image."""
    found = image
    for axis, places, move in ((2, columns, shift[0]), (1, rows, shift[1])):
        last = image.shape[axis] - 1
        at = np.clip((places + 0.5 - move) / scale - 0.5, 0, last)
        low = np.floor(at).astype(int)
        part = (at - low).reshape([-1 if n == axis else 1 for n in range(3)])
        found = np.take(found, low, axis) * (1 - part) + np.take(found, np.minimum(low + 1, last), axis) * part
    return found


def batches(
    steps: Mapping[str, Any], targets: Any, *, device: str = "cpu", views: int = 1, **aug: Any
) -> tuple[Batch, Batch, Plan]:
    """Return a batch as it is before images are mixed, and after that, with their plan."""
    pictures = [np.random.default_rng(n).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8) for n in range(COUNT)]
    made = []
    for train in (IMAGE_STEPS, {**IMAGE_STEPS, **steps}):
        recipe = load_recipe({"size": [HEIGHT, WIDTH], "train": train, "views": {"count": views}, **aug})
        transform = Transform(recipe, device=device, seed=SEED, classes=COUNT, frames=True, flip_pairs=[(0, 1)])
        made.append(transform(pictures, targets))
    return (*made, transform.plan)


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


def traced(layer: Layer, frame: Array) -> tuple[Array, Array, Array]:
    """Return row and column of the stored pixel that each pixel shows of a layer, -1 for none, and if it is a tie."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    pixels = np.stack([x, y], axis=-1).astype(float)
    before = (pixels + 0.5 - layer.shift) / layer.scale - 0.5
    stored = np.einsum("ij,hwj->hwi", np.linalg.inv(frame), np.concatenate([before, np.ones_like(before[..., :1])], -1))
    column, row = (np.floor(stored[..., n] + 0.5).astype(int) for n in (0, 1))
    outside = (column < 0) | (row < 0) | (column >= WIDTH) | (row >= HEIGHT) | ~layer.shows(pixels)
    row, column = np.where(outside, -1, row), np.where(outside, -1, column)
    return row, column, (abs((stored[..., :2] + 0.5) % 1 - 0.5) > 0.5 - 1e-6).any(axis=-1)


def check_objects(name: str, *, masks: bool, device: str = "cpu", views: int = 1) -> None:
    given = objects(masks=masks)
    plain, mixed, plan = batches(MIXES[name], given, device=device, views=views)
    for view in range(views):
        frames = numbers(plain.view_frames[view])
        layers, images, _ = layers_of(plan, numbers(plain.views[view]))
        np.testing.assert_allclose(numbers(mixed.views[view]), images, atol=2e-3 if device == "cuda" else 1e-3)
        for row, target in enumerate(mixed.view_targets[view]):
            wanted: dict[str, list[Any]] = {"boxes": [], "labels": [], "iscrowd": [], "keypoints": [], "masks": []}
            for layer in layers[row]:
                stored, frame = given[layer.sample], frames[layer.sample]
                where = traced(layer, frame)
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


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("masks", [False, True])
def test_objects_go_where_their_images_are_shown(name: str, masks: bool) -> None:
    check_objects(name, masks=masks)


@pytest.mark.parametrize("name", ["mosaic", "cutmix"])
def test_each_view_has_its_own_objects(name: str) -> None:
    check_objects(name, masks=True, views=2)


def test_a_view_of_another_size_has_its_objects_where_it_shows_them() -> None:
    views = {"large": {}, "small": {"size": [HEIGHT // 2, WIDTH // 2]}}
    train = {"mosaic": {"center_range": [0.5, 0.5]}, "again": {"op": "mosaic", "center_range": [0.25, 0.25]}}
    recipe = load_recipe({"size": [HEIGHT, WIDTH], "train": train, "views": views, "min_area": 0})
    pictures = [np.zeros((HEIGHT, WIDTH, 3), np.uint8)] * COUNT
    large, small = Transform(recipe, device="cpu")(pictures, objects(masks=False)).view_targets
    assert sum(len(target["boxes"]) for target in large) > 20
    for one, other in zip(large, small, strict=True):
        np.testing.assert_allclose(one["boxes"], 2 * other["boxes"], atol=1e-3)


@needs_gpu
@pytest.mark.parametrize("name", MIXES)
def test_objects_go_there_on_the_gpu(name: str) -> None:
    check_objects(name, masks=True, device="cuda")


def check_masks(name: str, device: str) -> None:
    masks = [np.random.default_rng(n).integers(0, 20, (HEIGHT, WIDTH), np.uint8) for n in range(COUNT)]
    plain, mixed, plan = batches(MIXES[name], masks, device=device)
    layers, images, _ = layers_of(plan, numbers(plain.images))
    np.testing.assert_allclose(numbers(mixed.images), images, atol=2e-3)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    for row, found in enumerate(mixed.targets.cpu().numpy()):
        expected, ties = np.full((HEIGHT, WIDTH), IGNORE), np.zeros((HEIGHT, WIDTH), bool)
        for layer in layers[row]:
            rows, columns, tie = traced(layer, numbers(plain.frames)[layer.sample])
            expected[rows >= 0] = masks[layer.sample][rows, columns][rows >= 0]
            ties |= tie & layer.shows(np.stack([x, y], axis=-1))
        assert ((found == expected) | ties).all()
        assert ties.mean() < 0.2


@pytest.mark.parametrize("name", PASTED)
def test_masks_show_what_the_image_shows(name: str) -> None:
    check_masks(name, "cpu")


@needs_gpu
@pytest.mark.parametrize("name", PASTED)
def test_masks_show_it_on_the_gpu(name: str) -> None:
    check_masks(name, "cuda")


@pytest.mark.parametrize("name", MIXES)
def test_classes_have_the_shares_of_what_is_shown(name: str, device: torch.device) -> None:
    plain, mixed, plan = batches(MIXES[name], np.arange(COUNT), device=device.type)
    _, images, shares = layers_of(plan, numbers(plain.images))
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


def test_p_is_the_share_of_samples() -> None:
    transform = Transform(load_recipe({"size": 8, "train": {"mosaic": {"p": 0.3}}}), device="cpu", classes=8)
    pictures = [np.zeros((8, 8, 3), np.uint8)] * 8
    mixed = sum(int((transform(pictures, np.arange(8)).targets.amax(dim=1) < 1).sum()) for _ in range(60))
    assert binomtest(mixed, 480, 0.3).pvalue > 1e-3


def test_samples_that_are_left_out_keep_their_bits() -> None:
    given = objects(masks=True)
    plain, mixed, plan = batches({"mosaic": {"p": 0.5}}, given)
    applied = Sampler(plan, SEED).draw(0, 0, COUNT)["mosaic"]["applied"].astype(bool)
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
    with refuse_waiting():
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


# --- refusals ---


@pytest.mark.parametrize(
    ("op", "targets", "message"),
    [
        (
            "mixup",
            [np.zeros((8, 8), np.uint8)],
            "masks cannot follow. Allowed: ops that paste, as cutmix and mosaic do.",
        ),
        ("cutmix", np.zeros((1, 2, 2)), "keypoints cannot follow. Allowed: a recipe without it."),
        ("mosaic", np.zeros((1, 2, 2)), "keypoints cannot follow. Allowed: a recipe without it."),
        (
            "mosaic",
            {"mask": [np.zeros((8, 8), np.uint8)], "class": [1]},
            "targets of several kinds cannot follow. Allowed: a recipe without it.",
        ),
        ("blend", [{"boxes": [], "labels": []}], "boxes cannot follow. Allowed: ops with parts=..., as mixup."),
    ],
)
@pytest.mark.usefixtures("clean_registry")
def test_what_cannot_be_mixed_is_refused(op: str, targets: Any, message: str) -> None:
    @batch(share_range=Range(default=(0.2, 0.8), within=(0, 1), doc="of the image"))
    def blend(images: Tensor, partners: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Blend."""
        return images, share

    transform = Transform(load_recipe({"size": 8, "train": {op: {}}}), device="cpu", classes=4)
    with pytest.raises(UserError) as error:
        transform([np.zeros((8, 8, 3), np.uint8)], targets)
    assert str(error.value) == f"aug.train.{op}: '{op}' mixes samples, which {message}"


def test_parts_need_neutral_values() -> None:
    with pytest.raises(ValueError, match=r"^parts: needs neutral values"):
        batch(parts=lambda size: None)
