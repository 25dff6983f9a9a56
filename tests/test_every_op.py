"""What holds for each op, whatever it does, by its declaration alone: on the CPU, and on the GPU where there is one.

Each check is a function of an op and its parameters. The last tests declare an op of every kind and hand it to the same
functions: a user's op is tested like the others as soon as it is declared.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import draw_photo
from fakes import needs_gpu
from numpy.typing import NDArray
from op_cases import APPLIED, CROPS, LEAVES, given, label, plan_with, variants
from PIL import Image
from scipy.stats import chi2

from augment.config import parse_aug
from augment.dataset import Split
from augment.feed import Feed
from augment.loader import Loader
from augment.ops.matrices import stack
from augment.params import Number, Range
from augment.plan import Plan, build_plan
from augment.registry import (
    OPS,
    Op,
    batch,
    color,
    combinator,
    crop,
    geometry,
    local,
    numpy_op,
    policy,
    torch_op,
)
from augment.sampler import Sampler
from trainer.reference import help_text, op_table

SIZE = 32
SEED = 5
MANY = 20_000
CLASSES = 3

Pixels = NDArray[Any]
Params = dict[str, Any]


def cases(ops: Sequence[Op]) -> pytest.MarkDecorator:
    """Parametrize a test by each use of some ops."""
    uses = [(op, params) for op in ops for params in variants(op)]
    return pytest.mark.parametrize(("op", "params"), uses, ids=map(label, uses))


EVERY_USE = cases(APPLIED)
EVERY_CROP = cases(CROPS)
EVERY_APPLIED_OP = pytest.mark.parametrize("op", APPLIED, ids=lambda op: op.name)
EVERY_LEAF = pytest.mark.parametrize("op", LEAVES, ids=lambda op: op.name)


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """24 PNGs of the result's size, which no decoder and no resize changes, of levels 20..235."""
    folder = tmp_path_factory.mktemp("squares")
    files = tuple(folder / f"{seed}.png" for seed in range(24))
    for seed, file in enumerate(files):
        photo = draw_photo(SIZE, SIZE, seed).astype(float)
        stretched = 20 + (photo - photo.min()) / np.ptp(photo) * 215
        Image.fromarray(stretched.astype(np.uint8)).save(file)
    return files


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """One pixel, strips in both directions, an odd rectangle, a gray picture and a black one."""
    folder = tmp_path_factory.mktemp("shapes")
    files = []
    for width, height in ((1, 1), (1, 200), (200, 1), (33, 57)):
        files.append(folder / f"{width}x{height}.png")
        Image.fromarray(draw_photo(width, height, 3)).save(files[-1])
    files += [folder / "gray.png", folder / "black.png"]
    Image.fromarray(draw_photo(40, 50, 4)).convert("L").save(files[-2])
    Image.new("RGB", (40, 40)).save(files[-1])
    return tuple(files)


# --- on numbers alone ---


@EVERY_LEAF
def test_draws_lie_in_their_ranges(op: Op) -> None:
    check_draws(op)


def check_draws(op: Op) -> None:
    plan = plan_with(op)
    drawn = Sampler(plan, SEED).draw(0, 0, MANY)["tested"]
    assert set(drawn) == {"applied", *op.draws, *op.uniforms}
    assert drawn["applied"].dtype == bool
    for value, name in op.draws.items():
        param, (low, high) = op.params[name], plan.steps[0].params[name]
        assert isinstance(param, Range)
        assert drawn[value].shape == (MANY,)
        if param.whole:
            assert set(drawn[value]) == set(range(int(low), int(high) + 1)), "whole numbers, ends included"
        assert low <= drawn[value].min() <= low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) <= drawn[value].max() <= high
        if param.draws == () or len(param.draws) == 1:
            assert drawn[value].std() > 0 or low == high
    for value in op.uniforms:
        assert 0 <= drawn[value].min() < 0.01
        assert 0.99 < drawn[value].max() < 1


@EVERY_LEAF
def test_sets_of_values_are_drawn_evenly(op: Op) -> None:
    check_sets_of_values(op)


