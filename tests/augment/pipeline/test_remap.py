"""Warps that are no matrix fuse with the geometry beside them, and masks, boxes and points follow."""

from typing import Any

import numpy as np
import pytest
import torch
from lazily import LazyModule
from numpy.typing import NDArray

from augment import Transform, UserError, load_recipe
from augment.params import Range
from augment.pipeline import transform
from augment.pipeline.graph.parameter_feed import stage_values
from augment.recipe.op import OPS, remap
from augment.recipe.plan import Plan
from augment.recipe.sampler import Sampler

ndimage = LazyModule("scipy.ndimage")

Array = NDArray[np.float64]
SIZE, COUNT = (48, 64), 12
MODES = {"reflect_101": "mirror", "constant": "grid-constant", "replicate": "nearest"}  # of SciPy
ROW, COLUMN = np.mgrid[: SIZE[0], : SIZE[1]].astype(float)
CHAIN = {"rotate": {"angle_range": 40}, "polar": {}, "translate": {}}


@pytest.fixture(autouse=True)
def _polar(clean_registry: None) -> None:
    @remap(share_range=Range(default=(0.6, 1.0), within=(0, 2), doc="outermost radius, as a share of half the height"))
    def polar(x: Any, y: Any, size: Any, share: Any) -> Any:
        """Unroll the image around its middle: angles from left to right, radii from top to bottom."""
        x *= 2 * torch.pi / size[1]
        radius = share * (y / 2 + size[0] / 4)
        return radius * torch.cos(x), radius * torch.sin(x)


def run(
    steps: dict[str, Any], images: Any, targets: Any = None, device: Any = "cpu", **aug: Any
) -> tuple[Plan, Array, Any]:
    """Return the plan, the levels of one channel and the targets."""
    recipe = load_recipe({"size": list(SIZE), "mean": [0] * 3, "std": [1] * 3, "train": steps, **aug})
    given, made = np.repeat(images[..., None], 3, axis=3).astype(np.uint8), Transform(recipe, device=device)
    batch = made(given, [0] * len(given) if targets is None else targets)
    return made.plan, batch.images[:, 0].cpu().numpy() * 255.0, batch.targets


def traced(plan: Plan, row: int, draws: Any) -> Array:
    """Return row and column of what each pixel shows, through all steps of a plan that apply to a sample."""
    half = (np.array(SIZE)[:, None, None] - 1) / 2
    y, x = np.stack([ROW, COLUMN]) - half
    for step in reversed(plan.steps):
        drawn = {name: values[row] for name, values in draws[step.key].items()}
        if drawn.pop("applied") and step.op.name == "polar":
            angle, radius = 2 * np.pi * x / SIZE[1], drawn["share"] * (y + SIZE[0] / 2) / 2
            x, y = radius * np.cos(angle), radius * np.sin(angle)
        elif draws[step.key]["applied"][row]:
            matrix = OPS[step.op.name].function(size=SIZE, **step.op.values(step.params, drawn))
            x, y, w = np.einsum("ij,jhw->ihw", np.linalg.inv(matrix), [x, y, np.ones_like(x)])
            assert (w == 1).all()
    return np.stack([y, x]) + half


@pytest.mark.parametrize("border", MODES)
@pytest.mark.parametrize("nested", [False, True])
def test_matrices_and_functions_are_one_resampling(
    border: str, nested: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"border": border, "fill": 60}
    steps = {name: {**params, **given} for name, params in CHAIN.items()}
    if nested:
        alternatives = {"rotate": steps["rotate"], "flip": {}, "polar": steps["polar"]}
        again = {"translate": {**given, "p": 0.5}, "again": {**given, "op": "polar", "p": 0.5}}
        steps = {"one_of": {"steps": alternatives, "p": 0.8}, **again}
    images = np.random.default_rng(0).integers(0, 256, (COUNT, *SIZE))
    plan, levels, _ = run(steps, images, device=device)
    assert [(stage.kind, len(stage.steps)) for stage in plan.stages] == [("remap", 5 if nested else 3)]
    draws = Sampler(plan, 0).draw(0, 0, COUNT)
    for row, image in enumerate(images):
        shown = ndimage.map_coordinates(
            image.astype(float), traced(plan, row, draws), order=1, mode=MODES[border], cval=60
        )
        assert np.abs(levels[row] - shown).max() < 1.1
    # With masks of samples, as on the CPU, and without, as on a GPU.
    monkeypatch.setattr(transform, "stage_values", lambda *given, neutral: stage_values(*given, neutral=not neutral))
    np.testing.assert_array_equal(run(steps, images, device=device)[1], levels)


