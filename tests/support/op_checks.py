"""Checks that hold for every op by its declaration alone, whatever it does."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from decoded import pixels_of
from lazily import LazyModule
from loaders import build_loader
from numpy.typing import NDArray
from op_cases import given, label, plan_with
from photos import SQUARE

from augment.data.dataset import ImageRef, Split
from augment.data.images import name_of
from augment.params import Range
from augment.pipeline.graph import build
from augment.pipeline.kernels.instructions import Program
from augment.pipeline.loader import Loader
from augment.recipe.op_kinds import Op
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.steps import parse_aug

stats = LazyModule("scipy.stats")

SIZE = SQUARE
SEED = 5
MANY = 20_000
CLASSES = 3

Pixels = NDArray[Any]
Params = dict[str, Any]


def check_draws(op: Op) -> None:
    plan = plan_with(op)
    drawn, op = Sampler(plan, SEED).draw(0, 0, MANY)["tested"], plan.steps[0].op  # adapted to the channels
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
                assert statistic < stats.chi2.isf(1e-5, 1), step.key
    if op.kind != "policy":
        assert [step.p for step in plan_with(op, p=0.3).steps] == [0.3]


class Result(NamedTuple):
    """The results of an epoch.

    Images, (N, size, size, 3), uint8, or normalized floats if samples are mixed; targets; the index of each sample; and
    the loader's state after the first batch.
    """

    images: Pixels
    targets: Pixels
    indices: Pixels
    state: dict[str, Any]


def load(
    plan: Plan, files: Sequence[ImageRef], device: torch.device, *, raw: bool, batch_size: int = 8, threads: int = 2
) -> Loader:
    split = Split(tuple(files), tuple(i % CLASSES for i in range(len(files))))
    return build_loader(
        plan,
        split,
        batch_size=batch_size,
        seed=SEED,
        device=device,
        classes=[str(n) for n in range(CLASSES)],
        threads=threads,
        raw=raw,
    )


def run(
    plan: Plan,
    files: Sequence[ImageRef],
    device: torch.device,
    *,
    batch_size: int = 8,
    threads: int = 2,
    raw: bool = True,
) -> Result:
    loader = load(plan, files, device, batch_size=batch_size, threads=threads, raw=raw)
    batches, states = [], []
    for made in loader:
        batches.append(made)
        states.append(loader.state_dict())  # fails if DALI cannot checkpoint an operator
    images, targets, indices = (
        torch.cat([getattr(batch, name) for batch in batches]).cpu().numpy()
        for name in ("images", "targets", "indices")
    )
    return Result(images.transpose(0, 2, 3, 1), targets, indices, states[0])


# One step of each kind before and after the op: some that fuse with it, some that do not.
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
    """Return the plan of an op, or of none, between other steps; only mixing ops can follow a mixing op."""
    tested = {} if op is None else {"tested": given(op, p=p, **params)}
    return build_plan(parse_aug({"size": SIZE, "train": BEFORE | tested | ({} if mixes else AFTER)}), "train")


@cache
def without_op(files: tuple[ImageRef, ...], device: torch.device, mixes: bool, kernel: bool) -> Result:
    """Return images that did not go through an op; on a GPU in the kernel, or by operators, which round differently."""
    with nullcontext() if kernel else patch.object(build, "program_of", lambda *_: None):
        return run(between(None, {}, mixes=mixes), files, device, raw=not mixes)


_HALF_APPLIED: dict[tuple[str, str], Result] = {}


def half_applied(op: Op, params: Params, files: tuple[ImageRef, ...], device: torch.device) -> Result:
    """Return images, half of which went through the op; cached for all checks."""
    key = label((op, params)), device.type
    if key not in _HALF_APPLIED:
        mixes = op.kind == "batch"
        _HALF_APPLIED[key] = run(between(op, params, mixes=mixes), files, device, raw=not mixes)
    return _HALF_APPLIED[key]


def check_p_zero(op: Op, params: Params) -> None:
    mixes = op.kind == "batch"
    without, never = between(op, params, p=0, mixes=mixes), between(None, {}, mixes=mixes)
    assert without.stages == never.stages
    assert without.digest == never.digest
    assert between(op, params, mixes=mixes).digest != never.digest


def check_skipped(op: Op, params: Params, files: tuple[ImageRef, ...], device: torch.device) -> None:
    mixes = op.kind == "batch"
    plan, result = between(op, params, mixes=mixes), half_applied(op, params, files, device)
    plain = without_op(files, device, mixes, kernel=Program.of(plan) is not None)
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


def check_determinism(op: Op, params: Params, files: tuple[ImageRef, ...], device: torch.device) -> None:
    mixes = op.kind == "batch"
    plan, result = between(op, params, mixes=mixes), half_applied(op, params, files, device)
    # Noise drawn by DALI depends on the position in the batch, and so does the partner that a sample is mixed with.
    batch_size = 8 if mixes or plan.draws_in_dali else 5
    again = run(plan, files, device, batch_size=batch_size, threads=4, raw=not mixes)
    for one, other in zip(result[:3], again[:3], strict=True):
        np.testing.assert_array_equal(one, other)


_ALL_APPLIED: dict[tuple[str, str], Result] = {}


def all_applied(op: Op, params: Params, files: tuple[ImageRef, ...], device: torch.device) -> Result:
    """Return images that all went through the op, in batches of one; cached for all checks."""
    key = label((op, params)), device.type
    if key not in _ALL_APPLIED:
        plan = plan_with(op, size=SIZE, **params)
        _ALL_APPLIED[key] = run(plan, files, device, batch_size=1, raw=op.kind != "batch")
    return _ALL_APPLIED[key]


def check_resume(op: Op, files: tuple[ImageRef, ...]) -> None:
    cpu, raw = torch.device("cpu"), op.kind != "batch"
    plan, whole = between(op, {}, mixes=not raw), half_applied(op, {}, files, cpu)
    resumed = load(plan, files, cpu, raw=raw)
    resumed.load_state_dict(whole.state)
    rest = list(resumed)
    images = torch.cat([batch.images for batch in rest]).permute(0, 2, 3, 1).numpy()
    assert [index for batch in rest for index in batch.indices.tolist()] == whole.indices[8:].tolist()
    np.testing.assert_array_equal(images, whole.images[8:])


def check_shapes(op: Op, params: Params, files: tuple[ImageRef, ...], device: torch.device) -> None:
    """Check an op on images, the first eight of which are squares of the output size."""
    result = all_applied(op, params, files, device)
    assert sorted(result.indices) == list(range(len(files)))
    assert result.images.shape == (len(files), SIZE, SIZE, 3)
    if op.kind == "batch":
        # In a batch of one, a sample is mixed with itself.
        np.testing.assert_allclose(result.targets, np.eye(CLASSES)[result.indices % CLASSES], atol=1e-6)
        assert np.isfinite(result.images).all()
        return
    assert result.images.dtype == np.uint8
    changed = [
        (image != pixels_of(files[index])).any()
        for image, index in zip(result.images, result.indices, strict=True)
        if index < 8
    ]
    draws = Sampler(plan_with(op, size=SIZE, **params), SEED).draw(0, 0, len(files))
    always = np.logical_or.reduce([drawn["applied"] for drawn in draws.values()])
    if op.kind != "policy":
        assert always.all()
    assert np.mean(changed) > 0.5, "with p = 1 every image changes, unless the draw is neutral"


def check_not_square(op: Op, params: Params, files: tuple[ImageRef, ...]) -> None:
    """Check an op on images that are not square: between flips, it does the same fused with them and step by step."""
    size, mixes = (24, 40), op.kind == "batch"
    before, after = {"across": {"op": "flip"}}, {"down": {"op": "flip", "direction": "vertical"}}
    steps = before | {"tested": given(op, **params)} | ({} if mixes else after)
    fused, apart = (
        run(build_plan(parse_aug(aug | {"fuse": fuse}), "train"), files, torch.device("cpu"), raw=not mixes)
        for aug in [{"size": size, "train": steps, "clip": "each"}]
        for fuse in (True, False)
    )
    assert fused.images.shape == (len(files), *size, 3)
    np.testing.assert_array_equal(fused.targets, apart.targets)
    off = np.abs(fused.images.astype(float) - apart.images)
    # Matrices are rounded once, or one by one; within a policy, a threshold may then be crossed.
    assert off.max() <= (255 if op.kind == "policy" else 1)
    assert off.mean() <= 0.5


def check_crop(op: Op, params: Params, files: tuple[ImageRef, ...], device: torch.device, size: Sequence[int]) -> None:
    plan = plan_with(op, size=size, **params)
    result = run(plan, files, device, batch_size=3)
    assert sorted(result.indices) == list(range(len(files)))
    assert result.images.shape == (len(files), *size, 3)
    assert result.images.dtype == np.uint8
    # Windows drawn by DALI depend on the position in the batch.
    again = run(plan, files, device, batch_size=3 if op.random else 1, threads=4)
    for one, other in zip(result[:3], again[:3], strict=True):
        np.testing.assert_array_equal(one, other)
    # An image of a single pixel keeps its single color, apart from padding.
    (pixel,) = result.images[[name_of(files[i]).endswith("/1x1.png") for i in result.indices]]
    inside = np.unique(pixel.reshape(-1, 3), axis=0)
    assert len(inside) <= 2


# Largest and mean difference of CPU and GPU in levels of 255, with the reason; 1 for all others, due to rounding.
APART: dict[str, tuple[float, float, str]] = {
    "jpeg": (60, 5, "another inverse transform and chroma upsampling"),
    "clahe": (255, 6, "another algorithm"),
    "shot_noise": (255, 255, "another generator: only mean and variance agree"),
}


def check_devices(op: Op, params: Params, files: tuple[ImageRef, ...]) -> None:
    """Check that CPU and GPU agree on an op's images, the first eight of which are not resized."""
    on_cpu, on_gpu = (all_applied(op, params, files, torch.device(name)) for name in ("cpu", "cuda"))
    np.testing.assert_array_equal(on_cpu.indices, on_gpu.indices)
    np.testing.assert_allclose(on_cpu.targets, on_gpu.targets, atol=1e-6)
    squares = on_cpu.indices < 8
    one, other = on_cpu.images[squares].astype(float), on_gpu.images[squares].astype(float)
    if op.kind == "batch":
        np.testing.assert_allclose(one, other, atol=1e-4)
        return
    leaves = {step.op.name for step in plan_with(op, size=SIZE, **params).steps}
    # If one step is off by one, posterize or solarize after it may be off by many.
    usual = (1, 0.5) if op.kind != "policy" else (255, 1)
    most, mean = max(((APART[name][0], APART[name][1]) for name in leaves & APART.keys()), default=usual)
    off = np.abs(one - other)
    assert off.max() <= most
    assert off.mean() <= mean
    np.testing.assert_allclose(one.mean(), other.mean(), atol=2)
    np.testing.assert_allclose(one.var(), other.var(), rtol=0.05)