def check_sets_of_values(op: Op) -> None:
    for name in set(op.draws.values()):
        param = op.params[name]
        assert isinstance(param, Range)
        low, high = param.default  # type: ignore[misc]
        low, high = (low, high) if low < high else (low, (low + param.within[1]) / 2)
        few = [low, np.floor(low + (high - low) / 3) if param.whole else low + (high - low) / 3, high]
        changed: Params = {name: {"values": few}}
        plan = plan_with(op, **changed)
        drawn = Sampler(plan, SEED).draw(0, 0, MANY)["tested"]
        for value in (v for v, n in op.draws.items() if n == name):
            found, counts = np.unique(drawn[value], return_counts=True)
            expected, weights = np.unique(few, return_counts=True)
            np.testing.assert_array_equal(found, expected)
            fair = MANY * weights / len(few)
            assert ((counts - fair) ** 2 / fair).sum() < chi2.isf(1e-4, max(1, len(found) - 1))


@EVERY_APPLIED_OP
def test_steps_apply_as_often_as_they_say(op: Op) -> None:
    check_rates(op)


def check_rates(op: Op) -> None:
    for p in (0.3, 1.0):
        plan = plan_with(op, p=p)
        draws = Sampler(plan, SEED).draw(0, 0, MANY)
        assert not any(draws[key]["applied"].any() for key in draws.keys() - {step.key for step in plan.steps})
        for step in plan.steps:
            count, expected = draws[step.key]["applied"].sum(), MANY * step.p
            if step.p in (0, 1):
                assert count == expected
            else:
                statistic = (count - expected) ** 2 / expected + (count - expected) ** 2 / (MANY - expected)
                assert statistic < chi2.isf(1e-5, 1), step.key
    if op.kind != "policy":
        assert [step.p for step in plan_with(op, p=0.3).steps] == [0.3]


# --- on pictures ---


class Result(NamedTuple):
    """A pass: (N, size, size, 3), uint8, or normalized floats if samples are mixed; targets; each sample's index.

    And the loader's state after the first batch.
    """

    images: Pixels
    targets: Pixels
    indices: Pixels
    state: dict[str, Any]


def load(
    plan: Plan, files: Sequence[Path], device: torch.device, *, raw: bool, batch_size: int = 8, threads: int = 2
) -> Loader:
    split = Split(tuple(files), tuple(i % CLASSES for i in range(len(files))))
    return Loader(
        plan, split, batch_size=batch_size, seed=SEED, device=device, classes=CLASSES, threads=threads, raw=raw
    )


def run(
    plan: Plan, files: Sequence[Path], device: torch.device, *, batch_size: int = 8, threads: int = 2, raw: bool = True
) -> Result:
    loader = load(plan, files, device, batch_size=batch_size, threads=threads, raw=raw)
    batches, states = [], []
    for made in loader:
        batches.append(made)
        states.append(loader.state_dict())  # which DALI refuses if it cannot save an operator's state
    images, targets, indices = (
        torch.cat([getattr(batch, name) for batch in batches]).cpu().numpy()
        for name in ("images", "targets", "indices")
    )
    return Result(images.transpose(0, 2, 3, 1), targets, indices, states[0])


# Each kind before and after the op: those it is fused with, and those it is not.
BEFORE: Params = {
    "soft": {"op": "gaussian_blur", "p": 0.5},
    "pale": {"op": "contrast", "p": 0.5},
    "turned": {"op": "rotate", "p": 0.5},
}
AFTER: Params = {
    "tinted": {"op": "color_jitter", "p": 0.5},
    "sharp": {"op": "sharpen", "p": 0.5},
    "moved": {"op": "translate", "p": 0.5},
}


def between(op: Op | None, params: Params, *, p: float = 0.5, mixes: bool = False) -> Plan:
    """Return the plan of an op, or of none, between others; nothing but its like may follow an op that mixes."""
    tested = {} if op is None else {"tested": given(op, p=p, **params)}
    return build_plan(parse_aug({"size": SIZE, "train": BEFORE | tested | ({} if mixes else AFTER)}), "train")


@cache
def never_met(files: tuple[Path, ...], device: torch.device, mixes: bool) -> Result:
    return run(between(None, {}, mixes=mixes), files, device, raw=not mixes)


_MET: dict[tuple[str, str], Result] = {}


