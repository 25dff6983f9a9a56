"""Masks, boxes and points against a slow reference in float64, written apart: one pixel lookup through all stages."""

from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from augment import Transform, UserError, load_recipe
from augment.data.images import points_back
from augment.data.targets.spatial import IGNORE
from augment.params import Number
from augment.pipeline.geometry.motion import Motions
from augment.pipeline.graph.parameter_feed import DrawAhead
from augment.recipe.op import OPS, numpy_op
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler

Array = NDArray[np.float64]
SIZE, SEED, COUNT = 48, 5, 6
BORDERS = ("reflect_101", "constant", "replicate", "wrap")
CROPS: tuple[dict[str, Any], ...] = (
    {"resize": {}},
    {"resize": {"side": "short"}},
    {"resize": {"side": "long"}},
    {"random_resized_crop": {}},
    {"center_crop": {"scale": 0.7}},
    {"random_crop": {"scale": 0.8, "padding": 0.2}},
    {"random_crop": {"padding": 0.3, "border": "constant"}},
    {"letterbox": {"border": "replicate"}},
)
GEOMETRY = ("flip", "rotate", "rot90", "affine", "perspective", "warp", "scale", "shear", "translate")


def images(rng: np.random.Generator) -> tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]]:
    """Return images of several sizes and masks of noise, of which each pixel counts."""
    sizes = rng.integers(30, 90, (COUNT, 2))
    return (
        [rng.integers(0, 256, (*size, 3), np.uint8) for size in sizes],
        [rng.integers(0, 20, size, np.uint8) for size in sizes],
    )


def random_recipe(rng: np.random.Generator) -> dict[str, Any]:
    """Return a crop and up to four geometry steps, with any borders and probabilities, and a color step."""
    steps: dict[str, Any] = dict(CROPS[rng.integers(len(CROPS))])
    for number in range(rng.integers(0, 5)):
        name = GEOMETRY[rng.integers(len(GEOMETRY))]
        step = {"op": name, "border": BORDERS[rng.integers(len(BORDERS))], "p": [0.5, 1.0][rng.integers(2)]}
        steps[f"step{number}"] = {key: value for key, value in step.items() if key in (*OPS[name].params, "op")}
    size = [SIZE, [40, 60], [60, 40]][rng.integers(3)]
    return {"size": size, "train": {**steps, "contrast": {"p": 0.5}}}


def fold(place: Array, side: float, border: str) -> Array:
    """Bring places along an axis into an image by mirroring, clamping or wrapping them one by one."""
    found = place.copy()
    for at in np.ndindex(found.shape):
        value = found[at]
        if border == "wrap":
            while value < -0.5:
                value += side
            while value >= side - 0.5:
                value -= side
        elif border == "reflect_101":
            while not 0 <= value <= side - 1:
                value = -value if value < 0 else 2 * (side - 1) - value
        found[at] = value if border == "wrap" else min(max(value, 0), side - 1)
    return found


def chain(plan: Plan, frame: Array, row: int) -> list[Array]:
    """Return the matrices of the crop and of each stage, in pixels."""
    draws = Sampler(plan, SEED, 0).draw(0, 0, COUNT)
    height, width = plan.size
    back = np.array([[1, 0, (1 - width) / 2], [0, 1, (1 - height) / 2], [0, 0, 1]])
    stages = [stage for stage in plan.stages if stage.kind == "geometry"]
    matrices = [np.linalg.inv(back) @ stage.matrix(draws, plan.size)[row] @ back for stage in stages]
    return [np.linalg.inv(np.linalg.multi_dot([*matrices[::-1], np.eye(3), np.eye(3)])) @ frame, *matrices]


def moved(points: Array, matrix: Array) -> Array:
    """Return points, (M, 2), as a matrix moves them."""
    x, y, w = matrix @ np.append(points, np.ones((len(points), 1)), axis=1).T
    return np.stack([x / w, y / w], axis=1)


