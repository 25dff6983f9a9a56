"""Segmentation: losses and metrics against others' and values worked out by hand, and what is kept of a pass."""

from functools import partial

import numpy as np
import pytest
import torch
from fakes import CPU
from lazily import LazyModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from augment.data.targets.spatial import IGNORE
from trainer.loop.batch_runner import average
from trainer.run.config.fit import parse_fit
from trainer.tasks.meter import Meter
from trainer.tasks.named_losses import pixel_loss
from trainer.tasks.registry import task_named
from trainer.tasks.segment import MaskSamples, confusions

torchmetrics = LazyModule("torchmetrics.classification")

SEGMENT = task_named("segment")
NAMES = ("sky", "road", "car", "never")


@pytest.fixture
def batches() -> list[tuple[Tensor, Tensor]]:
    """Batches of different sizes; no pixel has or gets the last class, and one image has no pixel that counts."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for count in (3, 1, 2):
        outputs = torch.randn(count, 4, 5, 7, generator=generator)
        outputs[:, 3] = -9
        targets = torch.randint(3, (count, 5, 7), generator=generator)
        targets[torch.rand(targets.shape, generator=generator) < 0.2] = IGNORE
        found.append((outputs, targets))
    found[1][1].fill_(IGNORE)
    return found


def measured(batches: list[tuple[Tensor, Tensor]], fit: dict[str, object] | None = None) -> Meter:
    loss, _ = SEGMENT.make_losses(parse_fit(fit or {}), nn.Identity(), CPU)
    meter = Meter(SEGMENT, SEGMENT.measured(NAMES), CPU, keep=True)
    for outputs, targets in batches:
        frames = torch.eye(3, dtype=torch.float64).expand(len(targets), 3, 3)
        meter.update(loss(outputs, targets), outputs, targets, frames=frames)
    return meter


def test_scores_equal_those_of_torchmetrics_and_of_a_confusion_matrix(batches: list[tuple[Tensor, Tensor]]) -> None:
    meter = measured(batches)
    predictions = torch.cat([outputs.argmax(1) for outputs, _ in batches])
    targets = torch.cat([targets for _, targets in batches])
    counts = np.zeros((4, 4), np.int64)
    for true, predicted in zip(targets.flatten().tolist(), predictions.flatten().tolist(), strict=True):
        if true != IGNORE:
            counts[true, predicted] += 1
    right, union = np.diag(counts), counts.sum(0) + counts.sum(1) - np.diag(counts)
    miou = np.mean(right[:3] / union[:3])
    scores = meter.scores()
    assert scores["miou"] == pytest.approx(miou, abs=1e-12)
    assert scores["pixel_accuracy"] == pytest.approx(right.sum() / counts.sum(), abs=1e-12)
    theirs = torchmetrics.MulticlassJaccardIndex(4, average="macro", ignore_index=IGNORE)(predictions, targets)
    assert scores["miou"] == pytest.approx(float(theirs), abs=1e-6)
    samples = meter.kept()
    assert isinstance(samples, MaskSamples)
    assert (samples.counts == counts).all()
    ious = [found["iou"] for found in SEGMENT.per_class(samples, NAMES).values()]
    assert ious[:3] == pytest.approx(right[:3] / union[:3])
    assert np.isnan(ious[3])


def test_images_of_a_class_are_those_whose_target_has_it() -> None:
    samples = measured([(-torch.eye(4)[:1, :, None, None].expand(2, 4, 2, 2), torch.zeros(2, 2, 2).long())]).kept()
    assert isinstance(samples, MaskSamples)
    assert [found["images"] for found in SEGMENT.per_class(samples, NAMES).values()] == [2, 0, 0, 0]


def test_outputs_for_mirror_images_are_mirrored_back() -> None:
    network, images = nn.Conv2d(3, 4, 1), torch.randn(2, 3, 5, 7)
    torch.testing.assert_close(average(network, images, "flip", SEGMENT), network(images).log_softmax(dim=1))


def test_pixels_of_no_class_do_not_count() -> None:
    targets = torch.tensor([[[-1, 0, 1, 2, IGNORE]]])
    assert confusions(torch.zeros_like(targets), targets, 2).tolist() == [[[1, 0], [1, 0]]]


def test_what_is_kept_does_not_depend_on_batches_and_ranks(batches: list[tuple[Tensor, Tensor]]) -> None:
    images = [(output[None], target[None]) for b in batches for output, target in zip(*b, strict=True)]
    first, second = measured(images[:4]), measured(images[4:])
    parts = {"samples": second.samples, "sums": second._sums, "kept": second._joined()}
    for meter in (measured(images), first.merged(lambda own: [own, parts])):
        assert meter.scores() == pytest.approx(measured(batches).scores(), abs=1e-6)
        ours, theirs = meter.kept(), measured(batches).kept()
        assert ours is not None
        assert theirs is not None
        for name, value in vars(theirs).items():
            assert torch.equal(getattr(ours, name), value), name


# --- losses: means over images, so that they are the same for any batch ---


def test_cross_entropy_is_that_of_pytorch_for_each_image(batches: list[tuple[Tensor, Tensor]]) -> None:
    outputs, targets = batches[0]
    for smoothing in (0.0, 0.1):
        loss = partial(pixel_loss, smoothing=smoothing)
        of_images = [
            cross_entropy(outputs[i : i + 1], targets[i : i + 1], ignore_index=IGNORE, label_smoothing=smoothing)
            for i in range(3)
        ]
        torch.testing.assert_close(loss(outputs, targets), torch.stack(of_images).mean())
    assert pixel_loss(*batches[1]) == 0


def test_dice_and_focal_by_hand(batches: list[tuple[Tensor, Tensor]]) -> None:
    outputs, targets = batches[0]
    dice, focal = [], []
    for output, target in zip(outputs, targets, strict=True):
        shares = output.softmax(0)[:, target != IGNORE]  # (classes, pixels)
        truth = one_hot(target[target != IGNORE], 4).T
        overlap = [2 * (p * t).sum() / (p.sum() + t.sum()) for p, t in zip(shares, truth, strict=True) if t.any()]
        dice.append(1 - torch.stack(overlap).mean())
        right = (shares * truth).sum(0)
        focal.append((-((1 - right) ** 2) * right.log()).mean())
    torch.testing.assert_close(pixel_loss(outputs, targets, terms=["dice"]), torch.stack(dice).mean())
    torch.testing.assert_close(pixel_loss(outputs, targets, terms=["focal"]), torch.stack(focal).mean())
    total = sum(pixel_loss(outputs, targets, terms=[term]) for term in ("ce", "dice"))
    given = SEGMENT.make_losses(parse_fit({"loss": "ce+dice"}), nn.Identity(), CPU)[0]
    torch.testing.assert_close(given(outputs, targets), total)


@pytest.mark.parametrize("terms", [("ce",), ("dice",), ("focal",), ("ce", "dice", "focal")])
def test_ignored_pixels_have_no_gradient(terms: tuple[str, ...], batches: list[tuple[Tensor, Tensor]]) -> None:
    outputs, targets = batches[0]
    outputs.requires_grad_()
    pixel_loss(outputs, targets, terms=terms, smoothing=0.1).backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()
    moved = outputs.grad.abs().sum(dim=1) > 0
    assert torch.equal(moved, targets != IGNORE)
