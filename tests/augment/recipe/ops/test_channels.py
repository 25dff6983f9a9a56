"""Ops on images with any number of channels and data type, compared with float64 references on each channel."""

import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from mixing_reference import layers_of
from numpy.typing import NDArray
from rendering import SEED, one_of_values
from scipy import ndimage

from augment import Transform, load_recipe
from augment.data.images import MemoryImage
from augment.params import Range, Size
from augment.params.pixel_format import DTYPES, RGB, PixelFormat, parse_format
from augment.pipeline.graph.build import build_pipeline
from augment.pipeline.graph.colors import change_colors
from augment.pipeline.graph.decoding import OutputFormat, Placement
from augment.pipeline.graph.operators import channel_bounds
from augment.pipeline.graph.sample_order import Reading
from augment.pipeline.kernels.instructions import Program
from augment.recipe.op import OPS, numpy_op
from augment.recipe.ops.color import LUMA
from augment.recipe.ops.elastic import _displacements
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError

SIZE, COUNT = 48, 4
Levels = NDArray[Any]

_FIRST = [(1, "uint8"), (2, "uint16"), (4, "float32"), (10, "uint8"), (10, "uint16")]
_OTHERS = sorted({*product((1, 2, 4, 10), ("uint8", "uint16", "float32"))} - {*_FIRST})
FORMATS = [*_FIRST, *(pytest.param(*each, marks=pytest.mark.long) for each in _OTHERS)]
EVERY_FORMAT = pytest.mark.parametrize(("channels", "dtype"), FORMATS)


def format_of(channels: int, dtype: str, rgb: tuple[int, int, int] | None = None) -> PixelFormat:
    return PixelFormat.of(channels, dtype, rgb=rgb)