def reference(plan: Plan, frame: Array, row: int, size: tuple[int, ...]) -> tuple[Array, Array, Array, Array]:
    """Return x and y of the stored place that each output pixel shows, whether it shows any, and how far from a tie."""
    height, width = plan.size
    stages = [stage for stage in plan.stages if stage.kind == "geometry"]
    window, *matrices = chain(plan, frame, row)
    y, x = np.mgrid[:height, :width].astype(float)
    inside = np.ones((height, width), bool)
    for stage, matrix in list(zip(stages, matrices, strict=True))[::-1]:
        if (matrix == np.eye(3)).all():
            continue
        px, py, w = np.einsum("ij,jhw->ihw", np.linalg.inv(matrix), np.stack([x, y, np.ones_like(x)]))
        x, y, border = px / w, py / w, stage.border[0]
        if border == "constant":
            inside &= (x >= -0.5) & (x < width - 0.5) & (y >= -0.5) & (y < height - 0.5)
        x, y = fold(x, width, border), fold(y, height, border)
    params = plan.crop.params
    border = params.get("border", "constant" if params.get("side") == "long" else "wrap")
    # Pixels of the resized image, from those of the crop: the window may begin beyond its edge.
    scale = window[0, 0], window[1, 1]
    shift = [(window[axis, 2] + 0.5) - 0.5 * scale[axis] for axis in (0, 1)]
    x, y = x - shift[0], y - shift[1]
    sides = size[1] * scale[0], size[0] * scale[1]
    if border == "constant":
        inside &= (x >= -0.5) & (x < sides[0] - 0.5) & (y >= -0.5) & (y < sides[1] - 0.5)
    # DALI resizes to whole pixels around the same middle, and reflects about their edges.
    whole = [max(np.floor(side + 0.5), 1) if border == "reflect_101" else side for side in sides]
    x, y = (
        fold(place - (side - pixels) / 2, pixels, border) + (side - pixels) / 2
        for place, side, pixels in zip((x, y), sides, whole, strict=True)
    )
    x, y = (x + 0.5) / scale[0] - 0.5, (y + 0.5) / scale[1] - 0.5
    parts = (x + 0.5) % 1, (y + 0.5) % 1
    return x, y, inside, np.minimum.reduce([*parts, 1 - parts[0], 1 - parts[1]])


@pytest.mark.parametrize("number", [*range(6), *(pytest.param(n, marks=pytest.mark.long) for n in range(6, 200))])
def test_targets_follow_random_recipes(number: int, device: torch.device) -> None:
    rng = np.random.default_rng(number)
    recipe, (pictures, masks) = random_recipe(rng), images(rng)
    points = rng.uniform(0, 30, (COUNT, 4, 2))
    boxes = [np.sort(rng.uniform(0, 30, (5, 2, 2)), axis=1).reshape(5, 4) for _ in pictures]
    given = [{"boxes": b, "labels": np.arange(1, 6)} for b in boxes]
    transform = Transform(load_recipe(recipe), device=device, seed=SEED, flip_pairs=[])
    batch = transform(pictures, masks)
    assert batch.targets.device.type == device.type
    wrong = 0
    for row, mask in enumerate(masks):
        x, y, inside, tie = reference(transform.plan, batch.frames[row].numpy(), row, mask.shape)
        columns = np.clip(np.floor(x + 0.5), 0, mask.shape[1] - 1).astype(int)
        rows = np.clip(np.floor(y + 0.5), 0, mask.shape[0] - 1).astype(int)
        expected = np.where(inside, mask[rows, columns], IGNORE)
        wrong += int(((batch.targets[row].cpu().numpy() != expected) & (tie > 1e-6)).sum())
    size = np.array(transform.plan.size)[::-1]
    assert wrong <= 0.001 * COUNT * size.prod(), recipe
    transform.position = 0
    shown = transform(pictures, points).targets.cpu().numpy()
    transform.position = 0
    for row, target in enumerate(transform(pictures, given).targets):
        places, lost, found = points[row], np.zeros(4, bool), []
        for matrix in (steps := chain(transform.plan, batch.frames[row].numpy(), row)):
            places = moved(places, matrix)
            lost |= ((places < -0.5) | (places > size - 0.5)).any(axis=1)
        np.testing.assert_allclose(shown[row, :, :2], places, atol=0.01)
        assert ((shown[row, :, 2] == 0) == lost).all()
        for label, box in enumerate(boxes[row], 1):
            corners, share = box[[0, 1, 2, 1, 0, 3, 2, 3]].reshape(4, 2) - 0.5, 1.0
            for matrix in steps:
                corners = moved(corners, matrix)
                hull = np.stack([corners.min(axis=0), corners.max(axis=0)])
                clipped = hull.clip(-0.5, size - 0.5)
                share = min(share, np.prod(clipped[1] - clipped[0]) / np.prod(hull[1] - hull[0]))
            if np.prod(clipped[1] - clipped[0]) >= 1 and share >= 0.1:
                found.append([label, *clipped.ravel() + 0.5])
        assert target["labels"].tolist() == [label for label, *_ in found]
        np.testing.assert_allclose(target["boxes"].cpu(), np.reshape(found, (-1, 5))[:, 1:], atol=0.01)


def test_a_batch_is_traced_as_its_images_are() -> None:
    """On a GPU all images are traced together, of which a step may move some; on the CPU one by one."""
    steps = {"rotate": {"p": 0.5, "border": "constant"}, "elastic": {"p": 0.5}, "flip": {"p": 0.5}}
    plan = build_plan(load_recipe({"size": SIZE, "train": steps}).aug, "train")
    windows = torch.tensor([[30.0, 40, 0, 0, 30, 40]] * 8)
    turned = np.arange(1, 9)
    (motion,) = Motions(plan, 0, 0, targets="masks").of([windows], turned, 0, 0, torch.device("cpu"))
    alone = [motion.back(slice(row, row + 1)) for row in range(8)]
    for part, found in enumerate(motion.back(slice(None))):
        np.testing.assert_array_equal(found, np.concatenate([of[part] for of in alone]))