def met(op: Op, params: Params, files: tuple[Path, ...], device: torch.device) -> Result:
    """Return pictures half of which met the op; made once for all that is checked of them."""
    key = label((op, params)), device.type
    if key not in _MET:
        mixes = op.kind == "batch"
        _MET[key] = run(between(op, params, mixes=mixes), files, device, raw=not mixes)
    return _MET[key]


@EVERY_USE
def test_without_chance_it_is_not_there(op: Op, params: Params) -> None:
    check_p_zero(op, params)


def check_p_zero(op: Op, params: Params) -> None:
    mixes = op.kind == "batch"
    without, never = between(op, params, p=0, mixes=mixes), between(None, {}, mixes=mixes)
    assert without.stages == never.stages
    assert without.digest == never.digest
    assert between(op, params, mixes=mixes).digest != never.digest


@EVERY_USE
def test_skipped_samples_never_met_it(op: Op, params: Params, squares: tuple[Path, ...], device: torch.device) -> None:
    check_skipped(op, params, squares, device)


def check_skipped(op: Op, params: Params, files: tuple[Path, ...], device: torch.device) -> None:
    mixes = op.kind == "batch"
    plan, result = between(op, params, mixes=mixes), met(op, params, files, device)
    plain = never_met(files, device, mixes)
    draws = Sampler(plan, SEED).draw(0, 0, len(files))
    tested = [drawn["applied"] for key, drawn in draws.items() if key.split(".")[0] == "tested"]
    applied = np.logical_or.reduce(tested)
    assert 4 <= applied.sum() <= len(files) - 4
    np.testing.assert_array_equal(result.indices, plain.indices)
    differs = (result.images != plain.images).any(axis=(1, 2, 3))
    assert not differs[np.logical_not(applied)].any()
    # A draw may be neutral, or close to it.
    assert differs[applied].mean() > 0.5
    if mixes:
        one_hot = np.eye(CLASSES)[plain.targets]
        np.testing.assert_array_equal(result.targets[np.logical_not(applied)], one_hot[np.logical_not(applied)])
        np.testing.assert_allclose(result.targets.sum(axis=1), 1, rtol=1e-6)
    else:
        np.testing.assert_array_equal(result.targets, plain.targets)


