"""The task keypoints: what models predict, losses and metrics by hand, mirror images, places in stored images."""

import math

import numpy as np
import pytest
import torch
from fakes import CPU
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from augment.data.dataset import Split
from augment.data.targets.keypoints import Keypoints
from augment.pipeline.batch import Batch
from trainer.run.config.fit import parse_fit
from trainer.tasks.keypoints import CoordinateSamples, PointLoss
from trainer.tasks.meter import Meter
from trainer.tasks.registry import task_named

TASK = task_named("keypoints")
NAMES = ("nose", "left", "right")
# In images of 80 x 40 px: the middle is at 39.5, 19.5, and the half of the longer side is 40 px.
POINTS = torch.tensor([[[39.5, 19.5, 2], [79.5, 39.5, 1], [0, 0, 0]], [[-0.5, 19.5, 2], [39.5, 9.5, 2], [3, 3, 0]]])
HALVES = torch.tensor([[[0, 0, 2], [1, 0.5, 1]], [[-1, 0, 2], [0, -0.25, 2]]])


def batch_of(points: Tensor, frames: Tensor | None = None) -> Batch:
    return Batch(torch.zeros(len(points), 3, 40, 80), points, torch.arange(len(points)), frames=frames)


def test_targets_are_halves_of_the_longer_side_from_the_middle() -> None:
    assert torch.equal(TASK.targets_of(batch_of(POINTS))[:, :2], HALVES)


def test_predictions_are_in_pixels_of_stored_images() -> None:
    """A stored image of 160 x 80 px is halved, and moved by 4 px; outputs are those of the targets."""
    frames = torch.tensor([[[0.5, 0, 3.75], [0, 0.5, -0.25], [0, 0, 1]]], dtype=torch.float64).repeat(2, 1, 1)
    stored = torch.tensor([[[11.0, 21], [130, 70]], [[40, 40], [8, 6]]], dtype=torch.float64)
    seen = stored * 0.5 + torch.tensor([3.75, -0.25])
    batch = batch_of(torch.cat([seen, torch.ones(2, 2, 1)], dim=-1), frames)
    outputs = TASK.targets_of(batch)[..., :2].flatten(1)
    names, values = TASK.numbers(outputs, TASK.frames_of(batch), NAMES[:2])
    assert names == ["nose_x", "nose_y", "left_x", "left_y"]
    torch.testing.assert_close(values, stored.flatten(1), rtol=0, atol=1e-5)


def test_points_that_are_not_visible_do_not_count() -> None:
    targets = TASK.targets_of(batch_of(POINTS))
    targets[:, 2, :2] = math.inf
    outputs = torch.linspace(-0.5, 0.6, 12).reshape(2, 6).requires_grad_()
    loss = PointLoss()(outputs, targets)
    expected = smooth_l1_loss(outputs[:, :4], HALVES[..., :2].flatten(1), beta=0.05, reduction="sum") / 4
    torch.testing.assert_close(loss, expected)
    assert PointLoss().weight_of(targets) == 4, "hidden ones count"
    loss.backward()
    assert outputs.grad is not None
    assert (outputs.grad[:, :4] != 0).all()
    assert (outputs.grad[:, 4:] == 0).all()
    assert PointLoss()(outputs, targets * torch.tensor([1, 1, 0])) == 0


def test_metrics_by_hand() -> None:
    """The extents are 40 x 20 px and 40 x 10 px, so that a point is right if it is off by at most 8 px, .2 of 40."""
    targets = TASK.targets_of(batch_of(POINTS))
    off = torch.tensor([[[4.0, 0], [0, 10], [50, 50]], [[0, 0], [6, 8], [50, 50]]]) / 40
    outputs = (targets[..., :2] + off).flatten(1)
    meter = Meter(TASK, TASK.measured(NAMES), CPU, keep=True)
    for part in (slice(0, 1), slice(1, 2)):
        meter.update(torch.tensor(0.0), outputs[part], targets[part], frames=torch.eye(3).repeat(1, 1, 1))
    scores = meter.scores()
    assert scores["pck"] == 0.5
    assert scores["error"] == pytest.approx((4 + 10 + 0 + 10) / 4 / 80)
    samples = meter.kept()
    assert isinstance(samples, CoordinateSamples)
    points = TASK.per_class(samples, NAMES)
    assert points["nose"] == {"pck": 1.0, "error": pytest.approx(2 / 80), "images": 2}
    assert points["left"]["pck"] == 0
    assert math.isnan(points["right"]["pck"])
    assert [wrong.position for wrong in TASK.mistakes(samples, NAMES)] == [0, 1]
    assert TASK.worst_first(points)[0][0] == "left"


def test_a_single_point_has_no_extent() -> None:
    targets = TASK.targets_of(batch_of(POINTS * torch.tensor([[[1, 1, 1.0]], [[1, 1, 0]]])))
    targets[0, 1, 2] = 0
    meter = Meter(TASK, TASK.measured(NAMES), CPU, keep=True)
    meter.update(torch.tensor(0.0), torch.full((2, 6), 0.3), targets)
    assert math.isnan(meter.scores()["pck"])
    assert meter.scores()["error"] > 0


def test_left_and_right_are_exchanged_in_mirror_images() -> None:
    network = nn.Linear(2, 6)
    split = Split((), (), Keypoints(flip_pairs=((1, 2),)))
    assert "1 pair" in TASK.prepare(network, parse_fit({}), split, NAMES)
    assert "0 pairs" in TASK.prepare(nn.Linear(2, 6), parse_fit({}), Split((), (), Keypoints()), NAMES)
    unknown = Split((), (), Keypoints(flip_pairs=None))
    assert "unknown" in TASK.prepare(nn.Linear(2, 6), parse_fit({}), unknown, NAMES)
    restored = nn.Linear(2, 6)
    TASK.restore(restored, network.state_dict())
    mirrored = torch.tensor([[0.1, 0.2, -0.3, 0.4, 0.5, 0.6]])
    expected = torch.tensor([[-0.1, 0.2, -0.5, 0.6, 0.3, 0.4]])
    assert torch.equal(TASK.unmirrored(mirrored, restored), expected)


def test_the_report_draws_targets_beside_predictions() -> None:
    frame = torch.tensor(np.diag([1 / 40, 1 / 40, 1.0]))[None]
    targets = torch.tensor([[[0.5, 0.5, 2.0]]])
    samples = CoordinateSamples(index=torch.zeros(1), target=targets, output=torch.tensor([[1.5, 0.5]]), frame=frame)
    place = np.diag([0.5, 0.5, 1.0])
    drawn = np.asarray(TASK.draw(Image.new("RGB", (60, 30)), place, samples, 0, NAMES[:1]))
    assert drawn.shape == (30, 120, 3)
    bright = (drawn.max(axis=2) > 200).nonzero()
    for half, column in ((bright[1] < 60, 10), (bright[1] >= 60, 90)):
        assert bright[0][half].mean() == pytest.approx(10, abs=1)
        assert bright[1][half].mean() == pytest.approx(column, abs=1)