def test_steps_drawn_for_several_batches_are_those_of_each() -> None:
    steps = {"rotate": {"p": 0.5}, "elastic": {"p": 0.5}}
    plan = build_plan(load_recipe({"size": SIZE, "train": steps}).aug, "train")
    windows, cpu = [torch.tensor([[30.0, 40, 0, 0, 30, 40]] * 4)], torch.device("cpu")
    together, single = (Motions(plan, 0, 0, targets="masks", ahead=partial(DrawAhead, together=n)) for n in (10, 1))
    for epoch, start in ((0, 0), (0, 4), (0, 8), (1, 8), (1, 4), (0, 4)):
        motions = [of.of(windows, np.ones(4, np.int64), epoch, start, cpu)[0] for of in (together, single)]
        for found, wanted in zip(*(motion.back(slice(None)) for motion in motions), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("orientation", [2, 5])
def test_an_exif_orientation_that_mirrors_does_not_swap_left_and_right(orientation: int) -> None:
    """The names are those of the upright image, so only a flip in the recipe swaps them."""
    upright = np.array([[5.0, 10], [30, 12]])
    size = np.array([SIZE, SIZE])
    stored = points_back((upright + 0.5) / size, orientation) * size - 0.5
    exif, file = Image.Exif(), BytesIO()
    exif[0x0112] = orientation
    Image.new("RGB", (SIZE, SIZE)).save(file, "JPEG", exif=exif)
    for steps, expected in (({}, upright), ({"flip": {}}, [[SIZE - 1 - 30, 12], [SIZE - 1 - 5, 10]])):
        transform = Transform(load_recipe({"size": SIZE, "train": steps}), device="cpu", flip_pairs=[(0, 1)])
        found = transform([file.getvalue()], stored[None]).targets[0, :, :2]
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_skipped_step_leaves_boxes_as_they_are() -> None:
    box = np.array([[0.3, 0.7, 20.1, 33.3]], np.float32)
    recipe = load_recipe({"size": SIZE, "train": {"rotate": {"p": 1e-9}, "affine": {"p": 1e-9}}})
    batch = Transform(recipe, device="cpu")([np.zeros((SIZE, SIZE, 3), np.uint8)], [{"boxes": box, "labels": [1]}])
    assert batch.targets[0]["boxes"].numpy().tobytes() == box.tobytes()


@pytest.mark.usefixtures("clean_registry")
def test_an_op_that_moves_pixels_without_a_rule_is_rejected() -> None:
    @numpy_op(strength=Number(default=1.0, doc="any"))
    def swirl(image: Any, strength: float) -> Any:
        """Move pixels somehow."""
        return image

    transform = Transform(load_recipe({"size": SIZE, "train": {"swirl": {}}}), device="cpu")
    with pytest.raises(UserError, match=r"aug\.train\.swirl: masks cannot follow the op 'swirl'"):
        transform([np.zeros((8, 8, 3), np.uint8)], [np.zeros((8, 8), np.uint8)])


def test_a_mask_of_another_size_is_named() -> None:
    transform = Transform(load_recipe({"size": SIZE}), device="cpu")
    with pytest.raises(UserError, match=r"targets\[1\]: the mask has 9 x 8 pixels, but the image has 8 x 8"):
        transform([np.zeros((8, 8, 3), np.uint8)] * 2, [np.zeros((8, 8), np.uint8), np.zeros((9, 8), np.uint8)])


@pytest.mark.parametrize("size", [(150, 200), (35, 250), (25, 250), (17, 250), (12, 250), (250, 17)])
def test_a_mask_is_reflected_as_its_letterboxed_image_is(size: tuple[int, int], device: torch.device) -> None:
    recipe = {"size": 64, "train": {"letterbox": {"border": "reflect_101"}}, "mean": [0.0] * 3, "std": [1.0] * 3}
    transform = Transform(load_recipe(recipe), device=device, seed=SEED, flip_pairs=[])
    thin = int(np.argmin(size))
    rows = np.moveaxis(
        np.broadcast_to(np.arange(size[thin], dtype=np.uint8), size[::-1] if thin == 0 else size), -1, thin
    )
    batch = transform([np.repeat(rows[..., None], 3, axis=2)], [np.ascontiguousarray(rows)])
    off = np.abs(batch.targets[0].cpu().numpy() - batch.images[0, 0].cpu().numpy() * 255) * 64 / max(size)
    assert off.max() < 0.51, "in pixels of the output"
