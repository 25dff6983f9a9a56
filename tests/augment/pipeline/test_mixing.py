"""Mixup and CutMix: images and targets against NumPy by hand, and through the loader."""

from typing import Any

import numpy as np
import pytest
import torch
from fakes import needs_gpu, refuse_waiting
from loaders import build_loader
from numpy.typing import NDArray
from scipy.stats import beta
from torch import Tensor

from augment import Range, batch
from augment.data.dataset import Split
from augment.data.targets.classes import CLASSES
from augment.pipeline.batch import Batch
from augment.pipeline.loader import Loader
from augment.pipeline.mixing import Mixer
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


def both(
    steps: dict[str, Any], split: Split, device: torch.device, *, batch_size: int = 7, epochs: int = 1, **aug: Any
) -> list[tuple[Batch, Batch]]:
    """Return batches as they are before they are mixed, each with the mixed one."""
    plain = loader_of(plan_of({}, **aug), split, device, batch_size=batch_size)
    mixed = loader_of(plan_of(steps, **aug), split, device, batch_size=batch_size)
    return [pair for _ in range(epochs) for pair in zip(plain, mixed, strict=True)]


def by_hand(
    name: str, images: Floats, partners: Floats, drawn: dict[str, Floats], alpha: float
) -> tuple[Floats, Floats]:
    """Mix images, one after the other; return them with each one's own share."""
    made, shares = images.copy(), np.ones(len(images))
    for i in np.flatnonzero(drawn["applied"]):
        share = beta.ppf(drawn["uniform"][i], alpha, alpha)
        if name == "mixup":
            made[i], shares[i] = share * images[i] + (1 - share) * partners[i], share
            continue
        half = SIZE * np.sqrt(1 - share) / 2
        left, right = (int(np.clip(np.rint(SIZE * drawn["x"][i] + s * half), 0, SIZE)) for s in (-1, 1))
        top, bottom = (int(np.clip(np.rint(SIZE * drawn["y"][i] + s * half), 0, SIZE)) for s in (-1, 1))
        made[i, :, top:bottom, left:right] = partners[i, :, top:bottom, left:right]
        shares[i] = 1 - (bottom - top) * (right - left) / SIZE**2
    return made, shares


def one_hot(targets: Tensor) -> Floats:
    return np.asarray(np.eye(3)[targets.cpu().numpy()])


ALPHAS = {"mixup": 0.8, "cutmix": 1.0}


@pytest.mark.parametrize(
    "steps",
    [
        {"mixup": {"alpha": 0.8, "p": 0.6}},
        {"cutmix": {"p": 0.6}},
        EITHER,
        MIXUP | CUTMIX,  # both, one after the other
    ],
    ids=["mixup", "cutmix", "one_of", "both"],
)
def test_images_and_targets_are_mixed_alike(steps: dict[str, Any], varied: Split, device: torch.device) -> None:
    plan = plan_of(steps)
    for epoch, (plain, mixed) in enumerate(both(steps, varied, device, epochs=3)):
        torch.testing.assert_close(plain.indices, mixed.indices)
        draws = Sampler(plan, SEED).draw(epoch, 0, len(plain))
        images, targets = numbers(plain.images), one_hot(plain.targets)
        # The partner is the next one as it was, the last one's is the first.
        partners, others = np.roll(images, -1, 0), np.roll(targets, -1, 0)
        for stage in plan.batch_stages:
            step = stage.steps[0]
            drawn = dict(draws[step.key])
            images, shares = by_hand(step.op.name, images, partners, drawn, step.params["alpha"])
            targets = shares[:, None] * targets + (1 - shares[:, None]) * others
        np.testing.assert_allclose(numbers(mixed.images), images, atol=1e-4)
        np.testing.assert_allclose(numbers(mixed.targets), targets, atol=1e-5)
        assert (mixed.images.dtype, mixed.targets.dtype, mixed.targets.shape) == (torch.float32, torch.float32, (7, 3))
        np.testing.assert_allclose(numbers(mixed.targets).sum(axis=1), 1, atol=1e-6)
        assert mixed.images.is_contiguous(memory_format=torch.channels_last)


def test_samples_left_out_are_the_same_bits(varied: Split, device: torch.device) -> None:
    steps = {"mixup": {"p": 0.5}}
    for epoch, (plain, mixed) in enumerate(both(steps, varied, device, epochs=2)):
        applied = Sampler(plan_of(steps), SEED).draw(epoch, 0, 7)["mixup"]["applied"].astype(bool)
        assert 0 < applied.sum() < 7
        same = (plain.images == mixed.images).flatten(1).all(dim=1)
        assert same.tolist() == (~applied).tolist()
        assert set(mixed.targets[torch.from_numpy(~applied).to(device)].flatten().tolist()) == {0.0, 1.0}


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


# --- draws ---


@needs_gpu
def test_mixing_never_waits_for_the_gpu() -> None:
    plan = plan_of({"one_of": {"p": 0.5, "steps": {"mixup": {}, "cutmix": {}}}})
    mixer = Mixer(plan, CLASSES, seed=SEED, rank=0, classes=3)
    images, targets = torch.rand(7, 3, SIZE, SIZE, device="cuda"), torch.zeros(7, dtype=torch.int64, device="cuda")
    for given in (images, images.contiguous(memory_format=torch.channels_last)):  # by operators, and by a kernel
        mixer.mix(given, targets, epoch=0, start=0)  # the first time memory is pinned
        with refuse_waiting():
            mixer.mix(given, targets, epoch=0, start=7)


# --- the loader ---


def assert_same_batches(ours: list[Batch], theirs: list[Batch]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.images, other.images, rtol=0, atol=0)
        torch.testing.assert_close(one.targets, other.targets, rtol=0, atol=0)


def test_resumes_to_the_same_mixture(varied: Split, device: torch.device) -> None:
    loader = loader_of(plan_of(EITHER), varied, device, batch_size=2)
    list(loader)
    going = iter(loader)
    next(going)
    state = loader.state_dict()
    rest = list(going)
    resumed = loader_of(plan_of(EITHER), varied, device, batch_size=2)
    resumed.load_state_dict(state)
    assert_same_batches(list(resumed), rest)
    assert_same_batches(list(resumed), list(loader))


@pytest.mark.parametrize("steps", [MIXUP, CUTMIX], ids=["mixup", "cutmix"])
def test_views_are_mixed_alike(steps: dict[str, Any], varied: Split, device: torch.device) -> None:
    plan = plan_of(steps, views={"count": 2})
    ((plain, mixed),) = both(steps, varied, device, views={"count": 2})
    (name,) = steps
    drawn = dict(Sampler(plan, SEED).draw(0, 0, 7)[name])
    assert len(mixed.views) == 2
    torch.testing.assert_close(mixed.images, mixed.views[0], rtol=0, atol=0)
    for before, after in zip(plain.views, mixed.views, strict=True):
        images = numbers(before)
        expected, shares = by_hand(name, images, np.roll(images, -1, 0), drawn, ALPHAS[name])
        np.testing.assert_allclose(numbers(after), expected, atol=1e-4)
        own, others = one_hot(plain.targets), np.roll(one_hot(plain.targets), -1, 0)
        np.testing.assert_allclose(
            numbers(mixed.targets), shares[:, None] * own + (1 - shares[:, None]) * others, atol=1e-5
        )
    assert (plain.views[0] != plain.views[1]).any()


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
