"""What holds for each op, whatever it does, by its declaration alone: on the CPU, and on the GPU where there is one."""

import numpy as np
import pytest
import torch
from decoded import for_device
from fakes import needs_gpu
from op_cases import APPLIED, CROPS, EVERY_APPLIED_OP, EVERY_LEAF, LEAVES, cases, given, plan_with
from op_checks import (
    SEED,
    SIZE,
    Params,
    check_crop,
    check_determinism,
    check_devices,
    check_draws,
    check_not_square,
    check_p_zero,
    check_rates,
    check_resume,
    check_shapes,
    check_skipped,
    load,
    run,
)

from augment.data.dataset import ImageRef
from augment.recipe.op import OPS
from augment.recipe.op_kinds import Op
from augment.recipe.plan import build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.steps import parse_aug

EVERY_USE = cases(APPLIED)
EVERY_CROP = cases(CROPS)


# --- on numbers alone ---


@EVERY_LEAF
def test_draws_lie_in_their_ranges(op: Op) -> None:
    check_draws(op)


@EVERY_APPLIED_OP
def test_steps_apply_as_often_as_they_say(op: Op) -> None:
    check_rates(op)


# --- on images ---


@EVERY_USE
def test_without_chance_it_is_not_there(op: Op, params: Params) -> None:
    check_p_zero(op, params)


@EVERY_USE
def test_skipped_samples_are_unchanged(
    op: Op, params: Params, squares: tuple[ImageRef, ...], device: torch.device
) -> None:
    check_skipped(op, params, squares, device)


@EVERY_USE
def test_same_seed_same_images(op: Op, params: Params, squares: tuple[ImageRef, ...], device: torch.device) -> None:
    check_determinism(op, params, squares, device)


@EVERY_APPLIED_OP
def test_resuming_in_the_middle_of_an_epoch(op: Op, squares: tuple[ImageRef, ...]) -> None:
    check_resume(op, squares)


NOISE: Params = {"noise": {"op": "gaussian_noise", "std_range": [20, 20]}}


@pytest.mark.parametrize("name", ["rotate", "salt_and_pepper", "clahe", "one_of"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_noise_stays_the_same_beside_other_steps(name: str, place: str, squares: tuple[ImageRef, ...]) -> None:
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
def test_noise_of_each_step_epoch_and_view_is_its_own(op: Op, squares: tuple[ImageRef, ...]) -> None:
    # The same image again and again: whatever is equal was drawn alike.
    fixed = {name: [op.params[name].default[1]] * 2 for name in op.draws.values()}  # type: ignore[index]
    noise = {name: "noise" for name, param in op.params.items() if "noise" in getattr(param, "options", ())}
    seen = []
    for key in ("one", "other"):
        steps = {key: given(op, **fixed, **noise)}
        aug = parse_aug({"size": SIZE, "train": steps, "views": {"count": 2, "crop": "same"}})
        loader = load(build_plan(aug, "train"), squares[:1] * 8, torch.device("cpu"), raw=True)
        seen += [view.clone() for _ in range(2) for made in loader for view in made.views]
    image_files = torch.cat(seen).flatten(1).numpy()
    assert len(np.unique(image_files, axis=0)) == len(image_files) == 2 * 2 * 2 * 8


@EVERY_USE
def test_images_of_any_shape_one_by_one(
    op: Op, params: Params, squares: tuple[ImageRef, ...], shapes: tuple[ImageRef, ...], device: torch.device
) -> None:
    check_shapes(op, params, squares[:8] + shapes, device)


@EVERY_USE
def test_smallest_size(op: Op, params: Params, shapes: tuple[ImageRef, ...]) -> None:
    result = run(plan_with(op, size=8, **params), shapes, torch.device("cpu"), raw=op.kind != "batch")
    assert result.images.shape == (len(shapes), 8, 8, 3)
    assert np.isfinite(result.images).all()


@EVERY_USE
def test_images_that_are_not_square(op: Op, params: Params, squares: tuple[ImageRef, ...]) -> None:
    check_not_square(op, params, squares[:8])


@EVERY_CROP
@pytest.mark.parametrize("size", [(SIZE, SIZE), (24, 56)], ids=str)
def test_crops_of_any_shape_in_any_batch(
    op: Op,
    params: Params,
    square_files: tuple[ImageRef, ...],
    shape_files: tuple[ImageRef, ...],
    device: torch.device,
    size: tuple[int, int],
) -> None:
    check_crop(op, params, for_device(shape_files + square_files[:3], device), device, size)


# --- CPU and GPU beside each other ---


@needs_gpu
@EVERY_USE
def test_cpu_and_gpu_agree(op: Op, params: Params, squares: tuple[ImageRef, ...], shapes: tuple[ImageRef, ...]) -> None:
    check_devices(op, params, squares[:8] + shapes)