def test_step_by_step_differs_by_interpolation_alone() -> None:
    image = 128 + 100 * np.sin(COLUMN / 8) * np.cos(ROW / 6)
    steps = {"rotate": {}, "polar": {}, "scale": {"factor_range": [1.1, 1.3]}}  # which show nothing beyond the edges
    (plan, fused, _), (apart, stepwise, _) = (run(steps, image[None], fuse=fuse) for fuse in (True, False))
    assert (len(plan.stages), [stage.kind for stage in apart.stages]) == (1, ["geometry", "remap", "geometry"])
    assert np.abs(fused - stepwise).max() < 4


@pytest.mark.parametrize(
    "steps", [CHAIN, {"elastic": {"p": 0.5}}, {"one_of": {"steps": {"rotate": {}, "elastic": {}, "flip": {}}}}], ids=str
)
def test_masks_show_what_the_image_shows(steps: dict[str, Any]) -> None:
    number = np.broadcast_to(COLUMN.astype(np.uint8), (COUNT, *SIZE))
    _, levels, masks = run({"random_resized_crop": {}, **steps}, 4 * number, number)
    off = np.abs(levels / 4 - masks.numpy())
    assert (off < 0.7).mean() > 0.95  # where the crop shrinks the image or enlarges it, its edges are mixed


@pytest.mark.parametrize("names", [["rotate", "polar", "translate"], ["elastic", "scale"]])
def test_points_and_boxes_are_where_the_image_shows_them(names: list[str]) -> None:
    own: dict[str, Any] = {"rotate": {"angle_range": 40}, "scale": {"factor_range": [2, 2]}}
    steps = {name: {"border": "constant", **own.get(name, {})} for name in names}
    places = np.random.default_rng(1).uniform([16, 8], [48, 40], (200, 2))
    dots = 255 * np.exp(-((COLUMN - places[:, :1, None]) ** 2 + (ROW - places[:, 1:, None]) ** 2) / 6)
    _, levels, points = run(steps, dots, places[:, None])
    x, y, visible = points[:, 0].numpy().T
    seen = visible > 0
    assert 0.6 < seen.mean() < 1
    assert (levels[seen, np.rint(y[seen]).astype(int), np.rint(x[seen]).astype(int)] > 200).all()
    assert (levels[~seen, 3:-3, 3:-3] < 200).all()
    boxes = np.concatenate([places - 5, places + 7], axis=1).round()
    left, top, right, bottom = boxes.T[:, :, None, None]
    images = (left <= COLUMN) & (right > COLUMN) & (top <= ROW) & (bottom > ROW)
    _, levels, found = run(steps, 255 * images, [{"boxes": box[None], "labels": [1]} for box in boxes])
    compared = 0
    for image, target in zip(levels > 127, found, strict=True):
        if image.any() and not (image[[0, -1]].any() or image[:, [0, -1]].any()):  # nor is it cut at the seam
            rows, columns = (np.flatnonzero(image.any(axis=axis)) for axis in (1, 0))
            expected = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
            np.testing.assert_allclose(target["boxes"], [expected], atol=2.5)
            compared += 1
    assert compared > 30


def test_points_that_no_pixel_shows_are_not_visible() -> None:
    @remap()
    def middle(x: Any, y: Any, size: Any) -> Any:
        """Show nothing that is more than 10 px from the middle."""
        return 10 * torch.sin(x / 10), 10 * torch.sin(y / 10)

    points = np.array([[[35.0, 20.0]], [[48.0, 24.0]]])  # 4 and 16 px to the right and below
    _, _, found = run({"middle": {}}, np.zeros((2, *SIZE)), points)
    assert found[:, 0, 2].tolist() == [2, 0]


def test_borders_that_pytorch_cannot_do_are_rejected() -> None:
    with pytest.raises(UserError, match=r"polar\.border: unknown name 'wrap'\. Allowed: constant, reflect_101, repl"):
        load_recipe({"train": {"polar": {"border": "wrap"}}})
