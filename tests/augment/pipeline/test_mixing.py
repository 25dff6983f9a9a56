"""Mixup and CutMix through the loader, and ops of one's own that mix."""

from typing import Any

import numpy as np
import pytest
import torch
from fakes import needs_gpu, reject_waiting
from loaders import build_loader
from mixing_reference import layers_of
from numpy.typing import NDArray
from torch import Tensor

from augment import Range, batch
from augment.data.dataset import Split
from augment.data.targets.classification import CLASSES
from augment.pipeline.geometry.batch_assembly import Mixer
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.steps import parse_aug

SIZE, SEED = 32, 3
Floats = NDArray[Any]

IMAGE_STEPS: dict[str, Any] = {"random_resized_crop": {}, "flip": {"p": 0.5}, "hue": {"p": 0.5}}
MIXUP: dict[str, Any] = {"mixup": {"alpha": 0.8}}
CUTMIX: dict[str, Any] = {"cutmix": {}}
EITHER: dict[str, Any] = {"mix": {"op": "one_of", "p": 0.9, "steps": {"mixup": {"weight": 2}, "cutmix": {}}}}


def plan_of(steps: dict[str, Any], **aug: Any) -> Plan:
    return build_plan(parse_aug({"size": SIZE, "train": IMAGE_STEPS | steps, **aug}), "train")


def loader_of(plan: Plan, split: Split, device: torch.device, *, batch_size: int = 7, **options: Any) -> Loader:
    return build_loader(plan, split, batch_size=batch_size, seed=SEED, device=device, classes="abc", **options)


def numbers(tensor: Tensor) -> Floats:
    return tensor.cpu().numpy().astype(np.float64)


@pytest.mark.parametrize("views", [1, 2])
def test_loaders_mix_by_the_draws_of_each_batch(views: int, varied: Split, device: torch.device) -> None:
    """As transforms do in test_mixed_targets.py: images, and one-hot targets of three classes."""
    steps = MIXUP | {"cutmix": {"p": 0.6}}
    plans = [plan_of(some, views={"count": views}) for some in ({}, steps)]
    plains, mixtures = (loader_of(plan, varied, device, batch_size=4) for plan in plans)
    for epoch in range(2):
        for number, (plain, mixed) in enumerate(zip(plains, mixtures, strict=True)):
            draws = Sampler(plans[1], SEED).draw(epoch, 4 * number, len(plain))
            for before, after in zip(plain.views, mixed.views, strict=True):
                _, images, shares = layers_of(plans[1], draws, numbers(before))
                np.testing.assert_allclose(numbers(after), images, atol=1e-4)
            np.testing.assert_allclose(numbers(mixed.targets), shares @ np.eye(3)[plain.targets.cpu()], atol=1e-5)
            assert torch.equal(plain.indices, mixed.indices)
            assert (mixed.images.dtype, mixed.targets.dtype) == (torch.float32, torch.float32)
            assert mixed.images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("neutral", [{}, {"share": 1.0}], ids=["masked", "neutral"])
def test_an_op_may_write_to_what_it_is_given(
    neutral: dict[str, float], varied: Split, device: torch.device, clean_registry: None
) -> None:
    share_range = Range(default=(0.2, 0.8), within=(0, 1), doc="of the image")

    @batch(neutral=neutral, share_range=share_range)
    def blend(images: Tensor, partners: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Blend."""
        own = share[:, None, None, None]
        return images * own + partners * (1 - own), share

    @batch(neutral=neutral, share_range=share_range)
    def blend_in_place(images: Tensor, partners: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Blend."""
        own = share[:, None, None, None].clone()
        images.mul_(own).add_(partners.mul_(1 - own))
        return images, share.add_(1).sub_(1)

    made = []
    for name in ("blend", "blend_in_place"):
        steps = {"first": {"op": name, "p": 0.5}, "second": {"op": name, "p": 0.5}}
        made += [list(loader_of(plan_of(steps, views={"count": 2, "crop": "same"}), varied, device))]
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close((*other.views, other.targets), (*one.views, one.targets))


@needs_gpu
def test_mixing_never_waits_for_the_gpu() -> None:
    plan = plan_of({"one_of": {"p": 0.5, "steps": {"mixup": {}, "cutmix": {}}}})
    mixer = Mixer(plan, CLASSES, seed=SEED, rank=0, classes=3)
    images, targets = torch.rand(7, 3, SIZE, SIZE, device="cuda"), torch.zeros(7, dtype=torch.int64, device="cuda")
    for given in (images, images.contiguous(memory_format=torch.channels_last)):  # by operators, and by a kernel
        mixer.mix(given, targets, epoch=0, start=0)  # the first time memory is pinned
        with reject_waiting():
            mixer.mix(given, targets, epoch=0, start=7)


def test_raw_images_are_not_mixed(varied: Split, device: torch.device) -> None:
    raw = next(iter(loader_of(plan_of(EITHER), varied, device, raw=True)))
    plain = next(iter(loader_of(plan_of({}), varied, device, raw=True)))
    torch.testing.assert_close(raw.images, plain.images, rtol=0, atol=0)
    assert (raw.images.dtype, raw.targets.dtype) == (torch.uint8, torch.int64)


@pytest.mark.parametrize("steps", [MIXUP, CUTMIX])
def test_labels_and_numbers_are_mixed_in_the_same_shares(
    steps: dict[str, Any], varied: Split, device: torch.device
) -> None:
    """A one-hot table of labels comes out as classes do, and numbers as its product with theirs."""
    hot = tuple(tuple(float(place == target) for place in range(3)) for target in varied.targets)
    weights = torch.tensor([[0.5, -3.0], [2.0, 7.0], [-1.0, 100.0]])
    table = tuple(map(tuple, (torch.tensor(hot) @ weights).tolist()))
    splits = (varied, Split(varied.files, hot), Split(varied.files, table))
    (classes,), (labels,), (values,) = (list(loader_of(plan_of(steps), split, device)) for split in splits)
    assert labels.targets.dtype == torch.float32
    torch.testing.assert_close(labels.targets, classes.targets)
    torch.testing.assert_close(values.targets.cpu(), classes.targets.cpu() @ weights)
    torch.testing.assert_close(labels.images, classes.images, rtol=0, atol=0)