@cases([op for op in LEAVES if op.neutral])
def test_neutral_values_change_no_bit(
    op: Op, params: Params, squares: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def feed(sampler: Sampler, **options: Any) -> Feed:
        return Feed(sampler, **options | {"neutral": True})

    # As on the GPU, where they take the place of a mask.
    monkeypatch.setattr("augment.pipeline.Feed", feed)
    cpu = torch.device("cpu")
    neutral, plain = (run(plan, squares, cpu) for plan in (between(op, params), between(None, {})))
    applied = Sampler(between(op, params), SEED).draw(0, 0, len(squares))["tested"]["applied"]
    assert not (neutral.images != plain.images)[np.logical_not(applied)].any()
    np.testing.assert_array_equal(neutral.images, met(op, params, squares, cpu).images)


@EVERY_USE
def test_same_seed_same_pictures(op: Op, params: Params, squares: tuple[Path, ...], device: torch.device) -> None:
    check_determinism(op, params, squares, device)


def check_determinism(op: Op, params: Params, files: tuple[Path, ...], device: torch.device) -> None:
    mixes = op.kind == "batch"
    plan, result = between(op, params, mixes=mixes), met(op, params, files, device)
    # Noise that DALI draws is a matter of the place in the batch, and so is the sample that one is mixed with.
    batch_size = 8 if mixes or plan.draws_in_dali else 5
    again = run(plan, files, device, batch_size=batch_size, threads=4, raw=not mixes)
    for one, other in zip(result[:3], again[:3], strict=True):
        np.testing.assert_array_equal(one, other)


_ODD: dict[tuple[str, str], Result] = {}


def alone(op: Op, params: Params, files: tuple[Path, ...], device: torch.device) -> Result:
    """Return pictures all of which met the op, in batches of one; made once for all that is checked of them."""
    key = label((op, params)), device.type
    if key not in _ODD:
        plan = plan_with(op, size=SIZE, **params)
        _ODD[key] = run(plan, files, device, batch_size=1, raw=op.kind != "batch")
    return _ODD[key]


@EVERY_APPLIED_OP
def test_resuming_in_the_middle_of_an_epoch(op: Op, squares: tuple[Path, ...]) -> None:
    check_resume(op, squares)


def check_resume(op: Op, files: tuple[Path, ...]) -> None:
    cpu, raw = torch.device("cpu"), op.kind != "batch"
    plan, whole = between(op, {}, mixes=not raw), met(op, {}, files, cpu)
    resumed = load(plan, files, cpu, raw=raw)
    resumed.load_state_dict(whole.state)
    rest = list(resumed)
    images = torch.cat([batch.images for batch in rest]).permute(0, 2, 3, 1).numpy()
    assert [index for batch in rest for index in batch.indices.tolist()] == whole.indices[8:].tolist()
    np.testing.assert_array_equal(images, whole.images[8:])


NOISE: Params = {"noise": {"op": "gaussian_noise", "std_range": [20, 20]}}


@pytest.mark.parametrize("name", ["rotate", "hue", "gaussian_blur", "salt_and_pepper", "clahe", "one_of"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_noise_stays_the_same_beside_other_steps(name: str, place: str, squares: tuple[Path, ...]) -> None:
    # DALI draws it, by a seed of the step: not by its place in the graph.
    step = {"tested": given(OPS[name], p=0.5)}
    steps = step | NOISE if place == "before" else NOISE | step
    beside, lone = (build_plan(parse_aug({"size": SIZE, "train": s}), "train") for s in (steps, NOISE))
    cpu = torch.device("cpu")
    one, other = run(beside, squares, cpu), run(lone, squares, cpu)
    draws = Sampler(beside, SEED).draw(0, 0, len(squares))
    met_it = np.logical_or.reduce([draws[key]["applied"] for key in draws if key != "noise"])
    differs = (one.images != other.images).any(axis=(1, 2, 3))
    assert not differs[np.logical_not(met_it)].any()
    assert differs[met_it].mean() > 0.5


@pytest.mark.parametrize("op", [op for op in LEAVES if op.random], ids=lambda op: op.name)
def test_noise_of_each_step_epoch_and_view_is_its_own(op: Op, squares: tuple[Path, ...]) -> None:
    # The same picture again and again: whatever is equal was drawn alike.
    fixed = {name: [op.params[name].default[1]] * 2 for name in op.draws.values()}  # type: ignore[index]
    noise = {name: "noise" for name, param in op.params.items() if "noise" in getattr(param, "options", ())}
    seen = []
    for key in ("one", "other"):
        steps = {key: given(op, **fixed, **noise)}
        aug = parse_aug({"size": SIZE, "train": steps, "views": {"count": 2, "crop": "same"}})
        loader = load(build_plan(aug, "train"), squares[:1] * 8, torch.device("cpu"), raw=True)
        seen += [view.clone() for _ in range(2) for made in loader for view in made.views]
    pictures = torch.cat(seen).flatten(1).numpy()
    assert len(np.unique(pictures, axis=0)) == len(pictures) == 2 * 2 * 2 * 8


@EVERY_USE
def test_pictures_of_any_shape_one_by_one(
    op: Op, params: Params, squares: tuple[Path, ...], shapes: tuple[Path, ...], device: torch.device
) -> None:
    check_shapes(op, params, squares[:8] + shapes, device)


def check_shapes(op: Op, params: Params, files: tuple[Path, ...], device: torch.device) -> None:
    """Check an op on pictures the first eight of which are squares of the result's size."""
    result = alone(op, params, files, device)
    assert sorted(result.indices) == list(range(len(files)))
    assert result.images.shape == (len(files), SIZE, SIZE, 3)
    if op.kind == "batch":
        # A sample that is alone is mixed with itself.
        np.testing.assert_allclose(result.targets, np.eye(CLASSES)[result.indices % CLASSES], atol=1e-6)
        assert np.isfinite(result.images).all()
        return
    assert result.images.dtype == np.uint8
    changed = [
        (image != np.asarray(Image.open(files[index]))).any()
        for image, index in zip(result.images, result.indices, strict=True)
        if index < 8
    ]
    draws = Sampler(plan_with(op, size=SIZE, **params), SEED).draw(0, 0, len(files))
    always = np.logical_or.reduce([drawn["applied"] for drawn in draws.values()])
    if op.kind != "policy":
        assert always.all()
    assert np.mean(changed) > 0.5, "p = 1: each picture is changed, but where the draw is neutral"


@EVERY_USE
def test_smallest_size(op: Op, params: Params, shapes: tuple[Path, ...]) -> None:
    result = run(plan_with(op, size=8, **params), shapes, torch.device("cpu"), raw=op.kind != "batch")
    assert result.images.shape == (len(shapes), 8, 8, 3)
    assert np.isfinite(result.images).all()


@EVERY_CROP
def test_crops_of_any_shape_in_any_batch(
    op: Op, params: Params, squares: tuple[Path, ...], shapes: tuple[Path, ...], device: torch.device
) -> None:
    check_crop(op, params, shapes + squares[:3], device)


def check_crop(op: Op, params: Params, files: tuple[Path, ...], device: torch.device) -> None:
    plan = plan_with(op, size=SIZE, **params)
    result = run(plan, files, device, batch_size=3)
    assert sorted(result.indices) == list(range(len(files)))
    assert result.images.shape == (len(files), SIZE, SIZE, 3)
    assert result.images.dtype == np.uint8
    # Windows that DALI draws are a matter of the place in the batch.
    again = run(plan, files, device, batch_size=3 if op.random else 1, threads=4)
    for one, other in zip(result[:3], again[:3], strict=True):
        np.testing.assert_array_equal(one, other)
    # What is of one color stays so, but for what is put beside it: the picture of one pixel.
    (pixel,) = result.images[[Path(files[i]).name == "1x1.png" for i in result.indices]]
    inside = np.unique(pixel.reshape(-1, 3), axis=0)
    assert len(inside) <= 2


# --- CPU and GPU beside each other ---

# How far pixels of one op may be apart, most and mean of 255, with the reason; 1 for all others: rounding.
APART: dict[str, tuple[float, float, str]] = {
    "jpeg": (60, 5, "another inverse transform and chroma upsampling"),
    "clahe": (255, 6, "another algorithm"),
    "shot_noise": (255, 255, "another generator: only mean and variance agree"),
}


@needs_gpu
@EVERY_USE
def test_cpu_and_gpu_agree(op: Op, params: Params, squares: tuple[Path, ...], shapes: tuple[Path, ...]) -> None:
    check_devices(op, params, squares[:8] + shapes)


def check_devices(op: Op, params: Params, files: tuple[Path, ...]) -> None:
    """Check that the CPU and the GPU make the same of an op's pictures, the first eight of which are not resized."""
    on_cpu, on_gpu = (alone(op, params, files, torch.device(name)) for name in ("cpu", "cuda"))
    np.testing.assert_array_equal(on_cpu.indices, on_gpu.indices)
    np.testing.assert_allclose(on_cpu.targets, on_gpu.targets, atol=1e-6)
    squares = on_cpu.indices < 8
    one, other = on_cpu.images[squares].astype(float), on_gpu.images[squares].astype(float)
    if op.kind == "batch":
        np.testing.assert_allclose(one, other, atol=1e-4)
        return
    leaves = {step.op.name for step in plan_with(op, size=SIZE, **params).steps}
    # Where one step is off by one, posterize or solarize after it may be off by many.
    usual = (1, 0.5) if op.kind != "policy" else (255, 1)
    most, mean = max(((APART[name][0], APART[name][1]) for name in leaves & APART.keys()), default=usual)
    off = np.abs(one - other)
    assert off.max() <= most
    assert off.mean() <= mean
    np.testing.assert_allclose(one.mean(), other.mean(), atol=2)
    np.testing.assert_allclose(one.var(), other.var(), rtol=0.05)


# --- an op that is new ---


def declare_crop() -> None:
    @crop(share=Number(default=0.5, within=(0, 1), above=0, doc="side of the square over the short side"))
    def new_crop(picture: Any, size: int, share: float) -> Any:
        """Cut a square out of the middle."""
        image = picture.decode()
        return picture.resize(image, size, window=picture.centered_square(image, share))


def declare_geometry() -> None:
    @geometry(uniforms=("side",), squeeze_range=Range(default=(0.5, 0.9), within=(0.1, 10), doc="how much narrower"))
    def new_geometry(size: int, squeeze: Any, side: Any) -> Any:
        """Squeeze the picture from the left or from the right."""
        return stack((squeeze, 0, size * (side - 0.5) * (1 - squeeze)), (0, 1, 0), (0, 0, 1))


def declare_color() -> None:
    @color(weight_range=Range(default=(0.2, 0.6), within=(0, 1), doc="weight of the gray"))
    def new_color(weight: Any) -> Any:
        """Blend the picture with a gray."""
        keep, gray = 1 - weight, weight * 100
        return stack((keep, 0, 0, gray), (0, keep, 0, gray), (0, 0, keep, gray))


def declare_local() -> None:
    @local(side_range=Range(default=(2, 6), within=(1, 100), whole=True, unit="px", doc="side of the window"))
    def new_local(images: Any, dali: Any, side: Any) -> Any:
        """Blur with a window of a Gaussian."""
        return dali.fn.gaussian_blur(images, window_size=2 * dali.fn.cast(side, dtype=dali.types.INT32) + 1)


def declare_numpy() -> None:
    @numpy_op(uniforms=("x",), level=Number(default=9.0, within=(0, 255), doc="gray level of the line"))
    def new_numpy(image: Any, x: float, level: float) -> Any:
        """Draw a line from top to bottom."""
        changed = image.copy()
        changed[:, int(x * image.shape[1])] = level
        return changed


def declare_torch() -> None:
    @torch_op(shift_range=Range(default=(1, 9), within=(0, 100), whole=True, unit="px", doc="how far down"))
    def new_torch(images: Any, shift: Any) -> Any:
        """Roll the picture down."""
        return torch.stack([image.roll(int(by), 0) for image, by in zip(images, shift, strict=True)])


def declare_batch() -> None:
    @batch(uniforms=("share",))
    def new_batch(images: Any, partners: Any, share: Any) -> Any:
        """Average with another picture."""
        return partners.lerp(images, share[:, None, None, None]), share


def declare_policy() -> None:
    @policy(strength=Number(default=5.0, within=(0, 45), doc="how strong"))
    def new_policy(strength: float) -> Any:
        """Turn the picture, or change its color."""
        turn = {"op": "rotate", "angle_range": [-strength, strength]}
        return {"1": {"op": "one_of", "steps": {"turn": turn, "color": {"op": "invert"}}}}


def declare_combinator() -> None:
    def slots(weights: Any) -> Any:
        return [{i: 1.0 if i == 0 else 0.5} for i in range(len(weights))]

    @combinator(slots)
    def new_combinator(weights: Any, uniform: Any) -> Any:
        """Apply the first of the nested steps, and each other one to half of the samples."""
        steps = np.arange(uniform.shape[1])
        return np.where((steps == 0) | (uniform < 0.5), steps, -1)


DECLARATIONS: list[Callable[[], None]] = [
    declare_crop,
    declare_geometry,
    declare_color,
    declare_local,
    declare_numpy,
    declare_torch,
    declare_batch,
    declare_policy,
    declare_combinator,
]


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("declare", DECLARATIONS, ids=lambda declare: declare.__name__.removeprefix("declare_"))
def test_a_new_op_is_an_op_like_any_other(
    declare: Callable[[], None], squares: tuple[Path, ...], shapes: tuple[Path, ...], device: torch.device
) -> None:
    before, table, text = set(OPS), op_table(), help_text([])
    declare()
    (name,) = set(OPS) - before
    op = OPS[name]
    (row,) = set(op_table().splitlines()) - set(table.splitlines())
    assert row.startswith(f"| `{name}` | {op.kind} | {op.doc} | ")
    lines = set(help_text([]).splitlines()) - set(text.splitlines())
    assert f"  {name} ({op.kind})  {op.doc}" in lines
    for parameter in op.own_params:
        assert f"`{parameter}` " in row
        assert any(line.strip().startswith(f"{parameter}: ") for line in lines)
    if op.kind == "crop":
        check_crop(op, {}, shapes + squares[:3], device)
        return
    if op.kind != "policy":
        check_draws(op)
        check_sets_of_values(op)
    check_rates(op)
    check_resume(op, squares)
    for params in variants(op):
        check_p_zero(op, params)
        check_skipped(op, params, squares, device)
        check_determinism(op, params, squares, device)
        check_shapes(op, params, squares[:8] + shapes, device)
        if device.type == "cuda":
            check_devices(op, params, squares[:8] + shapes)