def smooth_images(channels: int, dtype: str) -> list[Levels]:
    """Make images in the data type whose levels change slowly, and differ between channels."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    low, high = DTYPES[dtype]
    images = []
    for number in range(COUNT):
        waves = [0.5 + 0.45 * np.sin(3 * x + channel + number) * np.cos(2 * y - channel) for channel in range(channels)]
        stored = low + np.stack(waves, axis=-1) * (high - low)
        images.append((stored if dtype == "float32" else np.rint(stored)).astype(dtype))
    return images


def levels_of(image: Levels) -> Levels:
    """Return the levels of stored pixels, float64."""
    low, high = DTYPES[image.dtype.name]
    return np.asarray((image.astype(np.float64) - low) * 255 / (high - low))


def run(plan: Plan, images: list[Levels], device: torch.device) -> Levels:
    files = [MemoryImage(str(number), image) for number, image in enumerate(images)]
    placement = Placement("gpu" if device.type == "cuda" else "cpu")
    pipeline = build_pipeline(
        plan, Reading(files, len(files), SEED, pixels=plan.pixels), placement, OutputFormat(raw=True)
    )
    pipeline.schedule_run()
    made = pipeline.take_outputs(torch.cuda.current_stream() if device.type == "cuda" else None)
    return np.asarray(made.views[0].cpu().numpy())


def plan_for(pixels: PixelFormat, steps: dict[str, Any], **aug: Any) -> Plan:
    numbers = [0.5] * pixels.channels
    parsed = parse_aug({"size": SIZE, "mean": numbers, "std": numbers, "val": steps, **aug})
    return build_plan(type(parsed)(**{**vars(parsed), "pixels": pixels}), "val")


def draws(plan: Plan) -> dict[str, Any]:
    (step,) = plan.steps
    return {name: value for name, value in Sampler(plan, SEED).draw(0, 0, COUNT)[step.key].items() if name != "applied"}


def compare(
    steps: dict[str, Any], reference: Callable[..., Levels], channels: int, dtype: str, device: torch.device
) -> None:
    """Run one op, and compare it with `reference(levels, **drawn values)` on (height, width, channels) float64."""
    pixels = format_of(channels, dtype)
    plan, images = plan_for(pixels, steps), smooth_images(channels, dtype)
    drawn, made = draws(plan), run(plan, images, device)
    assert made.dtype == (np.uint8 if dtype == "uint8" else np.float32)
    for number, image in enumerate(images):
        own = {name: value[number] for name, value in drawn.items()}
        expected = reference(levels_of(image), **own).clip(0, 255)
        # A thousandth of the range, and rounding to bytes.
        most = 0.255 + (0.5 if dtype == "uint8" else 0) + (0.5 if device.type == "cuda" and dtype == "uint8" else 0)
        np.testing.assert_allclose(made[number], expected, atol=most, rtol=0)


def gaussian(levels: Levels, sigma: float) -> Levels:
    radius = int(np.ceil(3 * sigma))
    blur = ndimage.gaussian_filter1d(levels, sigma, axis=0, mode="mirror", radius=radius)
    return np.asarray(ndimage.gaussian_filter1d(blur, sigma, axis=1, mode="mirror", radius=radius))


def sharpened(levels: Levels, factor: float) -> Levels:
    smooth = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    mean = np.stack([ndimage.convolve(plane, smooth, mode="mirror") for plane in np.moveaxis(levels, -1, 0)], axis=-1)
    return np.asarray(factor * levels + (1 - factor) * mean)


def moved(levels: Levels, length: float, angle: float) -> Levels:
    assert angle == 0
    return np.asarray(ndimage.uniform_filter1d(levels, int(length), axis=1, mode="mirror"))


def solarized(levels: Levels, threshold: float) -> Levels:
    return np.where(levels >= threshold, 255 - levels, levels)


def stretched(levels: Levels) -> Levels:
    low, high = levels.min(axis=(0, 1)), levels.max(axis=(0, 1))
    return np.asarray((levels - low) * 255 / (high - low))


def around_mean(levels: Levels, factor: float) -> Levels:
    return levels.mean() + factor * (levels - levels.mean())


@EVERY_FORMAT
@pytest.mark.parametrize(
    ("steps", "reference"),
    [
        ({"brightness": {}}, lambda levels, factor: levels * factor),
        ({"contrast": {}}, lambda levels, factor: 128 + factor * (levels - 128)),
        ({"contrast": {"pivot": "mean"}}, around_mean),
        ({"invert": {}}, lambda levels: 255 - levels),
        ({"gamma": {}}, lambda levels, gamma: 255 * (levels / 255) ** gamma),
        ({"solarize": {"threshold_range": one_of_values(20, 127.3, 200)}}, solarized),
        ({"gaussian_blur": {}}, gaussian),
        ({"sharpen": {}}, sharpened),
        ({"motion_blur": {"length_range": one_of_values(3, 5, 7), "angle_range": [0, 0]}}, moved),
        ({"autocontrast": {}}, stretched),
    ],
    ids=["brightness", "contrast", "mean", "invert", "gamma", "solarize", "blur", "sharpen", "motion", "autocontrast"],
)
def test_ops_treat_each_channel_alike(
    steps: dict[str, Any], reference: Callable[..., Levels], channels: int, dtype: str, device: torch.device
) -> None:
    compare(steps, reference, channels, dtype, device)


@EVERY_FORMAT
@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("brightness", {"per_channel": True}),
        ("contrast", {"per_channel": True}),
        ("contrast", {"per_channel": True, "pivot": "mean"}),
        ("gamma", {"per_channel": True}),
        ("channel_gain", {}),
    ],
    ids=["brightness", "contrast", "mean", "gamma", "gain"],
)
def test_values_can_be_drawn_for_each_channel(
    op: str, params: dict[str, Any], channels: int, dtype: str, device: torch.device
) -> None:
    def reference(levels: Levels, **values: float) -> Levels:
        own = np.array([values[f"{'gamma' if op == 'gamma' else 'factor'} {number}"] for number in range(channels)])
        assert len(set(own)) == channels
        if op == "gamma":
            return np.asarray(255 * (levels / 255) ** own)
        pivots = {"middle": 128.0, "mean": levels.mean()}
        pivot = pivots[params.get("pivot", "middle")] if op == "contrast" else 0.0
        return np.asarray(pivot + own * (levels - pivot))

    compare({op: params}, reference, channels, dtype, device)


def test_contrast_of_each_rgb_channel_is_around_the_luma_of_the_image() -> None:
    plan = plan_for(RGB, {"contrast": {"per_channel": True, "pivot": "mean"}})
    values = Sampler(plan, SEED).draw(0, 0, COUNT)["contrast"]
    (matrices,) = (stage.matrix({"contrast": values}, (SIZE, SIZE)) for stage in plan.stages if stage.kind == "color")
    for sample, channel in np.ndindex(COUNT, 3):
        factor = values[f"factor {channel}"][sample]
        expected = [*(factor * np.eye(3)[channel]), *((1 - factor) * np.array(LUMA)), 0]
        np.testing.assert_allclose(matrices[sample, channel], expected)


@EVERY_FORMAT
def test_channel_drop_keeps_a_channel(channels: int, dtype: str, device: torch.device) -> None:
    def reference(levels: Levels, **order: float) -> Levels:
        smallest = np.argsort([order[f"order {number}"] for number in range(channels)])[:3]
        levels[..., smallest[: channels - 1]] = 9
        return levels

    compare({"channel_drop": {"count": 3, "level": 9}}, reference, channels, dtype, device)


@EVERY_FORMAT
@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("rotate", {"angle_range": [-20, 20], "border": "constant", "fill": 200}),
        ("rotate", {"angle_range": [-20, 20], "border": "replicate"}),
        *((op, {"border": "replicate"}) for op in ("affine", "perspective", "scale", "shear", "translate", "warp")),
        ("flip", {}),
        ("rot90", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else value.get("border", ""),
)
def test_a_warp_moves_all_channels(
    op: str, params: dict[str, Any], channels: int, dtype: str, device: torch.device
) -> None:
    plan, images = plan_for(format_of(channels, dtype), {op: params}), smooth_images(channels, dtype)
    matrices = plan.stages[0].matrix(Sampler(plan, SEED).draw(0, 0, COUNT), Size(SIZE, SIZE))
    made, middle = run(plan, images, device), (SIZE - 1) / 2
    y, x = np.mgrid[:SIZE, :SIZE]
    is_constant = params.get("border") == "constant"
    for number, image in enumerate(images):
        at = np.linalg.inv(matrices[number]) @ np.stack([x.ravel() - middle, y.ravel() - middle, np.ones(SIZE**2)])
        rows, columns = ((at[axis] / at[2] + middle).reshape(SIZE, SIZE) for axis in (1, 0))
        expected = looked_up(levels_of(image), rows, columns, 200 if is_constant else None)
        # The operator rounds coordinates to 1/32 px. Between the image and a constant border, this changes levels.
        inside = (np.minimum(rows, columns) > 0.05) & (np.maximum(rows, columns) < SIZE - 1.05)
        outside = (np.minimum(rows, columns) < -1.05) | (np.maximum(rows, columns) > SIZE + 0.05)
        compared = inside | outside if is_constant else np.ones_like(inside)
        np.testing.assert_allclose(made[number][compared], expected[compared], atol=tolerance(dtype), rtol=0)


def looked_up(levels: Levels, rows: Levels, columns: Levels, fill: float | None = None) -> Levels:
    """Interpolate levels at coordinates, with a constant border, or by default with the nearest pixel."""
    edges = {"mode": "nearest"} if fill is None else {"mode": "constant", "cval": fill}
    planes = [ndimage.map_coordinates(plane, [rows, columns], order=1, **edges) for plane in np.moveaxis(levels, 2, 0)]
    return np.stack(planes, axis=-1)


def tolerance(dtype: str) -> float:
    """A thousandth of the range, and rounding to bytes."""
    return 0.255 + (0.5 if dtype == "uint8" else 0)


@EVERY_FORMAT
def test_elastic_moves_all_channels(channels: int, dtype: str, device: torch.device) -> None:
    plan, images = (
        plan_for(format_of(channels, dtype), {"elastic": {"border": "replicate"}}),
        smooth_images(channels, dtype),
    )
    drawn, made = draws(plan), run(plan, images, device)
    shift = _displacements(Size(SIZE, SIZE), drawn["std"], drawn["seed"], 4)["shift"]
    middle = (SIZE - 1) / 2
    y, x = (torch.from_numpy(axis).double().expand(COUNT, -1, -1) - middle for axis in np.mgrid[:SIZE, :SIZE])
    columns, rows = OPS["elastic"].function(
        x=x, y=y, size=Size(SIZE, SIZE), shift=torch.from_numpy(shift).double(), points=4
    )
    for number, image in enumerate(images):
        expected = looked_up(levels_of(image), (rows + middle)[number].numpy(), (columns + middle)[number].numpy())
        np.testing.assert_allclose(made[number], expected, atol=tolerance(dtype), rtol=0)


def triangles(before: int, after: int) -> Levels:
    """Return the weights of a resize with a triangular filter, (after, before)."""
    scale = before / after
    reach = max(1.0, scale)
    weights = np.zeros((after, before))
    for row in range(after):
        center = (row + 0.5) * scale - 0.5
        for column in range(int(np.floor(center - reach)), int(np.ceil(center + reach)) + 1):
            weights[row, min(max(column, 0), before - 1)] += max(0, 1 - abs(column - center) / reach)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def resized(levels: Levels, rows: Levels, columns: Levels) -> Levels:
    return np.asarray(np.einsum("oi,pj,ijc->opc", rows, columns, levels))


@EVERY_FORMAT
@pytest.mark.parametrize("interpolation", ["linear", "nearest"])
def test_downscale_resizes_all_channels(interpolation: str, channels: int, dtype: str, device: torch.device) -> None:
    def reference(levels: Levels, scale: float) -> Levels:
        side = int(max(1, np.rint(SIZE * scale)))
        small = resized(levels, *[triangles(SIZE, side)] * 2)
        if interpolation == "linear":
            return resized(small, *[triangles(side, SIZE)] * 2)
        nearest = np.floor((np.arange(SIZE) + 0.5) * side / SIZE).astype(int)
        return np.asarray(small[nearest][:, nearest])

    pixels = format_of(channels, dtype)
    plan, images = plan_for(pixels, {"downscale": {"interpolation": interpolation}}), smooth_images(channels, dtype)
    drawn, made = draws(plan), run(plan, images, device)
    for number, image in enumerate(images):
        off = np.abs(made[number] - reference(levels_of(image), drawn["scale"][number]))
        # Bytes are also rounded in between. Where pixels are nearest to two others, rounding errors decide.
        assert np.quantile(off, 0.99) < tolerance(dtype) + (0.5 if dtype == "uint8" else 0)


@EVERY_FORMAT
@pytest.mark.parametrize("fill", ["constant", "mean"])
def test_erase_fills_all_channels(fill: str, channels: int, dtype: str, device: torch.device) -> None:
    def reference(levels: Levels, area: float, aspect: float, x: float, y: float) -> Levels:
        height, width = (
            int(np.clip(np.rint(SIZE * np.sqrt(each)), 0, SIZE)) for each in (area / aspect, area * aspect)
        )
        left, top = int(x * (SIZE - width + 1)), int(y * (SIZE - height + 1))
        hole = np.s_[top : top + height, left : left + width]
        made = levels.copy()
        made[hole] = 77 if fill == "constant" else levels.mean(axis=(0, 1))
        return made

    compare({"erase": {"fill": fill, "level": 77}}, reference, channels, dtype, device)


@EVERY_FORMAT
@pytest.mark.parametrize("op", ["mixup", "cutmix", "mosaic"])
def test_mixing_mixes_all_channels(op: str, channels: int, dtype: str, device: torch.device) -> None:
    pixels, images = format_of(channels, dtype), smooth_images(channels, dtype)
    zeros, ones = [0.0] * channels, [1.0] * channels
    recipe = load_recipe(
        {"size": SIZE, "mean": zeros, "std": ones, "train": {op: {"alpha": 8} if op == "mixup" else {}}}
    )
    transform = Transform(recipe, "train", device=device, pixels=pixels, seed=SEED, classes=COUNT)
    made = transform(images, np.arange(COUNT))
    whole = np.stack([levels_of(image) / 255 for image in images]).transpose(0, 3, 1, 2)
    _, expected, shares = layers_of(transform.plan, Sampler(transform.plan, SEED).draw(0, 0, COUNT), whole)
    assert not np.allclose(expected, whole)
    np.testing.assert_allclose(made.images.cpu().numpy(), expected, atol=1e-3, rtol=0)
    np.testing.assert_allclose(made.targets.cpu().numpy(), shares, atol=1e-5)


@EVERY_FORMAT
def test_resize_scales_all_channels(channels: int, dtype: str, device: torch.device) -> None:
    y, x = np.mgrid[:70, :90] / 70
    low, high = DTYPES[dtype]
    waves = [0.5 + 0.45 * np.sin(3 * x + channel) * np.cos(2 * y - channel) for channel in range(channels)]
    image = (low + np.stack(waves, axis=-1) * (high - low)).astype(dtype)
    made = run(plan_for(format_of(channels, dtype), {"resize": {}}), [image], device)[0]
    expected = resized(levels_of(image), triangles(70, SIZE), triangles(90, SIZE))
    np.testing.assert_allclose(made, expected, atol=tolerance(dtype), rtol=0)


@EVERY_FORMAT
def test_targets_do_not_depend_on_the_pixel_format(channels: int, dtype: str) -> None:
    masks = np.random.default_rng(0).integers(0, 9, (COUNT, SIZE, SIZE)).astype(np.uint8)
    objects = [{"boxes": np.array([[5, 6, 30, 28], [20, 2, 40, 44.0]]), "labels": np.array([1, 2])}] * COUNT
    points = np.array([[[10.0, 20], [30, 33], [40, 11]]] * COUNT)

    def targets_with(pixels: PixelFormat, targets: Any) -> Any:
        numbers = [0.5] * pixels.channels
        names = ["random_resized_crop", "rotate", "elastic", "flip", "perspective"]
        names += ["mosaic"] * (targets is not points)
        steps: Any = {name: {} for name in names}
        recipe = load_recipe({"size": SIZE, "mean": numbers, "std": numbers, "train": steps})
        options: Any = {"device": "cpu", "pixels": pixels, "seed": SEED, "classes": 9, "flip_pairs": []}
        return Transform(recipe, **options)(smooth_images(pixels.channels, pixels.dtype), targets).targets

    for targets in (masks, objects, points):
        found, expected = (targets_with(pixels, targets) for pixels in (format_of(channels, dtype), RGB))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, op in OPS.items()
        if op.kind in ("geometry", "remap", "color", "local")
        and op.channels in ("any", "separable")
        and name not in ("shot_noise", "gaussian_noise")
    ],
)
def test_each_channel_of_ten_equals_an_image_of_its_own(name: str, device: torch.device) -> None:
    """Except for noise, and ops that need all channels, the result for a channel does not depend on the others."""
    images = smooth_images(10, "uint16")
    whole = run(plan_for(format_of(10, "uint16"), {name: {}}), images, device)
    for channel in (0, 7):
        alone = [image[..., channel : channel + 1] for image in images]
        one = run(plan_for(format_of(1, "uint16"), {name: {}}), alone, device)
        np.testing.assert_allclose(whole[..., channel : channel + 1], one, atol=0.01)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_color_ops_use_the_channels_of_rgb(dtype: str, device: torch.device) -> None:
    rgb = (4, 2, 1)
    images = smooth_images(5, dtype)
    steps = {"saturation": {}, "hue": {}, "grayscale": {"p": 0.5}, "color_jitter": {"pivot": "mean"}}
    made = run(plan_for(format_of(5, dtype, rgb), steps), images, device)
    three = [np.ascontiguousarray(image[..., rgb]) for image in images]
    expected = run(plan_for(format_of(3, dtype), steps), three, device)
    np.testing.assert_allclose(made[..., rgb].astype(float), expected, atol=1.01 if dtype == "uint8" else 0.01)
    untouched = run(plan_for(format_of(5, dtype), {}), images, device)
    np.testing.assert_allclose(made[..., [0, 3]].astype(float), untouched[..., [0, 3]], atol=0.01)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_local_ops_use_the_channels_of_rgb(dtype: str, device: torch.device) -> None:
    images = smooth_images(4, dtype)
    made = run(plan_for(format_of(4, dtype, (3, 1, 0)), {"equalize": {}}), images, device)
    untouched = run(plan_for(format_of(4, dtype), {}), images, device)
    np.testing.assert_array_equal(made[..., 2], untouched[..., 2])
    for number in range(COUNT):
        for channel in (3, 1, 0):
            expected = cv2.equalizeHist(np.rint(untouched[number, ..., channel]).astype(np.uint8))
            np.testing.assert_allclose(made[number, ..., channel].astype(float), expected, atol=1)


def test_an_op_that_needs_rgb_names_the_remedy() -> None:
    with pytest.raises(UserError, match=r"aug\.val\.hue: .*data\.rgb.*brightness"):
        plan_for(format_of(4, "uint16"), {"hue": {}})


def test_a_policy_leaves_out_what_needs_rgb() -> None:
    pixels = format_of(2, "uint16")
    plan = plan_for(pixels, {"trivial_augment": {}})
    assert plan.left_out == ("equalize", "posterize", "saturation")
    assert "left out (need RGB): equalize, posterize, saturation" in str(plan)
    assert not {step.op.name for step in plan.steps} & set(plan.left_out)
    assert plan_for(format_of(4, "uint16", (0, 1, 2)), {"trivial_augment": {}}).left_out == ()


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float32"])
def test_an_untouched_image_keeps_its_precision(dtype: str, device: torch.device) -> None:
    low, high = DTYPES[dtype]
    random = low + np.random.default_rng(0).random((SIZE, SIZE, 4)) * (high - low)
    image = (random if dtype == "float32" else np.rint(random)).astype(dtype)
    made = run(plan_for(format_of(4, dtype), {}), [image], device)[0]
    assert np.abs(made / 255 - (image.astype(np.float64) - low) / (high - low)).max() < 2**-16


def test_a_fused_plan_equals_its_steps_one_by_one(device: torch.device) -> None:
    pixels, images = format_of(10, "uint16", (2, 1, 0)), smooth_images(10, "uint16")
    steps = {"brightness": {"per_channel": True, "factor_range": [0.9, 1]}, "saturation": {}, "channel_gain": {},
             "rotate": {"p": 0.5}, "flip": {"p": 0.5}}  # fmt: skip
    fused, single = (run(plan_for(pixels, steps, fuse=fuse), images, device) for fuse in (True, False))
    assert len(plan_for(pixels, steps).stages) == 2
    np.testing.assert_allclose(fused, single, atol=1)


@pytest.mark.parametrize("channels", range(1, 65))
def test_a_warp_on_a_gpu_takes_one_three_or_four_channels(channels: int) -> None:
    bounds = channel_bounds(channels)
    assert (bounds[0], bounds[-1]) == (0, channels)
    assert set(np.diff(bounds)) <= {1, 3, 4}


def test_colors_do_not_depend_on_the_precision_of_training(device: torch.device) -> None:
    images, matrix = 255 * torch.rand(2, 8, 8, 10, device=device), torch.rand(2, 10, 11, device=device) / 10
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        made = change_colors(images, matrix=matrix)
    finally:
        torch.set_float32_matmul_precision(before)
    expected = torch.einsum("nhwc,ndc->nhwd", images.double(), matrix[..., :-1].double()) + matrix[:, None, None, :, -1]
    assert torch.allclose(made.double(), expected.clamp(0, 255), rtol=1e-6, atol=1e-5)


@pytest.mark.usefixtures("clean_registry")
def test_a_numpy_op_gets_values_for_each_channel(device: torch.device) -> None:
    @numpy_op(moves=False, channels="separable", level_range=Range(default=(0, 9), within=(0, 9), doc="level"))
    def own_levels(image: Levels, level: Levels) -> Levels:
        """Set each channel to its own level."""
        return np.broadcast_to(level, image.shape).astype(image.dtype)

    def reference(levels: Levels, **values: float) -> Levels:
        return np.broadcast_to([values[f"level {number}"] for number in range(4)], levels.shape)

    compare({"own_levels": {"per_channel": True}}, reference, 4, "float32", device)


def test_nodata_must_be_a_value_of_the_data_type() -> None:
    with pytest.raises(UserError, match=r"pixels: .*-9999.* is not a pixel format"):
        parse_format({"nodata": -9999}, "pixels")


@pytest.mark.parametrize("name", ["no such", 3, ["gray"]])
def test_a_colormap_must_be_known(name: object) -> None:
    with pytest.raises(UserError, match="is not a pixel format"):
        parse_format({"colormap": name}, "pixels")
    assert parse_format({"rgb": None, "colormap": "gray"}, "pixels").colormap == "gray"


def test_a_pickled_plan_keeps_its_pixel_format(device: torch.device) -> None:
    """Workers of a DataLoader get a pickled plan."""
    images = smooth_images(5, "uint16")
    steps = {"saturation": {"p": 0.5}, "brightness": {"per_channel": True}, "gamma": {"per_channel": True}}
    plan = plan_for(format_of(5, "uint16", (4, 2, 1)), steps)
    again = pickle.loads(pickle.dumps(plan))
    assert again.digest == plan.digest
    np.testing.assert_array_equal(run(again, images, device), run(plan, images, device))


def test_the_pixel_format_is_part_of_the_digest() -> None:
    """A run cannot be resumed with another range."""
    half = PixelFormat.of(3, "uint16", range=(0, 4095))
    formats = [RGB, PixelFormat.of(3, "uint16"), half, PixelFormat.of(3, rgb=(2, 1, 0))]
    assert len({plan_for(pixels, {"flip": {}}).digest for pixels in formats}) == len(formats)


def test_samples_that_skip_an_op_on_rgb_are_not_rounded_to_bytes() -> None:
    """On a GPU, such samples would get neutral values."""
    plan = plan_for(format_of(4, "uint16", (2, 1, 0)), {"posterize": {"p": 0.5}})
    assert plan.stages[0].is_gated
    assert not plan.stages[0].neutral


def test_levels_stay_in_their_range(device: torch.device) -> None:
    noise = {"gaussian_noise": {"std_range": [80, 80]}}
    made = run(plan_for(format_of(2, "uint16"), noise), smooth_images(2, "uint16"), device)
    assert (made.min(), made.max()) == (0, 255)


@pytest.mark.parametrize("pixels", [format_of(3, "uint16"), format_of(10, "uint8")])
def test_kernels_run_the_stages_after_the_last_one_they_do_not_know(pixels: PixelFormat) -> None:
    program = Program.of(plan_for(pixels, {"rotate": {}, "autocontrast": {}, "flip": {}, "brightness": {}}))
    assert program is not None
    assert [stage.kind for stage in program.before] == ["geometry", "local"]
    assert program.names == ("geometry", "color")
    assert Program.of(plan_for(pixels, {"brightness": {}, "autocontrast": {}})) is None
    assert Program.of(plan_for(pixels, {"rotate": {}}, size=[256, 257])) is None
    assert Program.of(plan_for(RGB, {"rotate": {}, "brightness": {}})) is None  # few operators, beside decoding
